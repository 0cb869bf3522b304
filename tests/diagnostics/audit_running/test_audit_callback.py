"""`AuditCallback` reports faults to log, scalars and a JSON file, on rank 0 only; its errors do not stop the training.

A simulated trainer calls its hooks. `diagnostics.audit.callback` imports neither click nor rich.
"""

import json
import logging
from types import SimpleNamespace

from diagnostics.audit.callback import DOCUMENT, AuditCallback
from tests.diagnostics.audit_running.metric_lines import healthy_metrics
from tests.processes import run_python

NO_GRADIENT = {"grad_norm": 0.0, "frac_reward_zero_std": 0.0}


def train(folder, change, *, is_rank_0=True):
    """Call the hooks of 20 steps as a Trainer does, with changed metrics; return the callback and the metrics."""
    trainer = SimpleNamespace(callback_handler=SimpleNamespace(callbacks=[]))
    callback = AuditCallback().attach(trainer)
    assert trainer.callback_handler.callbacks == [callback]
    args = SimpleNamespace(output_dir=str(folder))
    state = SimpleNamespace(global_step=0, is_world_process_zero=is_rank_0)
    lines = [healthy_metrics(step) | change for step in range(1, 21)]
    callback.on_train_begin(args, state, None)
    for state.global_step, logs in enumerate(lines, 1):
        callback.on_log(args, state, None, logs=logs)
    callback.on_train_end(args, state, None)
    return callback, lines


def test_callback_module_imports_neither_click_nor_rich():
    program = (
        "import sys; from types import SimpleNamespace; "
        "sys.modules['transformers'] = SimpleNamespace(TrainerCallback=object); "
        "import diagnostics.audit.callback; print({'click', 'rich'} & sys.modules.keys())"
    )
    done = run_python("-c", program, check=True)
    assert done.stdout.strip() == "set()"


def test_fault_is_logged_and_written_as_scalar_and_document(tmp_path, caplog):
    caplog.set_level(logging.WARNING, logger="grpo_doctor.audit")
    _, lines = train(tmp_path, NO_GRADIENT)
    assert "FAULT NUM046" in caplog.text
    assert lines[-1]["audit/metrics/no_gradient"] == 1.0
    assert json.loads((tmp_path / DOCUMENT).read_text())["outcome"] == "fault"


def test_healthy_training_has_no_fault(tmp_path):
    callback, lines = train(tmp_path, {})
    assert not callback.findings.reported
    assert lines[-1]["audit/faults"] == 0


def test_other_ranks_do_nothing(tmp_path):
    callback, _ = train(tmp_path, NO_GRADIENT, is_rank_0=False)
    assert not callback.active
    assert not list(tmp_path.iterdir())


def test_error_in_the_audit_does_not_stop_the_training(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("diagnostics.audit.finding_tracker.check_metrics", lambda _: 1 / 0)
    callback, _ = train(tmp_path, NO_GRADIENT)
    assert not callback.active
    assert caplog.text.count("ZeroDivisionError: division by zero") >= 1


def test_error_in_the_last_document_does_not_stop_the_training(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("diagnostics.audit.callback.make_document", lambda _: 1 / 0)
    train(tmp_path, {})
    assert "ZeroDivisionError: division by zero" in caplog.text
