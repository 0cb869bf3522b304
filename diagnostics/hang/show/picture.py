"""The graph of who waits for whom, as SVG: columns where there is room for them, one below the other elsewhere."""

from __future__ import annotations

import textwrap
from html import escape
from typing import Any

from diagnostics.hang.show import groups

_WIDTH, _HEIGHT, _GAP_X, _GAP_Y, _EDGE = 270, 66, 110, 26, 34
# Letters that fit into a line of a box.
_WRAP = 40
# A picture is drawn smaller down to this part of its size, below which nobody reads it.
_SMALLEST = 0.75
# What a page has on both sides of it, and how wide it is at most (report/look.css).
_MARGINS, _WIDEST = 80, 1152

Places = dict[str, tuple[int, int]]


def pictures(document: dict[str, Any]) -> tuple[str, str]:
    """The graph twice, of which a screen shows the one that fits it, and the style that chooses."""
    nodes, edges, on = _graph(document)
    depth = _depths(list(nodes), list(edges))
    said = escape(document["sentence"])
    made, widths = "", {}
    for name, place in (("wide", _placed), ("tall", _stacked)):
        places = place(nodes, depth)
        width = max((x for x, _ in places.values()), default=0) + _WIDTH + _EDGE
        height = max((y for _, y in places.values()), default=0) + _HEIGHT + _EDGE
        drawn = [_arrow(name, places, pair, sure=sure, on=pair in on) for pair, sure in edges.items()]
        drawn += [_box(places[key], *nodes[key], hang=document["outcome"] == "hang") for key in nodes]
        # The size in letters, too: an SVG without one fills whatever it stands in.
        frame = f"class='{name}' width='{width}' height='{height}' viewBox='0 0 {width} {height}'"
        made += f"<svg role='img' aria-label='{said}' {frame}>{_HEAD.format(name)}{''.join(drawn)}</svg>"
        widths[name] = width
    needed = int(_SMALLEST * widths["wide"]) + _MARGINS
    narrow = f"(max-width:{needed}px)" if needed <= _WIDEST else "all"
    return made, f".tall{{display:none}}@media {narrow}{{.tall{{display:block}}.wide{{display:none}}}}"


_HEAD = (
    "<defs><marker id='{}-head' viewBox='0 0 8 8' refX='8' refY='4' markerWidth='10' markerHeight='10' orient='auto' "
    "markerUnits='userSpaceOnUse'>"
    "<path d='M0 0L8 4L0 8z'/></marker></defs>"
)


def _graph(
    document: dict[str, Any],
) -> tuple[dict[str, tuple[str, str, bool]], dict[tuple[str, str], bool], set[tuple[Any, Any]]]:
    """Boxes by name, arrows with whether they are sure, and those of the chain.

    Processes that stand alike and are no culprits are one box.
    """
    nodes, member = _nodes(document)
    edges: dict[tuple[str, str], bool] = {}
    on = {(member.get(e["source"]), member.get(e["target"], e["target"])) for e in document["chain"]}
    labels = {e["target"]: e["label"] for e in document["edges"]}
    for edge in document["edges"]:
        target = member.get(edge["target"])
        if target is None:
            target = edge["target"]
            nodes.setdefault(target, (labels[target], "not seen here", target in document["culprits"]))
        source = member.get(edge["source"])
        if source and source != target:
            edges[source, target] = edges.get((source, target), False) or edge["certain"]
    return nodes, edges, on


def _nodes(document: dict[str, Any]) -> tuple[dict[str, tuple[str, str, bool]], dict[str, str]]:
    """Boxes by name, and the box of each process."""
    nodes: dict[str, tuple[str, str, bool]] = {}
    member: dict[str, str] = {}
    for where, members in groups.alike(document):
        guilty = [one for one in members if one["key"] in document["culprits"]]
        for part in (*([one] for one in guilty), [one for one in members if one not in guilty]):
            if part:
                name = part[0]["key"]
                nodes[name] = (groups.called(part, 4), where, bool(part[0] in guilty))
                member |= dict.fromkeys((one["key"] for one in part), name)
    return nodes, member


def _depths(nodes: list[str], edges: list[tuple[str, str]]) -> dict[str, int]:
    """Columns: who waits stands left of whom it waits for; a cycle is cut where it closes."""
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


def _placed(nodes: dict[str, Any], depth: dict[str, int]) -> Places:
    """Columns, left to right."""
    counts: dict[int, int] = {}
    places = {}
    for key in nodes:
        column = depth[key]
        row = counts.get(column, 0)
        counts[column] = row + 1
        places[key] = (_EDGE + column * (_WIDTH + _GAP_X), _EDGE + row * (_HEIGHT + _GAP_Y))
    return places


def _stacked(nodes: dict[str, Any], depth: dict[str, int]) -> Places:
    """One below the other, who is waited for last."""
    inorder = sorted(nodes, key=lambda key: depth[key])
    return {key: (_EDGE, _EDGE + row * (_HEIGHT + _GAP_Y)) for row, key in enumerate(inorder)}


def _arrow(name: str, places: Places, pair: tuple[str, str], *, sure: bool, on: bool) -> str:
    """A curve from the right side of a box to the left side of another; backwards a little lower."""
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
    classes = "edge" + (" on" if on else "") + ("" if sure else " guess")
    return f"<path class='{classes}' marker-end='url(#{name}-head)' d='M{start[0]} {start[1]}C{curve}'/>"


def _box(place: tuple[int, int], name: str, where: str, guilty: bool, *, hang: bool) -> str:
    x, y = place
    mark = " class='bad'" if guilty and hang else ""
    lines = textwrap.wrap(where, _WRAP, max_lines=2, placeholder=" …")
    said = "".join(
        f"<text class='dim' x='{x + 10}' y='{y + 38 + 15 * n}'>{escape(line)}</text>"
        for n, line in enumerate(lines)
    )
    return (
        f"<g><title>{escape(name)}: {escape(where)}</title>"
        f"<rect{mark} x='{x}' y='{y}' width='{_WIDTH}' height='{_HEIGHT}' rx='6'/>"
        f"<text x='{x + 10}' y='{y + 20}'>{escape(name[:_WRAP])}</text>{said}</g>"
    )
