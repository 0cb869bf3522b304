"""Stacks as text of faulthandler, gdb (with and without Python), pystack, and tracebacks of whoever printed them."""

from __future__ import annotations

import re
from typing import Any

from diagnostics.hang.read.pyspy import last
from diagnostics.hang.snapshot import Process, StackFrame, Thread

_FAULT = re.compile(
    r"^\s*(?:Current thread|Thread) (0x[0-9a-fA-F]+)(?: \[([^\]]*)\])? \(most recent call first\)"
)
_PYSTACK = re.compile(r"^\s*Traceback for thread (\d+) \(([^)]*)\)(.*?)\(most recent call (last|first)\)")
_PLAIN = re.compile(r"^\s*(?:Stack|Traceback|Thread)\b.*\(most recent call (first|last)\)")
_PYTHON = re.compile(r'^\s*(?:\(Python\) )?File "([^"]+)", line (\d+|\?+),? in (\S+)')
_C = re.compile(r'^\s*\(C\) File "([^"]*)", line (\d+), in (.+?)(?: \(([^)]*)\))?\s*$')
_GDB_THREAD = re.compile(r'^\s*Thread \d+ \((?:Thread 0x[0-9a-f]+ \()?LWP (\d+)\)?(?: "([^"]*)")?')
_GDB_FRAME = re.compile(
    r"^\s*#\d+\s+(?:0x[0-9a-f]+ in )?(.+?) ?\((?:.*?)\)(?: from (\S+)| at (\S+?):(\d+))?\s*$"
)
_GDB_PYTHON = re.compile(r"^\s*#\d+ .*StackFrame 0x[0-9a-f]+, for file ([^,]+), line (\d+), in (\S+)")
_HEAD = re.compile(r"^\s*(?:=+|#+|-+|\*+)?\s*(?:rank|RANK|\[rank)\s*[:=]?\s*(\d+)\b.{0,40}$")
_PID = re.compile(r"(?i)\b(?:process|pid|lwp)[ :=]+(\d+)\b")


def is_text(text: str) -> bool:
    """Whether there are stacks in it that this module reads."""
    return any(
        pattern.match(line)
        for line in text.splitlines()
        for pattern in (_FAULT, _PYSTACK, _GDB_THREAD, _PLAIN, _GDB_FRAME)
    )


def from_text(text: str) -> list[Process]:
    """The processes in it. A new main thread begins a new process, since each dump has one."""
    reader = _Dump()
    for line in text.splitlines():
        reader.line(line)
    return reader.finished()


class _Dump:
    def __init__(self) -> None:
        self.processes: list[dict[str, Any]] = []
        self.thread: dict[str, Any] | None = None
        self.rank: int | None = None
        self.pid = 0

    def line(self, line: str) -> None:
        if match := _PYSTACK.match(line):
            self._thread(int(match[1]), match[2], reverse=match[4] == "last", gil="Has the GIL" in match[3])
        elif match := _FAULT.match(line):
            self._thread(int(match[1], 16), match[2] or "")
        elif match := _GDB_THREAD.match(line):
            self._thread(int(match[1]), match[2] or "")
        elif match := _PLAIN.match(line):
            self._thread(0, "MainThread", reverse=match[1] == "last")
        elif match := (_PYTHON.match(line) or _GDB_PYTHON.match(line)):
            number = int(match[2]) if match[2].isdigit() else 0
            self._frame(StackFrame(match[1], last(match[3]), number))
        elif match := _C.match(line):
            self._frame(StackFrame(match[4] or match[1], match[3].strip(), int(match[2])))
        elif match := _GDB_FRAME.match(line):
            self._frame(StackFrame(match[2] or match[3] or "", match[1].strip(), int(match[4] or 0)))
        elif match := _HEAD.match(line):
            self.rank, self.thread = int(match[1]), None
            self.processes.append({"pid": 0, "rank": self.rank, "threads": []})
        elif (match := _PID.search(line)) and not line.startswith((" ", "\t")):
            self.pid = int(match[1])

    def _thread(self, tid: int, name: str, *, reverse: bool = False, gil: bool = False) -> None:
        main = name == "MainThread"
        if not self.processes or (
            main and any(t["name"] == "MainThread" for t in self.processes[-1]["threads"])
        ):
            self.processes.append({"pid": 0, "rank": self.rank, "threads": []})
        self.thread = {"id": tid, "name": name, "frames": [], "reverse": reverse, "gil": gil}
        self.processes[-1]["threads"].append(self.thread)

    def _frame(self, frame: StackFrame) -> None:
        if self.thread is None:
            self._thread(0, "MainThread")
        assert self.thread is not None
        self.thread["frames"].append(frame)

    def finished(self) -> list[Process]:
        found = []
        for number, item in enumerate((p for p in self.processes if p["threads"]), start=1):
            threads = tuple(_thread(thread) for thread in item["threads"] if thread["frames"])
            if threads and not any(t.name == "MainThread" for t in threads):
                # faulthandler puts the thread that was started first last; gdb and pystack name it by the process.
                threads = (*threads[:-1], Thread(**{**vars(threads[-1]), "name": "MainThread"}))
            if threads:
                pid = self.pid if self.pid and len(self.processes) == 1 else number
                found.append(
                    Process(
                        pid=pid,
                        rank=item["rank"],
                        threads=threads,
                        role="trainer" if item["rank"] is not None else "process",
                    )
                )
        return found


def _thread(item: dict[str, Any]) -> Thread:
    frames = tuple(reversed(item["frames"])) if item["reverse"] else tuple(item["frames"])
    return Thread(item["id"], item["name"], frames, stem=len(frames), samples=1, gil=item["gil"])
