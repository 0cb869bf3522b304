"""Known failures end the run with a named error; after Ctrl-C or SIGKILL no child process is left.

An unexpected error is raised.
"""

import contextlib
import json
import os
import select
import signal
from pathlib import Path

import pytest

from grpo_core import run
from grpo_core.rollout.server import process as server_process
from grpo_core.rollout.transformers_engine import TransformersEngine
from grpo_core.tasks.rewards import Scorer
from tests.processes import is_running, wait_until


def ends_within(pid: int, within_s: float) -> bool:
    """Wait for another process's child to end by its pidfd; return whether it did in time."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], within_s)[0])
    finally:
        os.close(handle)


@pytest.mark.parametrize("mode", ["async", "server"])
def test_killed_engine_ends_the_run_with_a_named_error(short_run, trainer, monkeypatch, mode):
    """When the engine is killed after step 2 of 50, the error has the signal, and the run ends before step 5."""
    servers = []

    def start(*arguments):
        servers.append(trainer.start_server(*arguments))
        return servers[-1]

    def kill(entry):
        if entry["step"] == 2:
            servers[0].kill()

    monkeypatch.setattr(server_process, "start_child", start)

    document = run.train(short_run(mode, **{"train.steps": 50}), kill)
    assert document["outcome"] == "failed"
    assert document["error"].startswith("EngineError: ")
    assert "its process ended with signal 9" in document["error"]
    assert 2 <= document["steps"] < 5
    assert [server.returncode for server in servers] == [-signal.SIGKILL]


def test_stale_weights_end_the_run(short_run, monkeypatch):
    """An engine that drops an update is noticed before a step is trained on its samples."""
    honest = TransformersEngine.update_weights

    def forgetful(self, tensors, version):
        if version == 2:
            self.policy_version, self._unusable = version, ""
        else:
            honest(self, tensors, version)

    monkeypatch.setattr(TransformersEngine, "update_weights", forgetful)
    document = run.train(short_run(), lambda entry: None)
    assert document["outcome"] == "failed"
    assert document["error"].startswith("SyncError: weight sync to the transformers engine: after version 2")
    assert document["steps"] == 2


def test_failing_reward_function_ends_the_run(short_run, tmp_path):
    """The error has the numbers of returned rewards and of completions."""
    (tmp_path / "broken.py").write_text("def judge(completions):\n    return []\n")
    settings = {"reward.functions": f"{tmp_path}/broken.py:judge"}
    document = run.train(short_run(**settings), lambda entry: None)
    assert document["outcome"] == "failed"
    assert "returned 0 rewards for 16 completions" in document["error"]


def test_unexpected_error_is_raised(short_run, monkeypatch):
    monkeypatch.setattr(Scorer, "groups", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run.train(short_run(), lambda entry: None)


@contextlib.contextmanager
def training(short_run, trainer, mode, *, forks=False):
    """Run `train` as a program; yield it after its first step is logged, and kill it when the block ends.

    With `forks` its rollout server is forked, which takes 7 s less than a start of Python.
    """
    folder = Path(short_run(mode).output.dir)
    command = ["grpo_core", "train", f"--rollout.mode={mode}", f"--output.dir={folder}", "--output.name=r"]
    command += ["--train.steps=100000", "--train.prompts_per_step=2", "--json"]
    process = trainer.start_server(command, threads=1, forks=forks)
    metrics = folder / "r" / "metrics.jsonl"

    def has_logged() -> bool:
        assert is_running(process.pid), "it ended before the first step"
        return metrics.exists() and metrics.stat().st_size > 0

    try:
        wait_until(has_logged)
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.wait(500)
        process.stdin.close()
        process.stdout.close()


@pytest.mark.slow
@pytest.mark.parametrize("mode", [pytest.param("async", marks=pytest.mark.long), "server"])
def test_ctrl_c_keeps_logs_and_ends_children(short_run, trainer, children, capfd, mode):
    """The run exits with 130, prints one JSON document, has complete log lines and leaves no child process."""

    def programs():
        return {pid for monitor in children(trainer.pid) for pid in children(monitor)}

    before = programs()
    with training(short_run, trainer, mode, forks=True) as process:
        (child,) = programs() - before - {process.pid}
        process.send_signal(signal.SIGINT)
        document = json.loads(process.stdout.read())
        assert process.wait(500) == 130
    assert "Traceback" not in capfd.readouterr().err
    assert document["outcome"] == "interrupted"
    lines = Path(document["metrics"]).read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(1, document["steps"] + 1))
    assert ends_within(child, within_s=0)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["async", pytest.param("server", marks=pytest.mark.long)])
def test_child_ends_after_trainer_is_killed(short_run, trainer, children, mode):
    """SIGKILL gives the trainer no chance to clean up; its child notices by itself."""
    with training(short_run, trainer, mode) as process:
        (child,) = children(process.pid)
        process.kill()
        assert process.wait(500) == -signal.SIGKILL
        assert ends_within(child, within_s=500)
