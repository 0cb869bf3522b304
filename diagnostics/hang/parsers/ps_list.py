"""Parse `ps` output with a STAT column: which processes are stopped, or asleep in the kernel on a file server."""

from __future__ import annotations

import re

from diagnostics.hang.snapshot import Process, Thread

_STATE = re.compile(r"[RSDTtZXIW][<NLsl+]{0,5}$")
_COMMANDS = ("COMMAND", "CMD", "ARGS")
_FILE_SERVER_OR_DRIVER = re.compile(
    r"nfs\d?_|rpc_wait|fuse_|request_wait_answer|ptlrpc|ldlm_|ll_\w+lock|ceph_|cifs_|gpfs|cxi|beegfs"
    r"|nvidia_|nv\d{5,}|os_acquire_\w+|uvm_|amdgpu_|kfd_"
)


def parse_text(lines: list[str]) -> list[Process]:
    """Return the listed processes; a state is kept only if it explains a hang."""
    rows = _table_rows(lines)
    running = {_program(row) for row in rows if row["state"][0] not in "TtZX"}
    return [_process(row, running, alone=len(rows) == 1) for row in rows]


def _table_rows(lines: list[str]) -> list[dict[str, str]]:
    rows = []
    names: list[str] = []
    command = 0
    for line in lines:
        words = line.lstrip("$# ").split()
        if "PID" in words and {"STAT", "S", "STATE"} & set(words):
            names = words
            command = next((place for place, name in enumerate(names) if name in _COMMANDS), len(names) - 1)
            continue
        parts = line.split(None, command) if names else []
        parts[command:] = [
            part.strip() for rest in parts[command:] for part in rest.rsplit(None, len(names) - 1 - command)
        ]
        row = dict(zip(names, parts, strict=False))
        state = row.get("STAT") or row.get("S") or row.get("STATE") or ""
        pid = row.get("PID", "")
        if len(parts) == len(names) and pid.isdecimal() and len(pid) <= 9 and _STATE.match(state):
            rows.append({"pid": pid, "state": state, "wchan": row.get("WCHAN", ""), "title": parts[command]})
    return rows


def _process(row: dict[str, str], running: set[str], *, alone: bool) -> Process:
    """Build a process: it counts as stopped if others of its name run, or if it was listed by its number."""
    pid, state = int(row["pid"]), row["state"][0]
    stopped = state in "Tt" and (alone or _program(row) in running)
    blocked = state == "D" and bool(_FILE_SERVER_OR_DRIVER.match(row["wchan"]))
    thread = Thread(pid, "MainThread", state=state if blocked else "", wchan=row["wchan"] or "unknown")
    return Process(pid, title=row["title"], state=state if stopped or blocked else "", threads=(thread,))


def _program(row: dict[str, str]) -> str:
    return row["title"].split(" ")[0].rpartition("/")[2]
