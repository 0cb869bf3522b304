"""Parse stacks in text form, also among other lines: py-spy, `ray stack`, faulthandler, pystack, gdb, tracebacks.

`StackReader` returns the processes. A traceback of an exception is used only if it is a KeyboardInterrupt: then it
shows where the thread was blocked. After another exception the thread is no longer in these frames.
"""

import re
from dataclasses import dataclass, field, replace

from diagnostics.hang.collect.stacks import blocking_call_in, last_part
from diagnostics.hang.snapshot import NATIVE, Process, StackFrame, Thread

# The heading before the lines of one rank, from `dump_files.clean_lines`.
_RANK = re.compile(r"rank (\d{1,6})$")
# py-spy.
_PROCESS = re.compile(r"\s{0,20}Process (\d{1,9}): ?(.*)$")
# `ray stack` prints a line of ps above each process.
_RAY = re.compile(r"\s{0,20}Stack dump for \S{1,80}\s+(\d{1,9})\s.{0,200}?\d+:\d+\s+(?:\d+:\d+\s+)?(.*)$")
_PYSPY_THREAD = re.compile(
    r"\s{0,20}Thread (0x[0-9a-fA-F]{1,16}|\d{1,16})\s{0,4}\(([\w+ ]+)\)(?::? ?\"([^\"]*)\"?)?"
)
_PYSPY_FRAME = re.compile(r"\s+([^\s(][^(]{0,300}?) \((.{1,300}?)(?::(\d{1,7}))?\)\s*$")
_PYSPY_VARIABLES = re.compile(r"(\s+)(?:Arguments|Locals):\s*$")
# Other tools.
_FAULTHANDLER = re.compile(
    r"\s{0,20}(?:Current thread|Thread) (0x[0-9a-fA-F]{1,16})(?: \[([^\]]{0,80})\])? \(most recent call first\)"
)
_PYSTACK = re.compile(
    r"\s{0,20}Traceback for thread (\d{1,9}) \(([^)]{0,80})\)(.{0,80}?)\(most recent call (last|first)\)"
)
_TRACEBACK = re.compile(r"(?:\^C)?\W{0,20}(Stack|Traceback|Thread)\b.{0,80}\(most recent call (first|last)\)")
_GDB_THREAD = re.compile(
    r'\s{0,20}Thread (\d{1,6}) \((?:Thread 0x[0-9a-f]{1,16} \()?LWP (\d{1,9})\)?(?: "([^"]{0,40})")?'
)
_PYTHON = re.compile(r'\s{0,40}(?:\(Python\) )?File "([^"]{1,400})", line (\d{1,7}|\?+)(,?) in (\S+)')
_PYSTACK_C = re.compile(
    r'\s{0,40}\(C\) File "([^"]{0,400})", line (\d{1,7}), in (.{1,300}?)(?: \(([^)]{0,300})\))?\s*$'
)
_GDB_PYTHON = re.compile(
    r"\s{0,40}(?:#\d{1,4} .{0,400}\b)?Frame 0x[0-9a-f]{1,16}, for file ([^,]{1,400}), line (\d{1,7}), in (\S+)"
)
_GDB_FRAME = re.compile(r"\s{0,40}#\d{1,4}\s{1,4}(?:0x[0-9a-f]{1,16} in )?([^\s(][^(]{0,400}?) ?\(")
_GDB_PLACE = re.compile(r"\) (?:from (\S+)|at (\S+?):(\d{1,7}))\s*$")
_PID = re.compile(r"(?i)\b(?:process|pid|lwp)[ :=]{1,3}(\d{1,9})\b")
# Each heading has one of these.
_HEADING_WORDS = ("Process ", "Stack", "rank ", "Thread ", "Traceback", "thread")
# Native threads that monitor others and only noticed that they are stuck.
_MONITORS = re.compile(r"[wW]atchdog|[hH]eartbeatMonitor|checkTimeout|recvValueWithTimeout|sendBytes")
_STARTS_THREAD = re.compile(r"_bootstrap(_inner)?|_{0,2}clone3?|(start_thread|thread_start)")


