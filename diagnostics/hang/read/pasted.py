"""Text as people paste it: quotes and what a launcher or Ray puts before each line, process trees, traces of lines."""

from __future__ import annotations

import html
import re

from diagnostics.hang.snapshot import NATIVE, Descriptor, Process, StackFrame, Thread

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
_BROKEN = re.compile(r"(?m)^(/[^\s:]{8,300})\n([^\s:/][^\s:]{0,300}\.pyx?:\d+ in \S+)$")
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
# `/proc/PID/stack` under a line that names the process; how many threads it has, where somebody says it.
_KERNEL = re.compile(
    r"(?m)^(?P<head>[^\n\[]{0,200}?\b(?P<pid>\d{1,7})\b[^\n]{0,200})\n"
    r"(?P<body>(?:[ \t]*\[<[0-9a-fx]*>\][^\n]*\n?)+)"
)
_KERNELS = re.compile(r"\[<[0-9a-fx]*>\] (\w+)(?:\.\w+)*\+0x")
_ALONE = re.compile(r"(?i)threads?:? *1\b|\b(?:one|single|1) thread\b")
_SLEEPS = tuple(
    (re.compile(pattern), call)
    for pattern, call in (
        (r"^(?:__x64_sys_|__|do_)?futex", "futex"),
        (r"tcp_recvmsg|inet_recvmsg|unix_stream_read", "recvfrom"),
        (r"^do_wait$|kernel_wait", "wait4"),
        (r"ep_poll|epoll_wait", "epoll_wait"),
        (r"flock_lock|locks_lock_inode", "flock"),
        (r"nanosleep", "nanosleep"),
        (r"pipe_write", "write"),
    )
)
_TREE = re.compile(r"^\s*(?:[a-z_]\S*\s+)?(\d+)\b([^\\]*)\\_ (.+)$")
_ROOT = re.compile(r"^\s*(?:[a-z_]\S*\s+)?(\d+)\s+(\S.*)$")
_DEFUNCT = "<defunct>"
# `ps aux`: user, pid, four numbers of use, terminal, state, two times, command.
_AUX = re.compile(
    r"^\s*\S+\s+(\d+)\s+[\d.]+\s+[\d.]+\s+\d+\s+\d+\s+\S+\s+([RSDTtZXI])(\S*)\s+\S+\s+[\d:]+\s+(.+)$"
)
# `ps -ef`: user, pid, parent, use, start, terminal, time, command.
_EF = re.compile(r"^\s*\S+\s+(\d+)\s+(\d+)\s+\d+\s+\S+\s+\S+\s+[\d:-]+\s+(.+)$")
# `python -m trace --trace`: the module's file, its line, the source.
_TRACED = re.compile(r"^([\w]+\.py)\((\d+)\): ")


def bare(text: str) -> str:
    """Without colours, quotes, a viewer's numbers, a service's names and times, and the escapes of a page."""
    plain = _SERVICE.sub("", _NUMBER.sub("", _QUOTE.sub("", _ANSI.sub("", text))))
    if "\u2502" in plain:
        plain = _BROKEN.sub(r"\1\2", _BOX.sub("", plain))
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


def tree(text: str) -> list[Process]:
    """The processes of `ps --forest`, where some are dead whose like, of the same parent, live; else none."""
    found: list[tuple[int, int, str, int]] = []  # (column, pid, title, parent)
    for line in text.splitlines():
        match = _TREE.match(line)
        root = None if match else _ROOT.match(line)
        if not match and not root:
            continue
        column = line.index("\\_") if match else 0
        pid, title = (int(match[1]), match[3]) if match else (int(root[1]), root[2]) if root else (0, "")
        parent = next((item[1] for item in reversed(found) if item[0] < column), 0) if match else 0
        found.append((column, pid, title.strip(), parent))
    living = {(parent, _name(title)) for _, _, title, parent in found if _DEFUNCT not in title}
    dead = [pid for _, pid, title, parent in found if _DEFUNCT in title and (parent, _name(title)) in living]
    if not dead:
        return []
    bereaved = {parent for _, pid, _, parent in found if pid in dead}
    return [
        Process(
            pid,
            ppid=parent,
            title=title,
            state="Z" if _DEFUNCT in title else "",
            python=pid in bereaved,
            threads=(Thread(pid, wchan="unknown"),) if pid in bereaved else (),
        )
        for _, pid, title, parent in found
        if pid in bereaved or parent in bereaved
    ]


