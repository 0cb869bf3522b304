"""The hook in our own trainer: it sees metrics and completions, and what it finds stands in the run's folder."""

from __future__ import annotations

import json
import logging

import pytest

from diagnostics.audit.running.hook import AuditReport

pytest.importorskip("torch")


def run(folder, change=None, steps=6):
    """A run of our trainer with the hook, which is told a change; returns the hook and what it handed on."""
    from grpo_core.run import train
    from grpo_core.settings import load

    words = [
        f"--train.steps={steps}",
        f"--output.dir={folder}",
        "--output.name=run",
        "--output.completions_every=1",
    ]
    handed = []
    hook = AuditReport(folder / "run", handed.append, share=1.0)
    train(load(None, words), lambda entry: hook(entry | (change or {})))
    hook.close()
    return hook, handed


def test_a_healthy_run_is_clean(tmp_path):
    """Samples were looked at, and each step's metrics were handed on."""
    hook, handed = run(tmp_path)
    made = json.loads((tmp_path / "run" / "audit.json").read_text())
    assert made["outcome"] == "clean"
    assert {"metrics", "samples", "ends"} <= {answer["family"] for answer in made["answers"]}
    assert [entry["step"] for entry in handed] == list(range(1, 7))
    assert hook.guarded.watcher.left_out == 0


def test_a_fault_is_told_while_it_runs(tmp_path, caplog):
    """A learning rate of 0, as the third line shows it and the fourth confirms."""
    caplog.set_level(logging.WARNING, logger="grpo_doctor.audit")
    run(tmp_path, {"lr": 0.0})
    assert "step 4: FAULT CFG128" in caplog.text
    made = json.loads((tmp_path / "run" / "audit.json").read_text())
    assert made["outcome"] == "fault"


def test_what_there_is_no_time_for_is_not_read_later(tmp_path):
    """Completions of a step that was left out are skipped; metrics are looked at all the same."""
    path = tmp_path / "completions.jsonl"
    path.write_text('{"step": 1}\n')
    hook = AuditReport(tmp_path, share=0.0)
    for step in range(1, 4):
        hook({"step": step, "loss": 0.0, "grad_norm": 1.0})
    assert (hook.guarded.watcher.steps, hook.guarded.watcher.left_out) == (3, 3)
    assert hook._completions.more() == ([], False)
    hook.close()
