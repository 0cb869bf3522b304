"""Processes of which a text says that they died before others began to wait, or beside stacks of those that do."""

from __future__ import annotations

import re

from diagnostics.hang.snapshot import DIED, FAILED, Process

# Who was ended by a time limit, or after it, is what came of a hang: SIGABRT and SIGTERM are not among these.
_DIED = re.compile(
    r"Killed process (?P<pid>\d+)|\bOOMKilled\b|oom[-_]kill event|exit(?:ed with)? (?:code|status) 137\b"
    r"|\(?exitcode: ?-(?:9|11|7)\)?|exitcode -(?:9|11|7)\b"
    r"|worker \(pid\(?s?\)? (?P<worker>\d+)\)? (?:is killed by signal|exited unexpectedly)"
    r"|[Aa] worker died or was killed|[Tt]he actor (?:died|is dead) (?:unexpectedly|because)|\bActorDiedError\b"
    r"|killed due to (?:the node running low on memory|memory pressure)"
    r"|(?:[Pp]rocess|[Ww]orker|[Ss]ubprocess\w*)\b[^\n]{0,60}? (?:(?:died|exited) unexpectedly|has abruptly died"
    r"|terminated abruptly|was killed by signal)"
    r"|Segmentation fault(?: \(core dumped\))|Bus error \(core dumped\)"
    r"|terminated (?:with|by) signal (?:SIG)?(?:KILL|SEGV|BUS)|signal 9 \(Killed\)"
    r"|[Ss]ignal (?:7|9|11) \(SIG(?:KILL|SEGV|BUS)\) received by PID (?P<got>\d+)"
    r"|exit[ _]?code ?[:=] ?-(?:7|9|11)\b|[Uu]nexpected bus error encountered in worker"
    r"|[Cc]hild process \[?(?P<child>\d+)\]? died|\b[Pp]roc \S+ died unexpectedly"
    r"|has been marked dead because|DUE TO NODE FAILURE"
    r"|srun: error: \S+: tasks? [\d,-]+: (?:Killed|Segmentation fault|Bus error)"
)
_NUMBER = re.compile(r"(?i)\bworker pid:? ?(\d+)")
# A device that the driver itself gave up.
_FAILED = re.compile(
    r"NVRM: Xid \([^)]*\): (?:48|62|64|74|79|94|95|119|120|140)\b"
    r"|fallen off the bus|GPU is lost|RmInitAdapter failed|rm_init_adapter failed"
    r"|amdgpu[^\n]{0,80}(?:ring \S+ timeout|GPU reset)"
    r"|Unable to determine the device handle|uncorrectable (?:NVLink|ECC) error"
)
# The first line of what only noticed.
_NOTICED = re.compile(
    r"Watchdog caught collective|watchdog got stuck|Timeout at NCCL work|collective timeout|Timed out waiting"
)
# vLLM's, which it prints while it compiles as well; and deaths that nobody who ends a job brings about.
_QUIET = re.compile(r"No available shared memory broadcast block")
_OF_MEMORY = re.compile(r"Killed process|OOMKilled|oom[-_]kill|memory")
# A rank's own error, line by line under its mark.
_TAGGED = re.compile(r"(?m)^\s*\[(?:rank)?(\d+)\]: ?(.*)$")
_TRACEBACK = "Traceback (most recent call last)"
_ERROR = re.compile(r"^(?:[\w.]+\.)?([A-Z]\w*(?:Error|Exception|Exit))\b(?::|$)(.*)")
# NCCL's: a rank's peer is gone. Where that ended in an error, the rank did see it.
_CLOSED = re.compile(r"NCCL WARN [^\n]{0,40}Connection closed by remote peer")
_SAW = re.compile(rf"{_TRACEBACK[:9]}|terminate called|ncclRemoteError|NCCL error|[Aa]bort")
# Errors by which a rank tells of others'.
_OF_OTHERS = re.compile(
    r"(?i)Dist\w*Error|ncclRemote|NCCL|collective|timed? ?out|connection|broken pipe|gloo|store"
)


def read(text: str) -> list[Process]:
    """Who died; nothing where that was after others had waited."""
    noticed, quiet = _NOTICED.search(text), _QUIET.search(text)
    end = noticed.start() if noticed else len(text)
    doubted = min(end, quiet.start()) if quiet else end
    found: dict[int, int | None] = {}
    for number, match in enumerate(_DIED.finditer(text, 0, end)):
        if match.start() > doubted and not _OF_MEMORY.search(match[0]):
            continue
        told = (
            match["pid"]
            or match["worker"]
            or match["got"]
            or match["child"]
            or ((near := _NUMBER.search(text, match.end(), match.end() + 400)) and near[1])
        )
        found.setdefault(int(told) if told else -1 - number, None)
    if not found and closed(text):
        found = {-1: None}
    if not found and (noticed or quiet):
        found = {-1 - rank: rank for rank in _raised(text[:doubted])}
    if not found and _FAILED.search(text):
        return [Process(-1, role=FAILED, python=False)]
    named = sorted(found.items(), key=lambda item: item[0] < 0)  # a number is told sooner or later
    return [Process(pid, rank=rank, state="Z", role=DIED) for pid, rank in named[:1]]


def closed(text: str) -> bool:
    """Whether a rank lost who it was in a collective with, and said no more."""
    return bool(_CLOSED.search(text)) and not (
        _SAW.search(text) or _NOTICED.search(text) or _QUIET.search(text)
    )


def _raised(text: str) -> list[int]:
    """Ranks whose traceback ends in an error of their own."""
    inside: set[int] = set()
    found = []
    for match in _TAGGED.finditer(text):
        rank, line = int(match[1]), match[2]
        if _TRACEBACK in line:
            inside.add(rank)
        elif rank in inside and (error := _ERROR.match(line.strip())):
            inside.discard(rank)
            if not _OF_OTHERS.search(error[0]):
                found.append(rank)
    return found
