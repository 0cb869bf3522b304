"""Find the processes of a job, and the role and rank of each.

`select_processes` chooses from the process table by id, by pattern, or by role, with descendants and the other ranks of
the job. A process with the environment variable RANK may be the trainer of that rank. Other roles, and the ranks of
engine workers, come from process titles.
"""

import os
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from diagnostics.collect.blocking_reads import UNANSWERED, list_pids
from diagnostics.hang.collect import proc

MAX_PROCESSES = 512
SURVEY_S = 10.0
"""Limit of processor time for the titles of all processes, and for their descriptors."""
_JOB_ROLES = {"engine core", "engine worker", "engine", "Ray actor", "launcher", "server", "trainer"}
_PYTHON = re.compile(r"(?i)python|^VLLM::|^ray::|^sglang::|pt_main_thread|uvicorn|torchrun|vllm|trl|pytest")
# Roles by command line, each with a pattern; the first match decides. Ray and vLLM set the titles of their processes.
_ROLES_TEXT = Path(__file__).with_name("roles.txt").read_text(encoding="utf-8")
_ROLES = [line.split(": ", 1) for line in _ROLES_TEXT.splitlines()]
SERVICES = ("helper", "raylet", "Ray's head service", "Ray's helper", "idle Ray worker")
"""Roles that serve a job without being part of it; being idle is normal for them."""
_WORKER = re.compile(r"^VLLM::Worker(?:_\w*?TP(\d{1,4}))?|TP(\d{1,4})")


def role_of_title(title: str) -> tuple[str, int | None]:
    """Return the role and the rank that a process title names; `process` if it names none.

    >>> role_of_title("VLLM::Worker_TP1"), role_of_title("ray::Trainer.step"), role_of_title("python train.py")
    (('engine worker', 1), ('Ray actor', None), ('process', None))
    """
    name = next((name for name, pattern in _ROLES if re.search(pattern, title)), "process")
    match = _WORKER.match(title) if name == "engine worker" else None
    number = next((part for part in match.groups() if part), None) if match else None
    return name, int(number) if number else None


@dataclass
class ProcessEntry:
    """A process of the process table."""

    pid: int
    ppid: int
    uid: int | None
    title: str
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def python(self) -> bool:
        """Whether the program or the title is that of a Python process; py-spy is run only on these."""
        try:
            program = os.path.basename(os.readlink(f"/proc/{self.pid}/exe"))  # noqa: PTH115, PTH119
        except OSError:
            program = ""
        return bool(_PYTHON.search(program) or _PYTHON.search(self.title.split(" ")[0]))


ProcessTable = dict[int, ProcessEntry]
"""Processes by id."""


def process_table(*, titles: bool = True) -> ProcessTable:
    """Return the visible processes by id, without their environment variables.

    Titles are read for SURVEY_S at most, first those of this user; other processes are then in UNANSWERED.
    """
    entries, end = {}, time.process_time() + SURVEY_S
    for pid in sorted(list_pids(), key=lambda pid: proc.owner_uid(pid) != os.geteuid()):
        fields = proc.stat_fields(pid)
        UNANSWERED.update({pid} if time.process_time() > end else ())
        if len(fields) > 1:
            title = proc.command_line(pid) if titles else ""
            entries[pid] = ProcessEntry(pid, int(fields[1]), proc.owner_uid(pid), title)
    return entries


def ancestors(processes: ProcessTable, pid: int) -> set[int]:
    """Return a process and all its ancestors."""
    pids: set[int] = set()
    while pid in processes and pid not in pids:
        pids.add(pid)
        pid = processes[pid].ppid
    return pids


def descendants(processes: ProcessTable, tops: Iterable[int]) -> set[int]:
    """Return processes and all their descendants."""
    children: dict[int, list[int]] = {}
    for entry in processes.values():
        children.setdefault(entry.ppid, []).append(entry.pid)
    pids, queue = set(), list(tops)
    while queue:
        pid = queue.pop()
        if pid not in pids and pid in processes:
            pids.add(pid)
            queue += children.get(pid, [])
    return pids


def role_of(processes: ProcessTable, entry: ProcessEntry) -> tuple[str, int | None]:
    """Return the role and the rank of a process; the rank is None if it is unknown or the process is no rank.

    A rank is the outermost Python process with its RANK: shell wrappers and children inherit the variable.
    """
    value, parent = entry.environment.get("RANK", ""), processes.get(entry.ppid)
    rank = proc.small_int(value)
    if rank is None or not _may_be_rank(processes, entry):
        return role_of_title(entry.title)
    while parent is not None and parent.environment.get("RANK") == value:
        if _may_be_rank(processes, parent):
            return role_of_title(entry.title)
        parent = processes.get(parent.ppid)
    return "trainer", rank


def _may_be_rank(processes: ProcessTable, entry: ProcessEntry) -> bool:
    """Return whether a process with RANK may be that rank: a Python program that is no launcher."""
    # A rank may be started by a program that is named like a server's.
    labelled = role_of_title(entry.title)[0] in ("process", "server")
    rank = entry.environment.get("RANK")
    # A launcher sets other ranks for its children.
    children = (process for process in processes.values() if process.ppid == entry.pid)
    launches = any(child.environment.get("RANK", rank) != rank for child in children)
    return labelled and entry.python and not launches


def select_processes(processes: ProcessTable, pids: Sequence[int], pattern: str, *, own_pid: int) -> set[int]:
    """Return the requested processes, their descendants, and the other ranks of the same job and user.

    Without pids and a pattern, processes of the caller or root that look like part of a job count as requested. A few
    environment variables of all processes are read into their entries.

    Args:
        processes: All visible processes.
        pids: Processes that were named.
        pattern: Pattern for command lines.
        own_pid: Our own process id, which is never returned; neither this process nor an ancestor matches a pattern.
    """
    for entry in processes.values():
        entry.environment = proc.environment(entry.pid)
    excluded = ancestors(processes, own_pid)
    candidates = {pid: entry for pid, entry in processes.items() if pid not in excluded}
    tops = set(pids)
    if pattern:
        matcher = re.compile(pattern)
        tops |= {pid for pid, entry in candidates.items() if matcher.search(entry.title)}
    if not (pids or pattern):
        own_or_roots = [entry for entry in candidates.values() if entry.uid in {os.geteuid(), 0}]
        tops |= {e.pid for e in own_or_roots if role_of(processes, e)[0] in _JOB_ROLES}
    chosen = descendants(processes, tops) - {own_pid}
    jobs = {job_address(processes[pid].environment) for pid in chosen} - {""}
    # A process of another user could join any job by its environment.
    owners = {processes[pid].uid for pid in chosen}
    mates = {e.pid for e in candidates.values() if e.uid in owners and job_address(e.environment) in jobs}
    return descendants(processes, chosen | mates) - {own_pid}


def job_address(environment: dict[str, str]) -> str:
    """Return the address of the ranks' rendezvous store, which identifies the job; empty without RANK."""
    if "RANK" not in environment:
        return ""
    return f"{environment.get('MASTER_ADDR', '')}:{environment.get('MASTER_PORT', '')}"