@dataclass
class _ThreadDraft:
    """A thread that is being read line by line.

    Attributes:
        outermost_first: Order of its frames; None until the first frame shows it.
        ends_in_error: Whether it is a traceback in which no KeyboardInterrupt has been read yet.
    """

    tid: int
    name: str = ""
    outermost_first: bool | None = None
    gil: bool = False
    active: bool | None = None
    ends_in_error: bool = False
    frames: list[StackFrame] = field(default_factory=list)

    def thread(self) -> Thread:
        frames = reversed(self.frames) if self.outermost_first else self.frames
        return Thread(self.tid, self.name, tuple(frames), gil=self.gil, active=self.active)

    def is_usable(self) -> bool:
        monitors = any(_MONITORS.search(frame.function) for frame in self.frames)
        return bool(self.frames) and not self.ends_in_error and not monitors


@dataclass
class _ProcessDraft:
    """A process that is being read line by line."""

    pid: int = 0
    title: str = ""
    rank: int | None = None
    threads: list[_ThreadDraft] = field(default_factory=list)


class StackReader:
    """Reads the threads of a dump. A heading of a process or rank, or a second main thread, begins another process.

    Attributes:
        is_pyspy: Whether py-spy printed the dump.
    """

    def __init__(self, lines: list[str]) -> None:
        """Read the lines of a dump."""
        self.is_pyspy = False
        self._drafts: list[_ProcessDraft] = []
        self._thread: _ThreadDraft | None = None
        self._after_frame = False
        self._pid = 0
        self._variables = ""  # the blanks before py-spy's `Arguments:`; a variable has more
        for line in lines:
            self._read_line(line)

    def _read_line(self, line: str) -> None:
        """Read a heading, a frame, or the source line of the frame above; note a process id in other lines."""
        if self._variables and line.startswith(f"{self._variables} "):
            return  # py-spy --locals: a variable may look like a frame
        match = _PYSPY_VARIABLES.match(line)
        self._variables = match[1] if match else ""
        if not line or match:
            self._after_frame = False
            return
        if self._read_heading(line) or self._read_frame(line):
            self._after_frame = True
            return
        indented = line.startswith((" ", "\t"))
        if self._after_frame and indented and self._thread and self._thread.frames:
            # This is the source line of the frame above; a C function that it calls has no frame.
            self._thread.frames[-1] = replace(self._thread.frames[-1], calls=blocking_call_in(line))
        self._after_frame = False
        if indented:
            return
        if self._thread is not None and self._thread.active is not None:
            self._thread = None  # the frames of py-spy are indented
        if self._thread is not None and line.startswith(("KeyboardInterrupt", "^CKeyboardInterrupt")):
            self._thread.ends_in_error = False
        elif match := _PID.search(line):
            self._pid = int(match[1])

    def _read_heading(self, line: str) -> bool:
        """Begin a process or thread if a line is a heading of one; return whether it is."""
        if not any(map(line.__contains__, _HEADING_WORDS)):
            return False
        if match := _PROCESS.match(line) or _RAY.match(line):
            # The heading of a rank may precede that of its process.
            rank = next((draft.rank for draft in self._drafts[-1:] if not draft.threads), None)
            self._drafts.append(_ProcessDraft(int(match[1]), match[2].strip(), rank))
            self._thread = None
        elif match := _RANK.match(line):
            self._drafts.append(_ProcessDraft(rank=int(match[1])))
            self._thread = None
        elif match := _PYSTACK.match(line):
            last, gil = match[4] == "last", "Has the GIL" in match[3]
            self._begin_thread(_ThreadDraft(int(match[1]), match[2], outermost_first=last, gil=gil))
        elif match := _FAULTHANDLER.match(line):
            self._begin_thread(_ThreadDraft(int(match[1], 16), match[2] or "", outermost_first=False))
        elif match := _GDB_THREAD.match(line):
            name = "MainThread" if match[1] == "1" else match[3] or ""
            self._begin_thread(_ThreadDraft(int(match[2]), name, outermost_first=False))
        elif match := _TRACEBACK.match(line):
            last, is_traceback = match[2] == "last", match[1] == "Traceback"
            self._begin_thread(_ThreadDraft(0, "MainThread", last, ends_in_error=is_traceback and last))
        elif match := _PYSPY_THREAD.match(line):
            active, gil = match[2].startswith("active"), "gil" in match[2]
            self._begin_thread(_ThreadDraft(int(match[1], 0), match[3] or "", gil=gil, active=active))
        else:
            return False
        return True

    def _read_frame(self, line: str) -> bool:
        """Add a frame to the thread if a line is one; return whether it is."""
        if match := _PYTHON.match(line):
            # faulthandler prints the innermost first and no comma, a traceback the innermost last.
            number = int(match[2]) if match[2].isdigit() else 0
            self._add_frame(StackFrame(match[1], last_part(match[4]), number), outermost_first=bool(match[3]))
        elif match := _PYSTACK_C.match(line):
            self._add_frame(StackFrame(match[4] or match[1], match[3].strip(), int(match[2])))
        elif match := _GDB_PYTHON.match(line):
            self._add_frame(StackFrame(match[1], last_part(match[3]), int(match[2])))
        elif match := _GDB_FRAME.match(line):
            place = _GDB_PLACE.search(line)
            path = (place[1] or place[2]) if place else NATIVE
            self._add_frame(StackFrame(path, match[1].strip(), int(place[3] or 0) if place else 0))
        elif self._thread and self._thread.active is not None and (match := _PYSPY_FRAME.match(line)):
            self.is_pyspy = True
            self._add_frame(StackFrame(match[2], last_part(match[1].strip()), int(match[3] or 0)))
        else:
            return False
        return True

    def _begin_thread(self, thread: _ThreadDraft) -> _ThreadDraft:
        is_main = thread.name == "MainThread"
        if not self._drafts or (is_main and any(t.name == thread.name for t in self._drafts[-1].threads)):
            self._drafts.append(_ProcessDraft())
        threads = self._drafts[-1].threads
        thread.tid = thread.tid or -1 - len(threads)
        threads.append(thread)
        self._thread = thread
        return thread

    def _add_frame(self, frame: StackFrame, *, outermost_first: bool = False) -> None:
        thread = self._thread or self._begin_thread(_ThreadDraft(0, ends_in_error=outermost_first))
        if thread.outermost_first is None:
            thread.outermost_first = outermost_first
        thread.frames.append(frame)

    def processes(self) -> list[Process]:
        """Return the processes with a usable stack: no traceback of an error, no monitor thread."""
        processes = []
        drafts = [draft for draft in self._drafts if draft.threads]
        for number, draft in enumerate(drafts, start=1):
            pid = draft.pid or (self._pid if len(drafts) == 1 else 0)
            threads = [thread.thread() for thread in draft.threads if thread.is_usable()]
            if threads:
                role = "process" if draft.rank is None else "trainer"
                marked = tuple(_with_main(threads))
                process = Process(
                    pid or number, title=draft.title, role=role, rank=draft.rank, threads=marked
                )
                processes.append(replace(process, numbered=not pid))
        return processes


def _with_main(threads: list[Thread]) -> list[Thread]:
    """Mark the main thread, if none is marked: the last thread whose stack does not begin with a thread's start."""
    if not any(thread.name == "MainThread" for thread in threads):
        for index in reversed(range(len(threads))):
            # faulthandler prints the thread that was started first last.
            if not _STARTS_THREAD.fullmatch(threads[index].frames[-1].function):
                threads[index] = replace(threads[index], name="MainThread")
                break
    return threads
