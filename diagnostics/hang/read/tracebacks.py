"""Stacks as text of faulthandler, gdb (with and without Python), pystack, and tracebacks of whoever printed them.

A traceback that ends in an error is of a process that went on from there: it does not stand in it. One that ends in an
interrupt or in a time limit shows where it stood.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from diagnostics.collect.secrets import cut
from diagnostics.hang.frames import called
from diagnostics.hang.read import marks, notations, whole
from diagnostics.hang.read.pyspy import BEGINNINGS, RANK, last
from diagnostics.hang.snapshot import NATIVE, Process, StackFrame


def _lines(text: str) -> list[str]:
    """What is longer than a frame is none, and would only take time."""
    return [line[: marks.LONGEST] for line in text.splitlines()]


def is_text(text: str) -> bool:
    """Whether there are stacks in it that this module reads."""
    return any(pattern.match(line) for line in _lines(text) for pattern in marks.ANY)


def from_text(text: str, *, loose: bool = False) -> list[Process]:
    """The processes in it. A new main thread begins a new process, since each dump has one.

    Args:
        text: What somebody pasted.
        loose: Whether a frame may be written in any notation, not in those of known tools alone.
    """
    reader = _Dump(closed=bool(marks.CLOSED.search(text)), loose=loose)
    for line in _lines(text):
        reader.line(line)
    return reader.finished()


class _Dump:
    def __init__(self, *, closed: bool = False, loose: bool = False) -> None:
        self.closed, self.loose = closed, loose
        self.processes: list[dict[str, Any]] = []
        self.thread: dict[str, Any] | None = None
        self.main = False  # the last process has a main thread
        self.rank: int | None = None
        self.source = False
        self.flush = False  # a frame that is not set in: its source is not either
        self.pid = 0
        self.last = ""  # an error's line
        self.interrupted = False
        self.mixed = False  # a traceback begins in the middle of another: lines of several writers in turns

    def line(self, line: str) -> None:
        if self._begins(line) or self._frames(line):
            self.source, self.flush = True, not line[:1].isspace()
            return
        if self.source and self.thread is not None and self.thread["frames"] and self._is_source(line):
            # The source of the frame above: what is called in C there has no frame of its own.
            self.thread["frames"][-1] = replace(self.thread["frames"][-1], calls=called(line))
            self.thread["sources"][len(self.thread["frames"]) - 1] = line
        self.source = False
        if match := RANK.match(line):
            self.rank, self.thread = int(match["a"] or match["b"]), None
            self._process(0)
        elif match := marks.PROCESS.match(line):
            self.thread = None
            self._process(int(match[1]), ranked=False)
        elif match := marks.ERROR.match(line):
            self._ended(line, match[1])
        elif line.startswith(marks.CAUSE):
            self._caused()
        elif marks.THREAD.match(line):
            self._thread(
                0, "MainThread" if marks.FIRST.search(line) else cut(line.strip("*=#- \t"), 80), reverse=None
            )
        elif self.thread is not None and self.thread["drawn"] and line[:1].strip():
            self.thread = None
        elif (match := marks.PID.search(line)) and not line.startswith((" ", "\t")):
            self.pid = int(match[1])

    def _process(self, pid: int, *, ranked: bool = True) -> None:
        self.processes.append({"pid": pid, "rank": self.rank if ranked else None, "threads": []})
        self.main = False

    def _is_source(self, line: str) -> bool:
        return line[:1] in (" ", "\t") or (self.flush and bool(line) and not marks.ERROR.match(line))

    def _ended(self, line: str, error: str) -> None:
        """An error: of a stack before it, or one that comes to nothing but another error."""
        if self.thread is None:
            # What C makes of an interrupt is another error: it stood in it all the same.
            self.interrupted = error == "KeyboardInterrupt"
            return
        self.last = line
        self.thread["gone"] = not (self.interrupted or marks.STOOD.search(error) or marks.STANDS.search(line))

    def _caused(self) -> None:
        """What follows is another stack."""
        if self.thread is not None and marks.AGAIN not in self.last:
            self.main = self.main and self.thread["name"] != "MainThread"
            self.thread["gone"], self.thread["name"] = True, ""

    def _begins(self, line: str) -> bool:
        """Whether a tool's own line begins a thread."""
        if match := marks.PYSTACK.match(line):
            self._thread(int(match[1]), match[2], reverse=match[4] == "last", gil="Has the GIL" in match[3])
        elif match := marks.FAULT.match(line):
            self._thread(int(match[1], 16), match[2] or "")
        elif match := marks.GDB_THREAD.match(line):
            self._thread(int(match[2]), "MainThread" if match[1] == "1" else match[3] or "")
        elif match := marks.EU_THREAD.match(line) or marks.LLDB_THREAD.match(line):
            self._thread(int(match[1]), "MainThread" if match[1] in (str(self.pid), "1") else "")
        elif match := marks.GDB_INFO.match(line):
            self._thread(int(match[2]), "MainThread" if match[1] == "1" else match[3] or "")
            self._frame(StackFrame(NATIVE, match[4]))
        elif match := marks.PLAIN.match(line):
            if self.source and match[1] == "last" and self.thread is not None and self.thread["told"]:
                self.mixed = True
            if self.thread is not None and self.thread["reverse"] is None and not self.thread["frames"]:
                self.thread["reverse"] = match[1] == "last"  # the thread was named above it
            else:
                self._thread(0, "MainThread", reverse=match[1] == "last")
        else:
            return False
        return True

    def _frames(self, line: str) -> bool:
        """Whether a line is a frame."""
        if match := marks.PYTHON.match(line):
            # faulthandler writes the innermost first and no comma, a traceback the innermost last.
            self._frame(StackFrame(match[1], last(match[4]), _number(match[2])), reverse=bool(match[3]))
        elif match := marks.GDB_PYTHON.match(line):
            self._frame(StackFrame(match[1], last(match[3]), _number(match[2])))
        elif match := marks.C.match(line):
            self._frame(StackFrame(match[4] or match[1], match[3].strip(), int(match[2])))
        elif match := marks.CPP.match(line):
            if self.closed:
                return True
            if match[1] == "0" and self.thread is not None and self.thread["frames"]:
                self.thread = None
            self._frame(StackFrame(match[3] or NATIVE, match[2].partition("(")[0]))
        elif match := marks.ARROW.match(line):
            self._frame(StackFrame(NATIVE, match[1]), reverse=True)
            assert self.thread is not None
            self.thread["drawn"] = True
        else:
            return self._of_debugger(line) or self._of_ipython(line) or (self.loose and self._of_any(line))
        return True

    def _of_debugger(self, line: str) -> bool:
        if match := notations.BUILT_IN.match(line):
            # As gdb's py-bt has it, beside frames of Python.
            self._frame(StackFrame(NATIVE, match[1] or "take_gil"))
            return True
        if match := marks.GDB_PLACE.match(line):
            self._frame(StackFrame(match[1], match[2]))
        elif match := marks.GDB_FRAME.match(line):
            self._frame(StackFrame(match[2] or match[3] or NATIVE, match[1].strip(), int(match[4] or 0)))
        elif match := marks.GDB_CUT.match(line) or marks.EU.match(line):
            self._frame(StackFrame(NATIVE, match[1].strip()))
        elif match := marks.LLDB.match(line):
            # Apple's frameworks are named without a suffix.
            self._frame(StackFrame(match[1] if "." in match[1] else NATIVE, match[2].strip()))
        return bool(match)

    def _of_ipython(self, line: str) -> bool:
        if match := marks.RICH.match(line):
            self._frame(StackFrame(match[1], last(match[3]), int(match[2])), reverse=True)
            return True
        if match := marks.IPYTHON.match(line):
            self._frame(StackFrame(match[1], last(match[2])), reverse=True)
            return True
        match = marks.IPYTHON_LINE.match(line) or marks.RICH_LINE.match(line)
        if match and self.thread is not None and self.thread["frames"]:
            inner = self.thread["frames"][-1]
            self.thread["frames"][-1] = replace(inner, line=int(match[1]), calls=called(match[2]))
        return False

    def _of_any(self, line: str) -> bool:
        found = notations.frame(line)
        if found is None:
            return False
        self._frame(found[0], reverse=bool(found[1]))
        return True

    def _another(self, frame: StackFrame) -> bool:
        """Whether one stack begins where another has ended, without a line for it."""
        if self.thread is None or self.thread["told"] or not self.thread["frames"]:
            return False
        first, latest = (_begins_thread(self.thread["frames"][n]) for n in (0, -1))
        return _begins_thread(frame) if first else latest

    def _thread(self, tid: int, name: str, *, reverse: bool | None = False, gil: bool = False) -> None:
        main = name == "MainThread"
        if not self.processes or (main and self.main):
            self._process(0)
        self.main = self.main or main
        tid = tid or -1 - len(self.processes[-1]["threads"])
        self.thread = {"id": tid, "name": name, "frames": [], "reverse": reverse, "gil": gil}
        self.thread |= {"gone": False, "drawn": False, "sources": {}, "told": reverse is not None}
        self.processes[-1]["threads"].append(self.thread)

    def _frame(self, frame: StackFrame, *, reverse: bool = False) -> None:
        if self.thread is None or self._another(frame):
            self._thread(0, "", reverse=None)
        assert self.thread is not None
        if self.thread["reverse"] is None:
            self.thread["reverse"] = reverse
        self.thread["frames"].append(replace(frame, path=frame.path.replace("\\", "/")))

    def finished(self) -> list[Process]:
        found: list[Process] = []
        if self.mixed:
            return found
        for number, item in enumerate((p for p in self.processes if p["threads"]), start=1):
            threads = whole.with_main(
                [whole.thread(t) for t in item["threads"] if t["frames"] and not whole.left(t)]
            )
            if threads:
                pid = self.pid if self.pid and len(self.processes) == 1 else number
                found.append(
                    Process(
                        pid=item["pid"] or pid,
                        rank=item["rank"],
                        threads=threads,
                        role="trainer" if item["rank"] is not None else "process",
                    )
                )
        return found


def _begins_thread(frame: StackFrame) -> bool:
    return frame.function == BEGINNINGS[0] and frame.path.endswith("threading.py")


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0
