"""`AuditCallback` in a transformers Trainer: what it sees, where it reports it, and that it ends no training."""

import json
import logging
import subprocess
import sys
from collections import deque
from types import SimpleNamespace

import pytest

from diagnostics.audit.callback import CHANGES, DOCUMENT, TrainerHooks
from diagnostics.audit.results import AuditError
from tests.diagnostics.audit_running.lines import healthy, samples

WRONG = {"grad_norm": 0.0, "frac_reward_zero_std": 0.0}


class Trainer:
    """The parts of a trainer that call callbacks: its handler, its log of samples, and its logged lines."""

    def __init__(self, folder, *, first=True):
        self.callback_handler = SimpleNamespace(callbacks=[])
        self.args = SimpleNamespace(output_dir=str(folder))
        self.state = SimpleNamespace(global_step=0, is_world_process_zero=first)
        self._logs = {}
        self.written = []

    def call(self, event, **more):
        for callback in self.callback_handler.callbacks:
            getattr(callback, event)(self.args, self.state, None, **more)
        self.written += [more["logs"]] if "logs" in more else []

    def train(self, steps, change, rows=lambda _: ()):
        self.call("on_train_begin")
        for step in range(1, steps + 1):
            self.state.global_step = step
            of_step = rows(step)
            self._logs = {
                "prompt": deque(row.prompt for row in of_step),
                "completion": deque([{"role": "assistant", "content": row.completion}] for row in of_step),
                "advantages": deque(0.0 for _ in of_step),
                "rewards": {"exact": deque(row.reward for row in of_step)},
            }
            self.call("on_log", logs=healthy(step) | change)
        self.call("on_train_end")


def run(folder, change=WRONG, rows=lambda _: (), **options):
    trainer = Trainer(folder, first=options.pop("first", True))
    callback = TrainerHooks(share=1.0, **options).attach(trainer)
    trainer.train(20, change, rows)
    return callback, trainer


def test_module_imports_nothing_heavy():
    program = (
        "import sys, diagnostics.audit.callback; "
        "print({'torch', 'transformers', 'numpy', 'click', 'jinja2'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_fault_goes_to_log_curves_and_files(tmp_path, caplog):
    caplog.set_level(logging.WARNING, logger="grpo_doctor.audit")
    _, trainer = run(tmp_path)
    assert "FAULT NUM046" in caplog.text
    assert trainer.written[-1]["audit/metrics/no_gradient"] == 1.0
    assert json.loads((tmp_path / CHANGES).read_text().splitlines()[0])["family"] == "metrics/no_gradient"
    assert json.loads((tmp_path / DOCUMENT).read_text())["outcome"] == "fault"


def test_samples_are_checked(tmp_path):
    callback, _ = run(tmp_path, {}, lambda step: samples(step, reward=0.0))
    assert "rewards/constant" in callback.window.reported


def test_healthy_training_has_no_finding(tmp_path):
    callback, trainer = run(tmp_path, {}, samples)
    assert not {family for family in callback.window.reported if not family.startswith("advantages")}
    assert trainer.written[-1]["audit/seconds"] > 0


def test_other_processes_do_nothing(tmp_path):
    callback, _ = run(tmp_path, first=False)
    assert not callback.active
    assert not list(tmp_path.iterdir())


def test_error_in_the_audit_ends_no_training(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("diagnostics.audit.watch.check_metrics", lambda _: 1 / 0)
    callback, trainer = run(tmp_path)
    assert not callback.active
    assert len(trainer.written) == 20
    assert caplog.text.count("ZeroDivisionError: division by zero") >= 1


def test_removed_options_are_refused_with_a_replacement():
    with pytest.raises(AuditError, match="audit --server URL --checkpoint DIR"):
        TrainerHooks(server="http://127.0.0.1:8000")
