"""Which processes belong to the job, and what each is in it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from diagnostics.hang import roles
from diagnostics.hang.look import proc

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MOST = 512
_KNOWN = {"engine core", "engine worker", "engine", "Ray actor", "launcher", "server", "trainer"}
_PYTHON = re.compile(
    r"python|^VLLM::|^ray::|^sglang::|pt_main_thread|uvicorn|torchrun|vllm|trl|pytest", re.IGNORECASE
)


@dataclass
class Found:
    """A process, before it is looked into."""

    pid: int
    ppid: int
    uid: int | None
    title: str
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def python(self) -> bool:
        """Whether it looks like a Python: by its program, title or mapped library; else py-spy is not asked."""
        try:
            program = os.path.basename(os.readlink(f"/proc/{self.pid}/exe"))  # noqa: PTH115, PTH119
        except OSError:
            program = ""
        return bool(_PYTHON.search(program) or _PYTHON.search(self.title.split(" ")[0]))


def table() -> dict[int, Found]:
    """All processes that are visible here, without their environment."""
    found = {}
    for pid in proc.pids():
        fields = proc.stat(pid)
        if len(fields) > 1:
            found[pid] = Found(pid, int(fields[1]), proc.uid(pid), proc.title(pid))
    return found


def ancestors(processes: dict[int, Found], pid: int) -> set[int]:
    """A process and all above it."""
    line: set[int] = set()
    while pid in processes and pid not in line:
        line.add(pid)
        pid = processes[pid].ppid
    return line


def below(processes: dict[int, Found], tops: Iterable[int]) -> set[int]:
    """Processes and all that they started."""
    children: dict[int, list[int]] = {}
    for item in processes.values():
        children.setdefault(item.ppid, []).append(item.pid)
    found, left = set(), list(tops)
    while left:
        pid = left.pop()
        if pid not in found and pid in processes:
            found.add(pid)
            left += children.get(pid, [])
    return found


def role(processes: dict[int, Found], item: Found) -> tuple[str, int | None]:
    """(what it is, its rank); a child has its parent's variables, and is no rank for that."""
    parent = processes.get(item.ppid)
    ranked = _ranked(item, parent.environment if parent else {})
    name, number = roles.by_title(item.title)
    # A rank may be started by a program that is called like a server's.
    if ranked and name in ("process", "server"):
        return "trainer", int(item.environment["RANK"])
    return name, number


def _ranked(item: Found, inherited: dict[str, str]) -> bool:
    own = item.environment.get("RANK", "")
    return own.isdecimal() and own != inherited.get("RANK")


def select(
    processes: dict[int, Found], pids: Sequence[int], pattern: str, *, everything: bool, ours: int
) -> set[int]:
    """The processes that were asked for, with all below them and the ranks of the same job.

    Args:
        processes: all that are visible.
        pids: that were named.
        pattern: that a command line must match.
        everything: all processes of the caller that look like parts of a job.
        ours: this process; neither it nor what is above it is ever found by a pattern.
    """
    own = ancestors(processes, ours)
    for item in processes.values():
        item.environment = proc.environment(item.pid)
    tops = set(pids)
    if pattern:
        seek = re.compile(pattern)
        tops |= {pid for pid, item in processes.items() if pid not in own and seek.search(item.title)}
    if everything or not (pids or pattern):
        mine = os.geteuid()
        tops |= {
            pid
            for pid, item in processes.items()
            if pid not in own and (mine in {item.uid, 0}) and role(processes, item)[0] in _KNOWN
        }
    found = below(processes, tops) - {ours}
    jobs = {job(processes[pid].environment) for pid in found} - {""}
    mates = {p for p, item in processes.items() if p not in own and job(item.environment) in jobs}
    return below(processes, found | mates) - {ours}


def job(environment: dict[str, str]) -> str:
    """What tells one group of ranks from another: the address of their store."""
    if "RANK" not in environment:
        return ""
    return f"{environment.get('MASTER_ADDR', '')}:{environment.get('MASTER_PORT', '')}"
