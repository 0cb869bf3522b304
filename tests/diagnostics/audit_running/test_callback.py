"""`AuditCallback` in a transformers Trainer: what it sees, where it tells it, and that it ends no training."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections import deque
from types import SimpleNamespace

import pytest

from diagnostics.audit.running.guarded import Guarded
from diagnostics.audit.running.probing import Probe
from tests.diagnostics.audit_running.lines import healthy, samples

ARGS = ("on_log", "on_step_end", "on_save")


@pytest.fixture(autouse=True)
def _log(caplog):
    caplog.set_level(logging.WARNING, logger="grpo_doctor.audit")


class Trainer:
    """As much of one as calls callbacks: its handler, its log of samples, what a later callback wrote."""

    def __init__(self, folder, *, first=True):
        self.callback_handler = SimpleNamespace(callbacks=[])
        self.args = SimpleNamespace(output_dir=str(folder))
        self.state = SimpleNamespace(global_step=0, is_world_process_zero=first)
        self._logs = {
            "prompt": deque(),
            "completion": deque(),
            "advantages": deque(),
            "rewards": {"exact": deque()},
        }
        self.written = []

    def call(self, event, **more):
        for callback in self.callback_handler.callbacks:
            getattr(callback, event)(self.args, self.state, None, **more)
        self.written += [more["logs"]] if "logs" in more else []

    def train(self, steps, change, rows=lambda _: ()):
        self.call("on_train_begin")
        for step in range(1, steps + 1):
            self.call("on_step_begin")
            self.call("on_pre_optimizer_step")
            self.state.global_step = step
            told = rows(step)
            self._logs["prompt"] = deque(row.prompt for row in told)
            self._logs["completion"] = deque(
                [{"role": "assistant", "content": row.completion}] for row in told
            )
            self._logs["advantages"] = deque(0.0 for _ in told)
            self._logs["rewards"]["exact"] = deque(row.reward for row in told)
            self.call("on_step_end")
            self.call("on_log", logs=healthy(step) | change)
            self.call("on_log", logs={"eval_loss": float("nan"), "eval_reward": 0.0})
            self.call("on_save")
        self.call("on_log", logs={"train_runtime": 5.0, "train_loss": 0.0})
        self.call("on_train_end")


def attached(folder, **settings):
    from diagnostics.audit.callback import AuditCallback

    trainer = Trainer(folder, first=settings.pop("first", True))
    return AuditCallback(share=1.0, **settings).attach(trainer), trainer


def test_its_module_imports_nothing_heavy():
    """A training environment has what it takes; the base class is looked for when the class is."""
    program = (
        "import sys, diagnostics.audit.callback; "
        "print({'torch', 'transformers', 'numpy', 'rich', 're2', 'yaml', 'packaging'} & sys.modules.keys())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300
    )
    assert done.stdout.strip() == "set()"


def test_it_is_a_callback_of_transformers():
    """With every event that there is."""
    transformers = pytest.importorskip("transformers")
    from diagnostics.audit import callback

    assert issubclass(callback.AuditCallback, transformers.TrainerCallback)
    with pytest.raises(AttributeError, match="no attribute"):
        _ = callback.Other


def test_a_healthy_run_is_told_as_clean(tmp_path, caplog):
    """No line of log; scalars of 0 for those callbacks that come after; a document."""
    hooks, trainer = attached(tmp_path)
    trainer.train(20, {}, samples)
    assert caplog.records == []
    assert trainer.written[0]["audit/faults"] == 0.0
    assert all("audit/faults" not in logs for logs in trainer.written if "eval_loss" in logs)
    assert json.loads((tmp_path / "audit.json").read_text())["outcome"] == "clean"
    assert not (tmp_path / "audit.jsonl").exists()
    assert hooks.guarded.watcher.steps == 20


def test_a_fault_is_told_everywhere(tmp_path, caplog):
    """In the log, in audit.jsonl, in the scalars, in the document."""
    _, trainer = attached(tmp_path)
    trainer.train(20, {"grad_norm": 0.0}, samples)
    assert "NUM046" in caplog.text
    (change,) = map(json.loads, (tmp_path / "audit.jsonl").read_text().splitlines())
    assert (change["change"], change["family"]) == ("found", "metrics/no_gradient")
    assert [logs["audit/faults"] for logs in trainer.written if "loss" in logs][-1] == 1.0
    assert json.loads((tmp_path / "audit.json").read_text())["outcome"] == "fault"


def test_it_sees_the_samples_that_the_trainer_keeps(tmp_path, caplog):
    """Rewards without a spread."""
    _, trainer = attached(tmp_path)
    trainer.train(20, {}, lambda step: samples(step, reward=0.0))
    assert "REW004" in caplog.text


def test_other_processes_do_nothing(tmp_path):
    """Only the first looks and writes."""
    hooks, trainer = attached(tmp_path / "run", first=False)
    trainer.train(3, {"grad_norm": 0.0})
    assert hooks.guarded is None
    assert not (tmp_path / "run").exists()


def test_what_goes_wrong_in_it_ends_no_training(tmp_path, caplog, monkeypatch):
    """It says so once, and is quiet from then on."""
    hooks, trainer = attached(tmp_path)
    monkeypatch.setattr("diagnostics.audit.running.window.Window.of_metrics", lambda _: 1 / 0)
    trainer.train(5, {})
    assert [record.getMessage() for record in caplog.records] == [
        "audit: no more looks: ZeroDivisionError: division by zero"
    ]
    assert "audit/faults" not in trainer.written[-3]
    assert hooks.guarded.watcher.steps == 1


def test_the_server_is_asked_behind_a_checkpoint(tmp_path, monkeypatch, caplog):
    """In the step after it was saved, and not more often than every so many steps."""
    asked = []
    monkeypatch.setattr(Probe, "asked", lambda self: asked.append(self.server) or 1 / 0)
    _, trainer = attached(tmp_path, server="http://127.0.0.1:9", every=4)
    trainer.train(3, {})
    assert asked == []
    trainer.train(6, {})
    assert asked == ["http://127.0.0.1:9"]
    assert "no more looks" in caplog.text


def test_a_full_disk_ends_nothing(tmp_path):
    """The lines of the log are there all the same."""
    looks = Guarded(tmp_path / "gone")
    for step in range(1, 10):
        from diagnostics.audit.recorded.readers.metrics import logged

        looks.look(step, logged(healthy(step) | {"grad_norm": 0.0}, "x"))
    looks.close()
    assert looks.watcher.scalars()["audit/faults"] == 1.0
