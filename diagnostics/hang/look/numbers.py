"""The numbers of threads, where a reader of stacks tells others than /proc has.

A process in another namespace numbers its own, and before Python 3.11 it keeps none at all: py-spy tells where the C
library describes the thread then, and there its number stands.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from diagnostics.hang.look import proc

if TYPE_CHECKING:
    from diagnostics.hang.snapshot import Thread

# Where: glibc on x86-64 and on ARM, musl.
_PLACES = (0x2D0, 0xD0, 0x30)


def numbered(pid: int, threads: tuple[Thread, ...]) -> tuple[Thread, ...]:
    """The threads by the numbers that /proc has for them; one that has none there keeps its own."""
    tasks = _tasks(pid)
    own = set(tasks.values())
    if all(thread.tid in own and thread.tid in tasks for thread in threads):
        return threads
    return tuple(replace(thread, tid=_number(pid, thread, tasks)) for thread in threads)


def _tasks(pid: int) -> dict[int, int]:
    """A thread's number in /proc, by the one that it has where it runs."""
    found = {}
    for tid in proc.threads(pid):
        _, _, rest = proc.read(pid, f"task/{tid}/status").partition("\nNSpid:")
        inner = rest.partition("\n")[0].split()
        found[int(inner[-1]) if inner else tid] = tid
    return found


def _number(pid: int, thread: Thread, tasks: dict[int, int]) -> int:
    if thread.name == "MainThread":
        return pid
    if thread.tid in tasks:
        return tasks[thread.tid]
    described = {tasks[word] for word in _words(pid, thread.tid) if word in tasks}
    return described.pop() if len(described) == 1 else thread.tid


def _words(pid: int, address: int) -> list[int]:
    try:
        with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
            memory.seek(address)
            data = memory.read(max(_PLACES) + 4)
        return [struct.unpack_from("I", data, place)[0] for place in _PLACES]
    except (OSError, ValueError, OverflowError, struct.error):
        return []
