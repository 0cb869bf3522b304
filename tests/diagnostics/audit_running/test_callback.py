"""`AuditCallback` in a transformers Trainer: what it sees, where it reports it, and that it ends no training."""

import json
import logging
import subprocess
import sys
from types import SimpleNamespace

from diagnostics.audit.callback import DOCUMENT, AuditCallback
from tests.diagnostics.audit_running.lines import healthy

WRONG = {"grad_norm": 0.0, "frac_reward_zero_std": 0.0}


def train(folder, change, *, first=True):
    """Call the hooks of 20 steps as a trainer does; return the callback and the logged lines."""
    trainer = SimpleNamespace(callback_handler=SimpleNamespace(callbacks=[]))
    callback = AuditCallback().attach(trainer)
    assert trainer.callback_handler.callbacks == [callback]
    args = SimpleNamespace(output_dir=str(folder))
    state = SimpleNamespace(global_step=0, is_world_process_zero=first)
    lines = [healthy(step) | change for step in range(1, 21)]
    callback.on_train_begin(args, state, None)
    for state.global_step, logs in enumerate(lines, 1):
        callback.on_log(args, state, None, logs=logs)
    callback.on_train_end(args, state, None)
    return callback, lines


def test_module_imports_only_what_a_trainer_has():
    program = "import sys, diagnostics.audit.callback; print({'click', 'rich'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_fault_goes_to_log_curves_and_files(tmp_path, caplog):
    caplog.set_level(logging.WARNING, logger="grpo_doctor.audit")
    _, lines = train(tmp_path, WRONG)
    assert "FAULT NUM046" in caplog.text
    assert lines[-1]["audit/metrics/no_gradient"] == 1.0
    assert json.loads((tmp_path / DOCUMENT).read_text())["outcome"] == "fault"


def test_healthy_training_has_no_finding(tmp_path):
    callback, lines = train(tmp_path, {})
    assert not callback.findings.reported
    assert lines[-1]["audit/seconds"] > 0


def test_other_processes_do_nothing(tmp_path):
    callback, _ = train(tmp_path, WRONG, first=False)
    assert not callback.active
    assert not list(tmp_path.iterdir())


def test_error_in_the_audit_ends_no_training(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("diagnostics.audit.finding_tracker.check_metrics", lambda _: 1 / 0)
    callback, _ = train(tmp_path, WRONG)
    assert not callback.active
    assert caplog.text.count("ZeroDivisionError: division by zero") >= 1
