"""Stacks that were read whole: which way round they stand, which are of a moment that is over, which is main."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from diagnostics.hang.read import marks
from diagnostics.hang.read.pyspy import BEGINNINGS, started
from diagnostics.hang.snapshot import Thread


def left(item: dict[str, Any]) -> bool:
    """Whether the stack is of a moment that is over, or of who only noticed."""
    return bool(item["gone"]) or any(marks.AFTER.search(frame.function) for frame in item["frames"])


def with_main(threads: list[Thread]) -> tuple[Thread, ...]:
    """Names the main thread, where none is called so: the last that nothing started."""
    if not any(t.name == "MainThread" for t in threads):
        # faulthandler puts the thread that was started first last; gdb and pystack name it by the process.
        for n in reversed(range(len(threads))):
            if not started(threads[n]):
                threads[n] = replace(threads[n], name="MainThread")
                break
    return tuple(threads)


def _outermost_first(item: dict[str, Any]) -> bool:
    """As its head says; without one, by which neighbour a frame's line of source calls, or where a program begins."""
    names = [frame.function for frame in item["frames"]]
    below = above = 0
    for n, line in item["sources"].items():
        below += n + 1 < len(names) and f"{names[n + 1]}(" in line
        above += n > 0 and f"{names[n - 1]}(" in line
    if item["told"]:
        return bool(item["reverse"])
    begins = [name in (*BEGINNINGS, "<module>") for name in (names[0], names[-1])]
    if below == above and begins[0] != begins[1]:
        return begins[0]
    return bool(item["reverse"]) if below == above else below > above


def thread(item: dict[str, Any]) -> Thread:
    """The thread of what was read, its innermost frame first."""
    frames = tuple(reversed(item["frames"])) if _outermost_first(item) else tuple(item["frames"])
    return Thread(item["id"], item["name"], frames, stem=len(frames), samples=1, gil=item["gil"])
