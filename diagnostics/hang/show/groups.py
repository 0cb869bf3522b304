"""Processes that stand in the same place, together: thirty-one of thirty-two ranks are one line."""

from __future__ import annotations

from typing import Any


def alike(document: dict[str, Any]) -> list[tuple[str, list[dict[str, Any]]]]:
    """(what they are in, the processes), helpers left out; the smallest group first: it is the odd one."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for process in document["processes"]:
        if process["role"] != "helper":
            groups.setdefault((process["text"], process["where"]), []).append(process)
    named = [(f"{text} in {where}" if where else text, members) for (text, where), members in groups.items()]
    return sorted(named, key=lambda item: (len(item[1]), item[1][0]["pid"]))


def called(members: list[dict[str, Any]], most: int = 6) -> str:
    """The processes of a group, in a few words.

    >>> called([{"rank": 0, "role": "trainer", "pid": 7}, {"rank": 2, "role": "trainer", "pid": 9}])
    'ranks 0, 2'
    """
    if len(members) == 1:
        return str(members[0].get("label") or f"pid {members[0]['pid']}")
    if all(one["rank"] is not None for one in members) and len({one["role"] for one in members}) == 1:
        names = [str(one["rank"]) for one in members]
        word = "ranks" if members[0]["role"] == "trainer" else f"{members[0]['role']}s"
    else:
        names, word = [str(one["pid"]) for one in members], f"{len(members)} processes, pid"
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{word} {', '.join(names[:most])}{more}"


def tree(document: dict[str, Any]) -> list[str]:
    """A tree of stacks, outermost first, with how many processes share each branch."""
    root: dict[str, Any] = {}
    for process in document["processes"]:
        node = root
        for frame in reversed(process["frames"] or ["(no stack)"]):
            entry = node.setdefault(frame, {"members": [], "below": {}})
            entry["members"].append(process)
            node = entry["below"]
    lines: list[str] = []

    def walk(node: dict[str, Any], depth: int) -> None:
        for frame, entry in sorted(node.items(), key=lambda item: -len(item[1]["members"])):
            leaf = "" if entry["below"] else f"   ← {called(entry['members'])}"
            lines.append(f"{'  ' * depth}{len(entry['members']):>3}  {frame}{leaf}")
            walk(entry["below"], depth + 1)

    walk(root, 0)
    return lines
