"""A stuck run is detected, with the blocking stack."""

import re
import sys
import threading

import pytest

from grpo_core.config import ConfigError, TrainConfig
from grpo_core.machine import process
from grpo_core.machine.process import Watchdog


def stand_until(path, pattern):
    """Wait for what the watchdog itself writes."""
    never = threading.Event()
    while not (path.exists() and re.search(pattern, path.read_text())):
        never.wait(0.05)


def test_a_stall_writes_the_stacks_of_all_threads(tmp_path):
    """The function that everything waits in is named; beats before it wrote nothing."""
    path = tmp_path / "stalls.txt"
    watching = Watchdog(path, TrainConfig(stall_s=0.2))
    for _ in range(5):
        watching.beat()
    assert path.read_text() == ""
    stand_until(path, "stand_until")
    watching.close()
    watching.close()
    assert "Timeout" in path.read_text()


@pytest.mark.slow
def test_a_stall_is_looked_at_from_outside(tmp_path):
    """A separate process takes the stacks, writes them to a file, and ends with the run."""
    watching = Watchdog(tmp_path / "stalls.txt", TrainConfig(stall_s=0.2, stall_look=True))
    watching.beat()
    stand_until(tmp_path / "hang.txt", r"train: no heartbeat[\s\S]*process(es)? observed for")
    watching.close()
    assert watching._observer.returncode == 0


def test_what_looks_is_asked_for_before_the_run(tmp_path, monkeypatch):
    """If the diagnostics package is not installed, the trainer reports it at the start."""
    monkeypatch.setattr(process, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"train\.stall_look = true: needs grpo-doctor itself"):
        Watchdog(tmp_path / "stalls.txt", TrainConfig(stall_s=0.2, stall_look=True))
    assert "diagnostics" not in {name.partition(".")[0] for name in vars(sys.modules[Watchdog.__module__])}
