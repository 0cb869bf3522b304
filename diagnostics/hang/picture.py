"""Draw the wait graph as SVG: in columns on wide screens, one below the other on narrow ones."""

from __future__ import annotations

import textwrap
from html import escape
from typing import Any

from diagnostics.hang.groups import group_name, same_place_groups

_WIDTH, _HEIGHT, _GAP_X, _GAP_Y, _EDGE = 270, 66, 110, 26, 34
# Letters in a line of a box.
_WRAP = 40
# Below this scale the picture is unreadable.
_SMALLEST = 0.75
# Margins and largest width of a page (output/look.css).
_MARGINS, _WIDEST = 80, 1152

Positions = dict[str, tuple[int, int]]


def draw(document: dict[str, Any]) -> tuple[str, str]:
    """Return the graph twice, for wide and narrow screens, and the style that chooses."""
    nodes, edges, on = _graph(document)
    depth = _depths(list(nodes), list(edges))
    label = escape(document["sentence"])
    images, widths = "", {}
    for name, arrange in (("wide", _in_columns), ("tall", _in_rows)):
        places = arrange(nodes, depth)
        width = max((x for x, _ in places.values()), default=0) + _WIDTH + _EDGE
        height = max((y for _, y in places.values()), default=0) + _HEIGHT + _EDGE
        shapes = [
            _arrow(name, places, pair, certain=certain, on=pair in on) for pair, certain in edges.items()
        ]
        shapes += [_box(places[key], *nodes[key], hang=document["outcome"] == "hang") for key in nodes]
        # With its size as attributes: an SVG without fills its container.
        frame = f"class='{name}' width='{width}' height='{height}' viewBox='0 0 {width} {height}'"
        images += f"<svg role='img' aria-label='{label}' {frame}>{_HEAD.format(name)}{''.join(shapes)}</svg>"
        widths[name] = width
    needed = int(_SMALLEST * widths["wide"]) + _MARGINS
    narrow = f"(max-width:{needed}px)" if needed <= _WIDEST else "all"
    return images, f".tall{{display:none}}@media {narrow}{{.tall{{display:block}}.wide{{display:none}}}}"


_HEAD = (
    "<defs><marker id='{}-head' viewBox='0 0 8 8' refX='8' refY='4' markerWidth='10' markerHeight='10' orient='auto' "
    "markerUnits='userSpaceOnUse'>"
    "<path d='M0 0L8 4L0 8z'/></marker></defs>"
)


def _graph(
    document: dict[str, Any],
) -> tuple[dict[str, tuple[str, str, bool]], dict[tuple[str, str], bool], set[tuple[Any, Any]]]:
    """Return boxes by name, arrows with whether they are certain, and the arrows of the chain.

    Processes in the same place are one box, unless they block the others.
    """
    nodes, member = _nodes(document)
    edges: dict[tuple[str, str], bool] = {}
    on = {(member.get(e["source"]), member.get(e["target"], e["target"])) for e in document["chain"]}
    labels = {e["target"]: e["label"] for e in document["edges"]}
    for edge in document["edges"]:
        target = member.get(edge["target"])
        if target is None:
            target = edge["target"]
            nodes.setdefault(target, (labels[target], "not observed", target in document["culprits"]))
        source = member.get(edge["source"])
        if source and source != target:
            edges[source, target] = edges.get((source, target), False) or edge["certain"]
    return nodes, edges, on


def _nodes(document: dict[str, Any]) -> tuple[dict[str, tuple[str, str, bool]], dict[str, str]]:
    """Return boxes by name, and the box of each process."""
    nodes: dict[str, tuple[str, str, bool]] = {}
    member: dict[str, str] = {}
    for where, members in same_place_groups(document):
        guilty = [process for process in members if process["key"] in document["culprits"]]
        for part in (
            *([process] for process in guilty),
            [process for process in members if process not in guilty],
        ):
            if part:
                name = part[0]["key"]
                nodes[name] = (group_name(part, 4), where, bool(part[0] in guilty))
                member |= dict.fromkeys((process["key"] for process in part), name)
    return nodes, member


def _depths(nodes: list[str], edges: list[tuple[str, str]]) -> dict[str, int]:
    """Return the column of each box: a waiting process is left of its blocker; cycles are cut where they close."""
    depth = dict.fromkeys(nodes, 0)
    for _ in range(len(nodes)):
        moved = False
        for source, target in edges:
            if (target, source) in edges and source > target:
                continue
            if depth[target] < depth[source] + 1 <= len(nodes) - 1:
                depth[target], moved = depth[source] + 1, True
        if not moved:
            break
    levels = sorted(set(depth.values()))
    return {key: levels.index(value) for key, value in depth.items()}


def _in_columns(nodes: dict[str, Any], depth: dict[str, int]) -> Positions:
    """Return positions in columns, left to right."""
    counts: dict[int, int] = {}
    places = {}
    for key in nodes:
        column = depth[key]
        row = counts.get(column, 0)
        counts[column] = row + 1
        places[key] = (_EDGE + column * (_WIDTH + _GAP_X), _EDGE + row * (_HEIGHT + _GAP_Y))
    return places


def _in_rows(nodes: dict[str, Any], depth: dict[str, int]) -> Positions:
    """Return positions one below the other, who is waited for last."""
    ordered = sorted(nodes, key=lambda key: depth[key])
    return {key: (_EDGE, _EDGE + row * (_HEIGHT + _GAP_Y)) for row, key in enumerate(ordered)}


def _arrow(name: str, places: Positions, pair: tuple[str, str], *, certain: bool, on: bool) -> str:
    """Return a curve from the right side of a box to the left side of another; backwards a little lower."""
    (x1, y1), (x2, y2) = places[pair[0]], places[pair[1]]
    middle, half = _WIDTH // 2, _HEIGHT // 2
    if x2 > x1:
        start, end, bend = (x1 + _WIDTH, y1 + half), (x2, y2 + half), (40, -40)
    elif x2 < x1:
        start, end, bend = (x1, y1 + half + 12), (x2 + _WIDTH, y2 + half + 12), (-40, 40)
    elif y2 - y1 == _HEIGHT + _GAP_Y:
        start, end, bend = (x1 + middle, y1 + _HEIGHT), (x2 + middle, y2), (0, 0)
    else:
        start, end, bend = (x1, y1 + half), (x2, y2 + half), (-40, -40)
    curve = f"{start[0] + bend[0]} {start[1]} {end[0] + bend[1]} {end[1]} {end[0]} {end[1]}"
    classes = "edge" + (" on" if on else "") + ("" if certain else " guess")
    return f"<path class='{classes}' marker-end='url(#{name}-head)' d='M{start[0]} {start[1]}C{curve}'/>"


def _box(place: tuple[int, int], name: str, where: str, guilty: bool, *, hang: bool) -> str:
    x, y = place
    mark = " class='bad'" if guilty and hang else ""
    lines = textwrap.wrap(where, _WRAP, max_lines=2, placeholder=" …")
    details = "".join(
        f"<text class='dim' x='{x + 10}' y='{y + 38 + 15 * n}'>{escape(line)}</text>"
        for n, line in enumerate(lines)
    )
    return (
        f"<g><title>{escape(name)}: {escape(where)}</title>"
        f"<rect{mark} x='{x}' y='{y}' width='{_WIDTH}' height='{_HEIGHT}' rx='6'/>"
        f"<text x='{x + 10}' y='{y + 20}'>{escape(name[:_WRAP])}</text>{details}</g>"
    )
