"""Lay out the wait graph as a picture: boxes in columns, a waiting process left of its blocker, and arrows."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Any

from diagnostics.hang.document import group_name, same_place_groups

WIDTH, HEIGHT = 270, 66
_GAP_X, _GAP_Y, _MARGIN = 110, 26, 34
_LETTERS = 40
"""Letters in a line of a box."""


@dataclass
class Box:
    """Processes that are in the same place; those that block others have a box of their own."""

    name: str
    where: str
    blocks: bool
    x: int = 0
    y: int = 0

    @property
    def wrapped(self) -> list[str]:
        """The lines below the name."""
        return textwrap.wrap(self.where, _LETTERS, max_lines=2, placeholder=" …")


@dataclass(frozen=True)
class Arrow:
    """A wait: its SVG path, whether it is certain, and whether it is on the chain to the blocker."""

    path: str
    certain: bool
    on_chain: bool


@dataclass(frozen=True)
class Picture:
    """The wait graph in pixels."""

    boxes: list[Box]
    arrows: list[Arrow]
    width: int
    height: int


def draw(document: dict[str, Any]) -> Picture:
    """Return the picture of a report's document."""
    boxes, box_of = _boxes(document)
    edges: dict[tuple[str, str], bool] = {}
    for edge in document["edges"]:
        source, target = box_of.get(edge["source"]), box_of.setdefault(edge["target"], edge["target"])
        if target not in boxes:
            boxes[target] = Box(edge["label"], "not observed", target in document["culprits"])
        if source and source != target:
            edges[source, target] = edges.get((source, target), False) or edge["certain"]
    rows: dict[int, int] = {}
    for key, column in _columns(list(boxes), list(edges)).items():
        row = rows[column] = rows.get(column, -1) + 1
        boxes[key].x = _MARGIN + column * (WIDTH + _GAP_X)
        boxes[key].y = _MARGIN + row * (HEIGHT + _GAP_Y)
    chain = {(box_of.get(edge["source"]), box_of.get(edge["target"])) for edge in document["chain"]}
    arrows = [
        Arrow(_curve(boxes[source], boxes[target]), certain, (source, target) in chain)
        for (source, target), certain in edges.items()
    ]
    width = max((box.x for box in boxes.values()), default=0) + WIDTH + _MARGIN
    height = max((box.y for box in boxes.values()), default=0) + HEIGHT + _MARGIN
    return Picture(list(boxes.values()), arrows, width, height)


def _boxes(document: dict[str, Any]) -> tuple[dict[str, Box], dict[str, str]]:
    """Return the boxes by key, and the key of each process's box."""
    boxes: dict[str, Box] = {}
    box_of: dict[str, str] = {}
    for where, members in same_place_groups(document):
        blocking = [process for process in members if process["key"] in document["culprits"]]
        rest = [process for process in members if process not in blocking]
        for part in (*([process] for process in blocking), rest):
            if part:
                boxes[part[0]["key"]] = Box(group_name(part, 4), where, part[0] in blocking)
                box_of |= {process["key"]: part[0]["key"] for process in part}
    return boxes, box_of


def _columns(keys: list[str], edges: list[tuple[str, str]]) -> dict[str, int]:
    """Return the column of each box; cycles are cut where they close."""
    depth = dict.fromkeys(keys, 0)
    for _ in keys:
        for source, target in edges:
            closes_cycle = (target, source) in edges and source > target
            if not closes_cycle and depth[target] <= depth[source] < len(keys) - 1:
                depth[target] = depth[source] + 1
    levels = sorted(set(depth.values()))
    return {key: levels.index(value) for key, value in depth.items()}


def _curve(source: Box, target: Box) -> str:
    """Return the SVG path from the right side of a box to the left side of another; backward a little lower."""
    middle, half = WIDTH // 2, HEIGHT // 2
    if target.x > source.x:
        start, end, bends = (source.x + WIDTH, source.y + half), (target.x, target.y + half), (40, -40)
    elif target.x < source.x:
        start, end, bends = (
            (source.x, source.y + half + 12),
            (target.x + WIDTH, target.y + half + 12),
            (-40, 40),
        )
    elif target.y - source.y == HEIGHT + _GAP_Y:
        start, end, bends = (source.x + middle, source.y + HEIGHT), (target.x + middle, target.y), (0, 0)
    else:
        start, end, bends = (source.x, source.y + half), (target.x, target.y + half), (-40, -40)
    curve = f"{start[0] + bends[0]} {start[1]} {end[0] + bends[1]} {end[1]} {end[0]} {end[1]}"
    return f"M{start[0]} {start[1]}C{curve}"
