"""Build the JSON document `grpo-doctor.hang.v1` of a diagnosis, and group its processes for all output formats."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from diagnostics.hang.blocking_calls import frame_text
from diagnostics.hang.blocking_thread import BlockedState
from diagnostics.hang.diagnosis import Diagnosis
from diagnostics.hang.known_issues import issue_document
from diagnostics.hang.wait_kinds import CAUSES

SCHEMA = "grpo-doctor.hang.v1"
MAX_FRAMES = 12
_MAX_MEMBERS = 6
_PROCESS_FIELDS = ("key", "pid", "ppid", "host", "role", "rank", "label", "state")

Members = list[dict[str, Any]]


def document_of(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return the document `grpo-doctor.hang.v1` of a diagnosis."""
    verdict, index = diagnosis.verdict, diagnosis.index
    states = sorted(index.states.values(), key=_order)
    return {
        "schema": SCHEMA,
        **asdict(verdict),
        "cause_means": CAUSES[verdict.cause].means if verdict.cause else "",
        "helps": issue_document(diagnosis),
        "processes": [_process_document(state) for state in states],
        "edges": [dict(vars(edge)) for edges in diagnosis.graph.values() for edge in edges],
        "watched_s": index.snapshot.seconds,
        "source": index.snapshot.source,
        "notes": list(index.snapshot.notes),
    }


def _order(state: BlockedState) -> tuple[bool, int, int]:
    return state.process.rank is None, state.process.rank or 0, state.process.pid


def _process_document(state: BlockedState) -> dict[str, Any]:
    process, thread = state.process, state.thread
    frame = state.call.caller or state.call.frame
    text = state.call.wait.text
    if state.kind in ("native", "file", "kernel") and state.call.detail:
        text = f"{text} ({state.call.detail})"
    return {
        **{name: getattr(process, name) for name in _PROCESS_FIELDS},
        "stands": state.kind,
        "text": text,
        "where": frame_text(frame) if frame else "",
        "frames": [frame_text(item) for item in state.frames[:MAX_FRAMES]],
        "threads": len(process.threads),
        "asleep_s": state.asleep_s,
        "unseen": list(process.unseen),
        "runnable": round(thread.runnable, 2) if thread and thread.runnable is not None else None,
    }


def same_place_groups(document: dict[str, Any]) -> list[tuple[str, Members]]:
    """Group processes without helpers by the place at which they are blocked, the smallest group first."""
    groups: dict[str, Members] = {}
    for process in document["processes"]:
        if process["role"] != "helper":
            place = f"{process['text']} in {process['where']}" if process["where"] else process["text"]
            groups.setdefault(place, []).append(process)
    return sorted(groups.items(), key=lambda item: (len(item[1]), item[1][0]["pid"]))


def group_name(members: Members) -> str:
    """Return the processes of a group in a few words.

    >>> group_name([{"rank": 0, "role": "trainer", "pid": 7}, {"rank": 2, "role": "trainer", "pid": 9}])
    'ranks 0 (pid 7), 2 (pid 9)'
    """
    if len(members) == 1:
        return str(members[0]["label"])
    roles = {member["role"] for member in members}
    if len(roles) == 1 and all(member["rank"] is not None for member in members):
        names = [f"{member['rank']} (pid {member['pid']})" for member in members]
        word = "ranks" if roles == {"trainer"} else f"{members[0]['role']}s"
    else:
        names, word = [str(member["pid"]) for member in members], f"{len(members)} processes, pid"
    more = f" and {len(names) - _MAX_MEMBERS} more" if len(names) > _MAX_MEMBERS else ""
    return f"{word} {', '.join(names[:_MAX_MEMBERS])}{more}"


def stack_lines(document: dict[str, Any]) -> list[str]:
    """Return all stacks as lines, innermost frame first; processes with equal stacks share one."""
    groups: dict[tuple[str, ...], Members] = {}
    for process in document["processes"]:
        groups.setdefault(tuple(process["frames"]), []).append(process)
    return [
        line
        for frames, members in groups.items()
        for line in (f"{group_name(members)}:", *(f"  {frame}" for frame in frames or ("no stack",)))
    ]
