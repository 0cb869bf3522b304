"""Stacks as text of faulthandler, gdb (with and without Python), pystack, and tracebacks of whoever printed them.

A traceback that ends in an error is of a process that went on from there: it does not stand in it. One that ends in an
interrupt or in a time limit shows where it stood.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from diagnostics.hang.frames import called
from diagnostics.hang.read import notations
from diagnostics.hang.read.pyspy import BEGINNINGS, RANK, last, started
from diagnostics.hang.snapshot import NATIVE, Process, StackFrame, Thread

_FAULT = re.compile(
    r"^\s*(?:Current thread|Thread) (0x[0-9a-fA-F]+)(?: \[([^\]]*)\])? \(most recent call first\)"
)
_PYSTACK = re.compile(r"^\s*Traceback for thread (\d+) \(([^)]*)\)(.*?)\(most recent call (last|first)\)")
_PLAIN = re.compile(r"^[^\w\n]*(?:Stack|T?raceback|Thread)\b.*\(most recent call (first|last)\)")
# Whatever else a program writes above a thread's stack.
_THREAD = re.compile(
    r"^\W*(?:stack (?:of|for)\b|<?_?(?:Main|\w+ )?Thread\b)(?![^\n]*\bFile \")[^.!?\n]{0,80}$", re.IGNORECASE
)
_FIRST = re.compile(r"Thread 1\b:?$|MainThread|main thread", re.IGNORECASE)
_PYTHON = re.compile(r'^\s*(?:\(Python\) )?File:? "([^"]+)", line (\d+|\?+)(,?) in (\S+)')
# As IPython has it: the place, and an arrow at the line. Two ways of writing the place.
_IPYTHON = re.compile(r"^(?:File )?(\S{1,300}\.py)(?::\d+)?,? in (\w+(?:\.\w+)*)\(")
# As rich has it: the place, and its mark at the line.
_RICH = re.compile(r"^\s*(/\S{1,300}\.pyx?):(\d+) in (\S+)\s*$")
_RICH_LINE = re.compile(r"^\s*\u2771\s+(\d+)\s(?:\W{0,12})(.*)$")
_IPYTHON_LINE = re.compile(r"^-+> ?(\d+)\s(.*)$")
_C = re.compile(r'^\s*\(C\) File "([^"]*)", line (\d+), in (.+?)(?: \(([^)]*)\))?\s*$')
_GDB_THREAD = re.compile(r'^\s*Thread (\d+) \((?:Thread 0x[0-9a-f]+ \()?LWP (\d+)\)?(?: "([^"]*)")?')
# `info threads`: a line a thread, of each the innermost frame alone.
_GDB_INFO = re.compile(
    r'^\*?\s*(\d+)\s+Thread 0x[0-9a-f]+ \(LWP (\d+)\)(?: "([^"]*)")?\s+(?:0x[0-9a-f]+ in )?(\S+) \('
)
_GDB_FRAME = re.compile(
    r"^\s*#\d+\s+(?:0x[0-9a-f]+ in )?(.+?) ?\((?:.*?)\)(?: from (\S+)| at (\S+?):(\d+))?\s*$"
)
# A frame whose arguments go on in the next line; `eu-stack`, without arguments; lldb.
_GDB_CUT = re.compile(
    r"^\s*#\d+\s+(?:0x[0-9a-f]+ in )?([\w:~<>@.$*&, ]{1,300}?) ?\((?=[^\n]*=)[^\n]*[,=]\s*$"
)
_EU = re.compile(r"^\s*#\d+\s+0x[0-9a-f]+ (?:- \d+ )?(?!in )([\w:~@.$]{2,300})(?: - .*|\s*\(?.*)?$")
_EU_THREAD = re.compile(r"^\s*TID (\d+)\b")
_LLDB = re.compile(r"^\s*\*?\s*frame #\d+: 0x[0-9a-f]+ ([^\s`]+)`(.+?)(?: \+ \d+| at |\(|$)")
_LLDB_THREAD = re.compile(r"^\s*\*?\s*thread #(\d+)\b")
_GDB_PYTHON = re.compile(r"^\s*(?:#\d+ .*\b)?Frame 0x[0-9a-f]+, for file ([^,]+), line (\d+), in (\S+)")
# Frames of C++ as an error of c10d prints them, and chains of calls that somebody drew: outermost first.
_CPP = re.compile(r"^\s*frame #(\d+): (.+?) \+ 0x[0-9a-f]+ \((?:0x[0-9a-f]+ in )?([^)]*)\)")
_ARROW = re.compile(r"^\s{1,80}(?:\S.{0,200}\s)?->\s+([\w:.]+)")
# Native frames of what only noticed that others are stuck or gone.
_AFTER = re.compile(
    r"[wW]atchdog|heartbeatMonitor|HeartbeatMonitor|checkTimeout|recvValueWithTimeout|sendBytes"
)
# Who lost its other end is not the one that stands.
_CLOSED = re.compile(
    r"(?i)connection (?:was )?(?:likely )?(?:reset|closed)|broken pipe|failed to recv|recvValue failed"
)
_ERROR = re.compile(
    r"^(?:[\w.]+\.)?([A-Z]\w*(?:Error|Exception|Exit|Interrupt|Empty|Timeout|Expired)\w*)(?::|$)"
)
_STOOD = re.compile(r"KeyboardInterrupt|Timeout|TimedOut|Empty|Expired|SystemExit|Interrupted")
# A lock that is asked for until it is given; errors that are of a wait all the same.
_AGAIN = "[Errno 37] No locks available"
_STANDS = re.compile(rf"(?i)timed out|{re.escape(_AGAIN)}")
_CAUSE = ("During handling of the above", "The above exception was")
_PROCESS = re.compile(r"^Process (\d+): ?")
_LONGEST = 1000
_PID = re.compile(r"(?i)\b(?:process|pid|lwp)[ :=]+(\d+)\b")


def _lines(text: str) -> list[str]:
    """What is longer than a frame is none, and would only take time."""
    return [line[:_LONGEST] for line in text.splitlines()]


def is_text(text: str) -> bool:
    """Whether there are stacks in it that this module reads."""
    return any(
        pattern.match(line)
        for line in _lines(text)
        for pattern in (
            _FAULT,
            _PYSTACK,
            _GDB_THREAD,
            _PLAIN,
            _GDB_FRAME,
            _PYTHON,
            _IPYTHON,
            _CPP,
            _ARROW,
            _GDB_INFO,
            _GDB_PYTHON,
            _RICH,
            _EU,
            _LLDB,
        )
    )


def from_text(text: str, *, loose: bool = False) -> list[Process]:
    """The processes in it. A new main thread begins a new process, since each dump has one.

    Args:
        text: What somebody pasted.
        loose: Whether a frame may be written in any notation, not in those of known tools alone.
    """
    reader = _Dump(closed=bool(_CLOSED.search(text)), loose=loose)
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
        elif match := _PROCESS.match(line):
            self.thread = None
            self._process(int(match[1]), ranked=False)
        elif self.thread is not None and (match := _ERROR.match(line)):
            self.last = line
            self.thread["gone"] = not (_STOOD.search(match[1]) or _STANDS.search(line))
        elif line.startswith(_CAUSE):
            self._caused()
        elif _THREAD.match(line):
            self._thread(0, "MainThread" if _FIRST.search(line) else line.strip("*=#- \t")[:80], reverse=None)
        elif self.thread is not None and self.thread["drawn"] and line[:1].strip():
            self.thread = None
        elif (match := _PID.search(line)) and not line.startswith((" ", "\t")):
            self.pid = int(match[1])

    def _process(self, pid: int, *, ranked: bool = True) -> None:
        self.processes.append({"pid": pid, "rank": self.rank if ranked else None, "threads": []})
        self.main = False

    def _is_source(self, line: str) -> bool:
        return line[:1] in (" ", "\t") or (self.flush and bool(line) and not _ERROR.match(line))

    def _caused(self) -> None:
        """What follows is another stack."""
        if self.thread is not None and _AGAIN not in self.last:
            self.main = self.main and self.thread["name"] != "MainThread"
            self.thread["gone"], self.thread["name"] = True, ""

    def _begins(self, line: str) -> bool:
        """Whether a tool's own line begins a thread."""
        if match := _PYSTACK.match(line):
            self._thread(int(match[1]), match[2], reverse=match[4] == "last", gil="Has the GIL" in match[3])
        elif match := _FAULT.match(line):
            self._thread(int(match[1], 16), match[2] or "")
        elif match := _GDB_THREAD.match(line):
            self._thread(int(match[2]), "MainThread" if match[1] == "1" else match[3] or "")
        elif match := _EU_THREAD.match(line) or _LLDB_THREAD.match(line):
            self._thread(int(match[1]), "MainThread" if match[1] in (str(self.pid), "1") else "")
        elif match := _GDB_INFO.match(line):
            self._thread(int(match[2]), "MainThread" if match[1] == "1" else match[3] or "")
            self._frame(StackFrame(NATIVE, match[4]))
        elif match := _PLAIN.match(line):
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
        if match := _PYTHON.match(line):
            # faulthandler writes the innermost first and no comma, a traceback the innermost last.
            self._frame(StackFrame(match[1], last(match[4]), _number(match[2])), reverse=bool(match[3]))
        elif match := _GDB_PYTHON.match(line):
            self._frame(StackFrame(match[1], last(match[3]), _number(match[2])))
        elif match := _C.match(line):
            self._frame(StackFrame(match[4] or match[1], match[3].strip(), int(match[2])))
        elif match := _CPP.match(line):
            if self.closed:
                return True
            if match[1] == "0" and self.thread is not None and self.thread["frames"]:
                self.thread = None
            self._frame(StackFrame(match[3] or NATIVE, match[2].partition("(")[0]))
        elif match := _ARROW.match(line):
            self._frame(StackFrame(NATIVE, match[1]), reverse=True)
            assert self.thread is not None
            self.thread["drawn"] = True
        else:
            return self._of_debugger(line) or self._of_ipython(line) or (self.loose and self._of_any(line))
        return True

    def _of_debugger(self, line: str) -> bool:
        if match := _GDB_FRAME.match(line):
            self._frame(StackFrame(match[2] or match[3] or NATIVE, match[1].strip(), int(match[4] or 0)))
        elif match := _GDB_CUT.match(line) or _EU.match(line):
            self._frame(StackFrame(NATIVE, match[1].strip()))
        elif match := _LLDB.match(line):
            self._frame(StackFrame(match[1], match[2].strip()))
        return bool(match)

    def _of_ipython(self, line: str) -> bool:
        if match := _RICH.match(line):
            self._frame(StackFrame(match[1], last(match[3]), int(match[2])), reverse=True)
            return True
        if match := _IPYTHON.match(line):
            self._frame(StackFrame(match[1], last(match[2])), reverse=True)
            return True
        match = _IPYTHON_LINE.match(line) or _RICH_LINE.match(line)
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
            threads = _with_main([_thread(t) for t in item["threads"] if t["frames"] and not _left(t)])
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


def _left(item: dict[str, Any]) -> bool:
    """Whether the stack is of a moment that is over, or of who only noticed."""
    return bool(item["gone"]) or any(_AFTER.search(frame.function) for frame in item["frames"])


def _with_main(threads: list[Thread]) -> tuple[Thread, ...]:
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


def _thread(item: dict[str, Any]) -> Thread:
    frames = tuple(reversed(item["frames"])) if _outermost_first(item) else tuple(item["frames"])
    return Thread(item["id"], item["name"], frames, stem=len(frames), samples=1, gil=item["gil"])
