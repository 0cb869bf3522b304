"""Build the JSON document `grpo-doctor.hang.v1` of a diagnosis, and group its processes for all output formats."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from diagnostics.hang.blocking_calls import frame_text
from diagnostics.hang.blocking_thread import BlockedState
from diagnostics.hang.diagnosis import Diagnosis
from diagnostics.hang.known_issues import issue_document
from diagnostics.hang.wait_kinds import CAUSES

SCHEMA = "grpo-doctor.hang.v1"
MAX_FRAMES = 12

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


def _order(state: BlockedState) -> tuple[int, int, int]:
    process = state.process
    return (0 if process.rank is not None else 1, process.rank or 0, process.pid)


def _process_document(state: BlockedState) -> dict[str, Any]:
    process, thread = state.process, state.thread
    frame = state.call.caller or state.call.frame
    text = state.call.wait.text
    if state.kind in ("native", "file", "kernel") and state.call.detail:
        text = f"{text} ({state.call.detail})"
    return {
        "key": process.key,
        "pid": process.pid,
        "ppid": process.ppid,
        "host": process.host,
        "role": process.role,
        "rank": process.rank,
        "label": process.label,
        "state": process.state,
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
    """Return (place, the processes in it) without helpers, the smallest group first: it is the odd one."""
    groups: dict[tuple[str, str], Members] = {}
    for process in document["processes"]:
        if process["role"] != "helper":
            groups.setdefault((process["text"], process["where"]), []).append(process)
    labelled = [
        (f"{text} in {where}" if where else text, members) for (text, where), members in groups.items()
    ]
    return sorted(labelled, key=lambda item: (len(item[1]), item[1][0]["pid"]))


def group_name(members: Members, most: int = 6) -> str:
    """Return the processes of a group in a few words.

    >>> group_name([{"rank": 0, "role": "trainer", "pid": 7}, {"rank": 2, "role": "trainer", "pid": 9}])
    'ranks 0 (pid 7), 2 (pid 9)'
    """
    if len(members) == 1:
        return str(members[0].get("label") or f"pid {members[0]['pid']}")
    if (
        all(member["rank"] is not None for member in members)
        and len({member["role"] for member in members}) == 1
    ):
        names = [f"{member['rank']} (pid {member['pid']})" for member in members]
        word = "ranks" if members[0]["role"] == "trainer" else f"{members[0]['role']}s"
    else:
        names, word = [str(member["pid"]) for member in members], f"{len(members)} processes, pid"
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{word} {', '.join(names[:most])}{more}"


def stack_tree(document: dict[str, Any]) -> list[str]:
    """Return the tree of all stacks, outermost first, with the number of processes in each branch."""
    root: dict[str, Any] = {}
    for process in document["processes"]:
        node = root
        for frame in reversed(process["frames"] or ["(no stack)"]):
            entry = node.setdefault(frame, {"members": [], "children": {}})
            entry["members"].append(process)
            node = entry["children"]
    return list(_tree_lines(root, 0))


def _tree_lines(node: dict[str, Any], depth: int) -> Iterator[str]:
    for frame, entry in sorted(node.items(), key=lambda item: -len(item[1]["members"])):
        leaf = "" if entry["children"] else f"   ← {group_name(entry['members'])}"
        yield f"{'  ' * depth}{len(entry['members']):>3}  {frame}{leaf}"
        yield from _tree_lines(entry["children"], depth + 1)