def table(text: str) -> list[Process]:
    """The processes of `ps aux`, which names no parents: dead ones belong to a session's leader of their name."""
    rows = [match for match in map(_AUX.match, text.splitlines()) if match]
    leaders = {_name(row[4]): int(row[1]) for row in reversed(rows) if "s" in row[3] and row[2] not in "ZX"}
    living = {_name(row[4]) for row in rows if row[2] not in "ZX" and "s" not in row[3]}
    found = []
    for row in rows:
        pid, dead, name = int(row[1]), row[2] in "ZX", _name(row[4])
        above = leaders.get(name, 0) if dead and name in living else 0
        lead = pid in leaders.values() and not dead
        threads = (Thread(pid, wchan="unknown"),) if lead else ()
        found.append(Process(pid, ppid=above, title=row[4], state="Z" if dead else "", threads=threads))
    return found


def full(text: str) -> list[Process]:
    """The processes of `ps -ef`, where some are dead; with living ones of the same name and parent these are missed."""
    rows = [match for match in map(_EF.match, text.splitlines()) if match]
    if not any(_DEFUNCT in row[3] for row in rows):
        return []
    living = {(row[2], _name(row[3])) for row in rows if _DEFUNCT not in row[3]}
    bereaved = {row[2] for row in rows if _DEFUNCT in row[3] and (row[2], _name(row[3])) in living}
    return [
        Process(
            int(row[1]),
            ppid=int(row[2]) if row[2] in bereaved else 0,
            title=row[3],
            state="Z" if _DEFUNCT in row[3] else "",
            threads=(Thread(int(row[1]), wchan="unknown"),) if row[1] in bereaved else (),
        )
        for row in rows
    ]


def straced(text: str) -> list[Process]:
    """Processes whose last call did not come back while somebody watched it."""
    attached = [first or second for first, second in _ATTACHED.findall(text)]
    calls = [call for call in _STRACED.findall(text) if call[1] in _WAITING]
    # Of a line that came back there is a result; the last of each process is the one that did not.
    last = {pid: (name, fd) for pid, name, fd in calls}
    found = []
    for number, (pid, (name, fd)) in enumerate(last.items()):
        own = int(pid or (attached[number] if number < len(attached) else number + 1))
        kind = "socket" if name.startswith("recv") else "other"
        fds = (Descriptor(int(fd), kind),) if fd and name != "futex" else ()
        thread = Thread(own, "MainThread", syscall=name, waits_fds=tuple(d.fd for d in fds), samples=1)
        found.append(Process(own, threads=(thread,), fds=fds))
    return found


def slept(text: str) -> list[Process]:
    """What `/proc/PID/stack` shows: in which call of the kernel each process sleeps."""
    found = []
    for match in _KERNEL.finditer(text):
        frames = tuple(StackFrame(NATIVE, name) for name in _KERNELS.findall(match["body"]))
        told = (call for frame in frames for pattern, call in _SLEEPS if pattern.search(frame.function))
        call = next(told, "")
        # A futex is an event as often as a lock; but for one thread alone nobody is left to set an event.
        known = call if call != "futex" or _ALONE.search(match["head"]) else ""
        kinds = (Descriptor(0, "socket"),) if known == "recvfrom" else ()
        pid = int(match["pid"])
        thread = Thread(
            pid,
            "MainThread",
            frames,
            stem=len(frames),
            samples=1,
            syscall=known,
            waits_fds=tuple(d.fd for d in kinds),
        )
        if frames:
            found.append(Process(pid, threads=(thread,), fds=kinds))
    return found


def _name(title: str) -> str:
    return title.partition("<defun")[0].strip().strip("[]").split(" ")[0].rpartition("/")[2]


def traced(text: str) -> list[Process]:
    """Where a trace of lines ends: what stands there is what it waits in."""
    lines = [match for match in map(_TRACED.match, text.splitlines()) if match]
    if not lines:
        return []
    frame = StackFrame(lines[-1][1], "traced", int(lines[-1][2]))
    return [Process(1, threads=(Thread(1, "MainThread", (frame,), stem=1, samples=1),))]
