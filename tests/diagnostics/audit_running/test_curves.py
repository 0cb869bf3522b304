"""What an audit in the run adds to the curves: read back out of TensorBoard's and W&B's own files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from diagnostics.audit.recorded.readers import trackers
from diagnostics.audit.running.hook import AuditReport
from tests.cells import ROOT

pytest.importorskip("torch")


def in_tensorboard(folder):
    """(step, value) by name, as TensorBoard itself reads them."""
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = reader.EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(one.step, one.value) for one in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def in_wandb(folder):
    """The lines of an offline run's file."""
    (path,) = folder.rglob("run-*.wandb")
    return [row.said for row in trackers.history(path, []).rows]


def test_our_trainers_hook_writes_where_the_curves_go(tmp_path):
    """Beside the step's own numbers, at its step; a learning rate of 0 stands from the fourth line on."""
    from grpo_core.run import train
    from grpo_core.settings import load

    pytest.importorskip("tensorboard")
    words = ["--train.steps=6", f"--output.dir={tmp_path}", "--output.name=run", "--output.tensorboard=true"]
    hook = AuditReport(tmp_path / "run", share=1.0)
    train(load(None, words), lambda entry: hook(entry | {"lr": 0.0}))
    hook.close()
    curves = in_tensorboard(tmp_path / "run" / "tensorboard")
    assert [step for step, _ in curves["loss"]] == list(range(1, 7))
    assert curves["audit/faults"] == [(step, float(step >= 4)) for step in range(1, 7)]
    assert curves["audit/metrics/rate_zero"] == [(step, 1.0) for step in range(4, 7)]
    assert "audit/" not in (tmp_path / "run" / "metrics.jsonl").read_text()


@pytest.mark.long
@pytest.mark.parametrize("where", ["tensorboard", "wandb"])
def test_the_callback_writes_where_the_trainer_reports_to(tmp_path, where):
    """transformers' own Trainer with `report_to`, and nothing of the network."""
    for module in ("accelerate", "transformers", where):
        pytest.importorskip(module)
    environment = {
        **os.environ, "PYTHONPATH": str(ROOT), "WANDB_MODE": "offline", "WANDB_ERROR_REPORTING": "false",
        "WANDB_SILENT": "true", "WANDB_DIR": str(tmp_path), "TENSORBOARD_LOGGING_DIR": str(tmp_path / "events"),
        "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1",
    }  # fmt: skip
    program = Path(__file__).parent / "programs" / "reported.py"
    done = subprocess.run(
        [sys.executable, program, str(tmp_path), where],
        capture_output=True, text=True, timeout=1500, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    if where == "tensorboard":
        # transformers' callback puts train/ before what is logged.
        curves = in_tensorboard(tmp_path / "events")
        told = curves["train/audit/faults"]
        assert curves["train/audit/metrics/no_gradient"][-1][1] == 1.0
    else:
        name = "train/audit/faults"
        told = [(row["train/global_step"], row[name]) for row in in_wandb(tmp_path) if name in row]
    assert [step for step, _ in told] == list(range(1, 9))
    assert (told[0][1], told[-1][1]) == (0.0, 1.0)
