"""Parse the text of `py-spy dump`, and of `ray stack`, which calls it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from diagnostics.hang.collect.stacks import last_part
from diagnostics.hang.snapshot import Process, StackFrame, Thread

_PROCESS = re.compile(r"\s{0,20}Process (\d{1,9}): ?(.*)$")
# `ray stack` prints a line of ps above each process.
_RAY_STACK = re.compile(
    r"\s{0,20}Stack dump for \S{1,80}\s+(\d{1,9})\s.{0,200}?\d+:\d+\s+(?:\d+:\d+\s+)?(.*)$"
)
_THREAD = re.compile(
    r"\s{0,20}Thread (?:(0x[0-9a-fA-F]{1,16}|\d{1,16})(?:\s{0,4}\(([\w+ ]+)\))?|\(((?:active|idle)[\w+ ]*)\))"
    r'(?::? ?"([^"]*)"?)?'
)
_FRAME = re.compile(r"\s+([^\s(][^(]{0,300}?) \((.{1,300}?)(?::(\d{1,7}))?\)\s*$")
# The same without indentation.
_FLAT_FRAME = re.compile(r"([\w.<>:]{1,200}) \((\S{1,300}\.(?:pyx?|c|cc|cpp|h|rs|so[.\d]*)):(\d{1,7})\)$")
RANK_HEADING = re.compile(
    r"(?i)(?:\W{0,12}(?:(?:local|global|tp|dp|pp)[ _-]?)?rank\s?[:=#]?\s?(\d{1,6})\b.{0,40}"
    r"|[\w ,.'*-]{1,60} rank[ _]?(\d{1,6})\b[^.!?]{0,40}:\W*)$"
)
_COMMAND = re.compile(r"\bdump\b.{0,80}?(?:-p|--pid)[ =](\d{1,9})")


@dataclass
class _ProcessDraft:
    pid: int
    title: str = ""
    rank: int | None = None
    threads: list[Thread] = field(default_factory=list)


def rank_heading(line: str) -> int | None:
    """Return the rank that a heading names, as "rank 1" or "Stack of local rank 1:"."""
    match = RANK_HEADING.match(line) if len(line) <= 120 else None
    return int(match[1] or match[2]) if match else None


def parse_text(lines: list[str]) -> list[Process]:
    """Return the processes of one or more dumps, ignoring other lines."""
    drafts: list[_ProcessDraft] = []
    pid, rank, in_thread = 0, None, False
    for line in lines:
        if command := _COMMAND.search(line):
            pid = int(command[1])
        heading = rank_heading(line)
        if match := _PROCESS.match(line) or _RAY_STACK.match(line):
            drafts.append(_ProcessDraft(int(match[1]), match[2].strip(), rank))
            rank, in_thread = None, False
        elif heading is not None:
            rank, in_thread = heading, False
            drafts.append(_ProcessDraft(0, "", rank))
        elif match := _THREAD.match(line):
            if not drafts:
                drafts.append(_ProcessDraft(pid or 1, "", rank))
            drafts[-1].threads.append(_thread(match, len(drafts[-1].threads)))
            in_thread = True
        elif in_thread and (match := _FRAME.match(line) or _FLAT_FRAME.match(line)):
            frame = StackFrame(match[2], last_part(match[1].strip()), int(match[3] or 0))
            thread = drafts[-1].threads[-1]
            drafts[-1].threads[-1] = replace(
                thread, frames=(*thread.frames, frame), stem=len(thread.frames) + 1
            )
        elif line.strip() and not line.startswith((" ", "\t")):
            in_thread = False
    processes = [_process(draft) for draft in drafts if draft.threads]
    return processes if any(thread.frames for p in processes for thread in p.threads) else []


def _thread(match: re.Match[str], number: int) -> Thread:
    state = match[2] or match[3] or ""
    return Thread(
        tid=int(match[1], 0) if match[1] else -1 - number,
        name=match[4] or "",
        samples=1,
        active=state.startswith("active"),
        gil="gil" in state,
    )


def _process(draft: _ProcessDraft) -> Process:
    threads = tuple(draft.threads)
    if not any(thread.name == "MainThread" or thread.tid == draft.pid for thread in threads):
        # Older releases print no names.
        threads = tuple(
            replace(thread, name="MainThread")
            if thread.frames and thread.frames[-1].function == "<module>"
            else thread
            for thread in threads
        )
    role = "trainer" if draft.rank is not None else "process"
    return Process(draft.pid or 1, title=draft.title, threads=threads, rank=draft.rank, role=role)
