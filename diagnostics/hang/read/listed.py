"""Lists of processes: `ps` in its ways, with who is dead, stopped, or asleep in the kernel."""

from __future__ import annotations

import re
from dataclasses import dataclass

from diagnostics.hang.read import kernels
from diagnostics.hang.snapshot import Process, Thread

_TREE = re.compile(r"^\s*(?:[a-z_]\S*\s+)?(\d+)\b([^\\]*)\\_ (.+)$")
_ROOT = re.compile(r"^\s*(?:[a-z_]\S*\s+)?(\d+)\s+(\S.*)$")
# `ps -eo pid,stat,wchan:32,cmd`, without its head.
_WCHAN = re.compile(r"^\s*(\d+)\s+([RSDTtZXI])\S*\s+([a-z_]\w{3,}|-)\s+(\S.*)$")
# The columns that may hold blanks, and what a state begins with.
_COMMANDS = ("COMMAND", "CMD", "ARGS")
_STATE = re.compile(r"[RSDTtZXIW][<NLsl+]*$")
# As `lstart` has it, in five words.
_BEGAN = re.compile(r"\b[A-Z][a-z]{2} [A-Z][a-z]{2} +\d+ \d\d:\d\d:\d\d \d{4}\b")
_DEFUNCT = "<defunct>"
# `ps aux`: user, pid, four numbers of use, terminal, state, two times, command.
_AUX = re.compile(
    r"^\s*\S+\s+(\d+)\s+[\d.]+\s+[\d.]+\s+\d+\s+\d+\s+\S+\s+([RSDTtZXI])(\S*)\s+\S+\s+[\d:]+\s+(.+)$"
)
# `ps -ef`: user, pid, parent, use, start, terminal, time, command.
_EF = re.compile(r"^\s*\S+\s+(\d+)\s+(\d+)\s+\d+\s+\S+\s+\S+\s+[\d:-]+\s+(.+)$")


def processes(text: str) -> list[Process]:
    """Who is dead whose like live, and whose it is; else who is stopped, or asleep where no signal reaches it."""
    return full(text) or tree(text) or stuck(text) or table(text)


def stuck(text: str) -> list[Process]:
    """Who is stopped while its like are not, and who sleeps in the kernel by its own words; none if nobody is."""
    rows = [
        _Row(int(match[1]), match[2], "", match[4]) for match in map(_AUX.match, text.splitlines()) if match
    ]
    told = [_Row(int(m[1]), m[2], m[3], m[4]) for m in map(_WCHAN.match, text.splitlines()) if m]
    rows = _by_header(text) or rows or told
    going = {_name(row.title) for row in rows if row.state not in ("T", "t", "Z", "X")}
    found = []
    for row in rows:
        asked = len(rows) == 1 and row.state == "T"  # by its number
        stopped = asked or (row.state in ("T", "t") and _name(row.title) in going)
        deep = row.state == "D" and kernels.deep(row.wchan)
        threads = (
            Thread(row.pid, "MainThread", state=row.state if deep else "", wchan=row.wchan or "unknown"),
        )
        found.append(
            Process(row.pid, title=row.title, state=row.state if stopped or deep else "", threads=threads)
        )
    return found if any(process.state for process in found) else []


@dataclass(frozen=True)
class _Row:
    pid: int
    state: str
    wchan: str
    title: str


def headed(text: str) -> bool:
    """Whether a line that names the columns of processes stands above rows of them."""
    return bool(_by_header(text))


def _by_header(text: str) -> list[_Row]:
    """Rows under a line that names the columns, whichever these are: the command has all that no other takes."""
    found: list[_Row] = []
    names: list[str] = []
    wide = 0
    for line in text.splitlines():
        words = line.lstrip("$# ").split()
        if "PID" in words and {"STAT", "S", "STATE"} & set(words):
            names = words
            wide = next((at for at, name in enumerate(names) if name in _COMMANDS), len(names) - 1)
            continue
        parts = _BEGAN.sub("-", line).split(None, wide) if names else []
        parts[wide:] = [
            part.strip() for part in parts[wide:] for part in part.rsplit(None, len(names) - 1 - wide)
        ]
        row = dict(zip(names, parts, strict=False))
        state = row.get("STAT") or row.get("S") or row.get("STATE") or ""
        if len(parts) == len(names) and row.get("PID", "").isdigit() and _STATE.match(state):
            found.append(_Row(int(row["PID"]), state[0], row.get("WCHAN", ""), parts[wide]))
    return found


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


def _name(title: str) -> str:
    return title.partition("<defun")[0].strip().strip("[]").split(" ")[0].rpartition("/")[2]
