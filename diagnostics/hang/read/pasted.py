"""Text as people paste it: quotes and what a launcher or Ray puts before each line, strace, traces of lines."""

from __future__ import annotations

import html
import re

from diagnostics.hang.snapshot import Descriptor, Process, StackFrame, Thread

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
# What stands before each line of a text that somebody quotes, and the number of a line that a viewer of logs adds.
_QUOTE = re.compile(r"(?m)^(?: ?> ?)+")
_NUMBER = re.compile(r"(?m)^\[\d+\] (?=\[rank)")
_TAG = re.compile(
    r"\s*(?:\[(?:rank|default|RANK )?(?P<rank>\d+)\]: ?(?:\[[EWIF]\d+ [^\]]*\] ?)?"
    r"|\((?P<name>[\w:.\- ]+ )?pid=(?P<pid>\d+)(?:, ip=[\d.]+)?\) ?)"
)
# What services put before each line of a log (`docker compose`, `kubectl --timestamps`), and vLLM's own logger.
_SERVICE = re.compile(
    r"(?m)^(?:[\w.-]{1,60} +\| )?(?:\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)? ?)?"
)
_LOGGER = re.compile(r"(?:ERROR|WARNING|INFO|DEBUG) \d\d-\d\d \d\d:\d\d:\d\d \[?[\w./]{1,80}:\d+\]? ?")
# What rich draws around a traceback, and a path that it breaks.
_BOX = re.compile(r"(?m)^\s*[\u2502\u256d\u2570|][ \u2500]?|[ \u2500]*[\u2502\u256e\u256f]\s*$")
_CUT = re.compile(r"(?m)^(/\S{8,300}\.pyx?:\d+ in)\s*\n\s*(\w+)\s*$")
_BROKEN = re.compile(r"(?m)^(/[^\s:]{8,300})\n([^\s:/][^\s:]{0,300}\.pyx?:\d+ in \S+)$")
# gdb's frames in one line, filled up to a terminal's width; and its first, said twice.
_FILLED = re.compile(r"(?m)^(?:\(gdb\) \w+ {2,}(?=#0)|(?= *#\d+ )).* {10,}.*$")
_WIDE = re.compile(r" {10,}")
_NEXT = re.compile(r" {2,}(?=#\d+ +(?:0x[0-9a-f]+ in |\w+ \())")
_TWICE = re.compile(r"(?m)^(#0 [^\n]*)\n(?:\d+\t[^\n]*\n)?(?=\1$)")
# `strace -p`: the call that the process is in has no end.
_STRACED = re.compile(
    r"(?m)^(?:\[pid +(\d+)\] )?(?:\d\d:\d\d:\d\d(?:\.\d+)? )?"
    r"(\w+)\((?:\[\{fd=)?(\d+)?(?:[^()\n]*(?: <unfinished \.\.\.>|\^C[^\n]*)?|[^\n]*resuming interrupted[^\n]*)$"
)
_ATTACHED = re.compile(r"(?i)strace: Process (\d+) attached|\bstrace\b[^\n]{0,80}? -p ?(\d+)")
# Calls that wait by themselves: without a word of strace's own they tell what it is.
_WAITING = (
    "futex", "recvfrom", "recvmsg", "recv", "read", "wait4", "waitid", "epoll_wait", "epoll_pwait", "poll", "ppoll",
    "select", "pselect6", "flock", "connect", "accept", "accept4", "restart_syscall", "write", "sendto",
)  # fmt: skip
# `python -m trace --trace`: the module's file, its line, the source.
_TRACED = re.compile(r"^([\w]+\.py)\((\d+)\): ")
# vLLM's trace of functions: who was called, and from where.
_CALL_TO = re.compile(r"\bCall to (\S+) in (\S+):(\d+)(?: from (\S+) in (\S+):(\d+))?")


def bare(text: str) -> str:
    """Without colours, quotes, a viewer's numbers, a service's names and times, and the escapes of a page."""
    plain = _SERVICE.sub("", _NUMBER.sub("", _QUOTE.sub("", _ANSI.sub("", text))))
    if "\u2502" in plain:
        plain = _CUT.sub(r"\1 \2", _BROKEN.sub(r"\1\2", _BOX.sub("", plain)))
    plain = _TWICE.sub("", _FILLED.sub(lambda line: _WIDE.sub(" ", _NEXT.sub("\n", line[0])), plain))
    return html.unescape(plain) if "&lt;" in plain else plain


def untagged(text: str) -> str:
    r"""What each rank or process wrote by itself: a launcher mixes their lines and marks each.

    >>> print(untagged("[rank1]: a\n[rank0]: b\n[rank1]: c"))
    rank 1
    a
    c
    rank 0
    b
    """
    groups: dict[str, list[str]] = {"": []}
    for line in text.splitlines():
        match = _TAG.match(line)
        if not match:
            groups[""].append(_LOGGER.sub("", line, count=1))
            continue
        head = f"rank {match['rank']}" if match["rank"] else f"Process {match['pid']}: {match['name'] or ''}"
        groups.setdefault(head.strip(), []).append(_LOGGER.sub("", line[match.end() :], count=1))
    return "\n".join(
        line for head, lines in groups.items() if lines for line in ([head] if head else []) + lines
    )


def straced(text: str) -> list[Process]:
    """Processes whose last call did not come back while somebody watched it."""
    attached = [first or second for first, second in _ATTACHED.findall(text)]
    calls = [call for call in _STRACED.findall(text) if call[1] in _WAITING]
    # Of a line that came back there is a result; the last of each process is the one that did not.
    last = {pid: (name, fd) for pid, name, fd in calls}
    found = []
    for number, (pid, (name, fd)) in enumerate(last.items()):
        own = int(pid or (attached[number] if number < len(attached) else number + 1))
        connected = re.search(rf"(?:connect|[gs]etsockopt|sendto|recvfrom)\({fd},|ioctl\({fd}, FIONBIO", text)
        name = "recvfrom" if name == "read" and fd and connected else name  # noqa: PLW2901 - what it is of a socket
        kind = "socket" if name.startswith("recv") else "other"
        fds = (Descriptor(int(fd), kind),) if fd and name != "futex" else ()
        thread = Thread(own, "MainThread", syscall=name, waits_fds=tuple(d.fd for d in fds), samples=1)
        found.append(Process(own, threads=(thread,), fds=fds))
    return found


def traced(text: str) -> list[Process]:
    """Where a trace of lines ends: what stands there is what it waits in."""
    if called := list(_CALL_TO.finditer(text)):
        # A call that has come back is told of in a line of its own.
        last = called[-1]
        if f"Return from {last[1]} " in text[last.end() :]:
            return []
        callers = ((last[1], last[2], last[3]), (last[4], last[5], last[6]))
        stack = tuple(StackFrame(path, name, int(line)) for name, path, line in callers if name)
        return [Process(1, threads=(Thread(1, "MainThread", stack, stem=len(stack), samples=1),))]
    lines = [match for match in map(_TRACED.match, text.splitlines()) if match]
    if not lines:
        return []
    frame = StackFrame(lines[-1][1], "traced", int(lines[-1][2]))
    return [Process(1, threads=(Thread(1, "MainThread", (frame,), stem=1, samples=1),))]
