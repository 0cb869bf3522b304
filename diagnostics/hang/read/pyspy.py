"""py-spy's stacks: its JSON, and its text as people paste it into an issue."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from diagnostics.hang.plain import whole_words
from diagnostics.hang.snapshot import Process, StackFrame, Thread

_PROCESS = re.compile(r"^\s*Process (\d+): ?(.*)$")
_VERSION = re.compile(r"^\s*Python v(\d\S*)(?: \((.*)\))?")
# `ray stack` puts a line of ps above each.
_STACK_DUMP = re.compile(r"^\s*Stack dump for \S+\s+(\d+)\s.*?\d+:\d+\s+(.*)$")
_THREAD = re.compile(
    r'^\s*Thread (?:(0x[0-9a-fA-F]+|\d+)(?:\s*\(([\w+ ]+)\))?|\(((?:active|idle)[\w+ ]*)\))(?::? ?"([^"]*)"?)?'
)
_FRAME = re.compile(r"^\s+([^\s(][^(]*?) \((.+?)(?::(\d+))?\)\s*$")
# The same where its indentation was lost.
_FLAT = re.compile(r"^([\w.<>:]{1,200}) \((\S{1,300}\.(?:pyx?|c|cc|cpp|h|rs|so[.\d]*)):(\d+)\)$")
# Two frames one below the other, as a dashboard of Ray shows a stack: without a line for the thread.
_BARE = re.compile(r"(?m)(?:^[ \t]+[\w.<>]+ \(\S{1,300}\.py:\d+\)[ \t]*\n){2}")
# What somebody says before it on the same line.
_SAID = re.compile(r"(?m)^[^\n]{1,80}?[:\uff1a] ?(?=Thread (?:0x[0-9a-fA-F]+|\d+) \((?:active|idle))")
# A heading that names a rank, or a line with a colon at its end, as "Stack of local rank 1:".
RANK = re.compile(
    r"(?i)^(?=.{1,120}$)(?:\W{0,12}(?:(?:local|global|tp|dp|pp)[ _-]?)?rank\s?[:=#]?\s?(?P<a>\d+)\b.{0,40}"
    r"|[\w ,.'*-]{1,60} rank[ _]?(?P<b>\d+)\b[^.!?]{0,40}:\W*)$"
)
_CALLED = re.compile(r"(?:py-spy.*)?\bdump\b.*?(?:-p|--pid)[ =](\d+)")


def threads(document: Any) -> dict[int, tuple[Thread, ...]]:
    """The threads of `py-spy dump --json`, by process.

    Raises:
        KeyError, TypeError: It is something else.
    """
    found: dict[int, list[Thread]] = {}
    for item in document:
        frames = tuple(_frame(frame) for frame in item["frames"])
        found.setdefault(int(item["pid"]), []).append(
            Thread(
                tid=int(item.get("os_thread_id") or item.get("thread_id") or 0),
                name=whole_words(str(item.get("thread_name") or ""), 80),
                frames=frames,
                stem=len(frames),
                samples=1,
                active=bool(item.get("active")),
                gil=bool(item.get("owns_gil")),
            )
        )
    return {pid: tuple(items) for pid, items in found.items()}


def _frame(item: Any) -> StackFrame:
    # From Python 3.11 on names are qualified; older ones and older tools know the last part alone.
    name = last(str(item["name"]))
    return StackFrame(str(item.get("filename") or item.get("module") or ""), name, int(item.get("line") or 0))


def last(name: str) -> str:
    """The last part of a qualified name.

    >>> last("Queue.get"), last("run.<locals>.<lambda>")
    ('get', '<lambda>')
    """
    return name.rpartition(".")[2] or name


def is_text(text: str) -> bool:
    """Whether some lines look like `py-spy dump`."""
    lines = _SAID.sub("", text).splitlines()
    # A process without a frame of Python has threads all the same.
    whole = any(_PROCESS.match(line) for line in lines) and any(_VERSION.match(line) for line in lines)
    return any(_THREAD.match(line) for line in lines) and (
        whole or any(_FRAME.match(line) or _FLAT.match(line) for line in lines)
    )


def bare(text: str) -> list[Process]:
    """The one thread of a stack that has no line for it; none if there is no such stack."""
    match = _BARE.search(text)
    return from_text(f"Thread 1\n{text[match.start() :]}") if match else []


def from_text(text: str) -> list[Process]:
    """The processes of one or more dumps, whatever stands around them."""
    found: list[dict[str, Any]] = []
    thread: dict[str, Any] | None = None
    asked, rank = 0, None
    for line in _SAID.sub("", text).splitlines():
        line = line.removeprefix(">").rstrip() if line.startswith(">") else line.rstrip()  # noqa: PLW2901 - quoted
        if match := _CALLED.search(line):
            asked = int(match[1])
        if match := _PROCESS.match(line) or _STACK_DUMP.match(line):
            found.append({"pid": int(match[1]), "title": match[2].strip(), "threads": [], "rank": rank})
            thread = rank = None
        elif match := RANK.match(line):
            rank, thread = int(match["a"] or match["b"]), None
            found.append({"pid": 0, "title": "", "threads": [], "rank": rank})
        elif match := _THREAD.match(line):
            if not found:
                found.append({"pid": asked or 1, "title": "", "threads": [], "rank": rank})
            thread = _thread(match, len(found[-1]["threads"]))
            found[-1]["threads"].append(thread)
        elif thread is not None and (match := _FRAME.match(line) or _FLAT.match(line)):
            thread["frames"].append(StackFrame(match[2], last(match[1].strip()), int(match[3] or 0)))
        elif line.strip() and not line.startswith((" ", "\t")):
            thread = None
    return [_process(item) for item in found if item["threads"]]


def _thread(match: re.Match[str], before: int) -> dict[str, Any]:
    state = match[2] or match[3] or ""
    return {
        "id": int(match[1], 0) if match[1] else -1 - before,
        "state": state,
        "name": match[4] or "",
        "frames": [],
    }


def started(thread: Thread) -> bool:
    """Whether another thread started it: then it is not the main thread."""
    return bool(thread.frames) and thread.frames[-1].function in _STARTS


BEGINNINGS = ("_bootstrap", "_run_module_as_main", "_start")
_STARTS = (
    "_bootstrap",
    "_bootstrap_inner",
    "clone",
    "clone3",
    "start_thread",
    "__clone",
    "__clone3",
    "thread_start",
)


def _process(item: dict[str, Any]) -> Process:
    threads_ = tuple(
        Thread(
            tid=found["id"],
            name=found["name"],
            frames=tuple(found["frames"]),
            stem=len(found["frames"]),
            samples=1,
            active=found["state"].startswith("active"),
            gil="gil" in found["state"],
        )
        for found in item["threads"]
    )
    if not any(t.name == "MainThread" or t.tid == item["pid"] for t in threads_):
        # Older ones tell no names.
        threads_ = tuple(
            replace(t, name="MainThread") if t.frames and t.frames[-1].function == "<module>" else t
            for t in threads_
        )
    role = "trainer" if item["rank"] is not None else "process"
    return Process(pid=item["pid"] or 1, title=item["title"], threads=threads_, rank=item["rank"], role=role)
