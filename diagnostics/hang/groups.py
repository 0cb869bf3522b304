"""Group processes that are in the same place: thirty-one of thirty-two ranks are one line."""

from __future__ import annotations

from typing import Any

Members = list[dict[str, Any]]


def same_place_groups(document: dict[str, Any]) -> list[tuple[str, Members]]:
    """Return (what they are in, the processes) without helpers, the smallest group first: it is the odd one."""
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


def _tree_lines(node: dict[str, Any], depth: int) -> Any:
    for frame, entry in sorted(node.items(), key=lambda item: -len(item[1]["members"])):
        leaf = "" if entry["children"] else f"   ← {group_name(entry['members'])}"
        yield f"{'  ' * depth}{len(entry['members']):>3}  {frame}{leaf}"
        yield from _tree_lines(entry["children"], depth + 1)
