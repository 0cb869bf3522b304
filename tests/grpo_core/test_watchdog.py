"""A run that stands still is noticed, and where."""

import threading

from grpo_core.machine.watchdog import Watchdog


def test_a_stall_writes_the_stacks_of_all_threads(tmp_path):
    """The function that everything waits in is named; beats before it wrote nothing."""
    path = tmp_path / "stalls.txt"
    watchdog = Watchdog(path, 0.2)
    for _ in range(5):
        watchdog.beat()
    assert path.read_text() == ""

    def waits_for_nobody():
        seen = threading.Event()
        while "waits_for_nobody" not in path.read_text():
            seen.wait(0.05)

    waits_for_nobody()
    watchdog.close()
    assert "Timeout" in path.read_text()


def test_not_asked_for_it_leaves_no_file(tmp_path):
    """Zero seconds: nothing is watched."""
    watchdog = Watchdog(tmp_path / "stalls.txt", 0.0)
    watchdog.beat()
    watchdog.close()
    assert not (tmp_path / "stalls.txt").exists()
