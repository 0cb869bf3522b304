"""One self-contained page: the sentence, the graph as a picture, the chain, all processes. Light and dark."""

from __future__ import annotations

from html import escape
from typing import Any

from diagnostics.hang.show import groups

_WIDTH, _HEIGHT, _GAP_X, _GAP_Y, _EDGE = 270, 66, 110, 26, 20
# Letters that fit into a line of a box.
_WRAP = 40
_STYLE = """
:root{color-scheme:light dark;--bg:#fff;--fg:#1b1f24;--dim:#5b6570;--box:#f3f5f7;--line:#8a949e;--bad:#b3261e;
--badbox:#fdecea;--wait:#0b57d0}
@media (prefers-color-scheme:dark){:root{--bg:#14171a;--fg:#e6e9ec;--dim:#9aa5b1;--box:#20262c;--line:#66717c;
--bad:#ff8a80;--badbox:#3a1f1d;--wait:#8ab4f8}}
body{background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,sans-serif;max-width:1100px;margin:2rem auto;
padding:0 1rem}
h1{font-size:1.1rem;margin:0}h2{font-size:1rem;margin:1.6rem 0 .4rem}.said{font-size:1.25rem;margin:.4rem 0 1rem}
.dim,td.dim{color:var(--dim)}.bad{color:var(--bad)}.scroll{overflow-x:auto}
svg text{fill:var(--fg);font:13px system-ui,sans-serif}svg .dim{fill:var(--dim);font-size:11.5px}
rect{fill:var(--box);stroke:var(--line)}rect.bad{fill:var(--badbox);stroke:var(--bad);stroke-width:2.5}
path.edge{stroke:var(--line);fill:none;stroke-width:1.5}path.on{stroke:var(--wait);stroke-width:2.5}
path.guess{stroke-dasharray:5 4}marker path{fill:var(--line)}
pre,code{font:12.5px ui-monospace,monospace;overflow-wrap:anywhere}
pre{background:var(--box);padding:.8rem;overflow-x:auto}table{border-collapse:collapse;width:100%}
td{border-top:1px solid var(--line);padding:.3rem .5rem;vertical-align:top}
"""


def text(document: dict[str, Any]) -> str:
    """The page."""
    code = f" {escape(document['code'])}" if document["code"] else ""
    hang = document["outcome"] == "hang"
    word = f"<span class='bad'>HANG{code}</span>" if hang else escape(document["outcome"].upper())
    certainty = f" <span class='dim'>{document['certainty']}</span>" if hang else ""
    parts = [
        "<!doctype html><html lang='en'><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width,initial-scale=1'>",
        f"<title>hang: {escape(document['outcome'])}{code}</title><style>{_STYLE}</style>",
        f"<h1>{word}{certainty}</h1><p class='said'>{escape(document['sentence'])}</p>",
        f"<div class='scroll'>{picture(document)}</div>",
        _chain(document),
    ]
    titles = (("Seen of it", "evidence"), ("Excluded", "excluded"), ("Not seen", "unseen"), ("Next", "next"))
    for title, key in titles:
        parts.append(_list(title, document[key]))
    parts += [_helps(document["helps"]), _table(document)]
    stacks = escape("\n".join(groups.tree(document)))
    parts.append(f"<details><summary>Stacks, outermost first</summary><pre>{stacks}</pre></details>")
    return "\n".join(part for part in parts if part) + "\n"


def _list(title: str, lines: list[str]) -> str:
    if not lines:
        return ""
    return (
        f"<h2>{title}</h2><ul>" + "".join(f"<li><code>{escape(line)}</code></li>" for line in lines) + "</ul>"
    )


def _chain(document: dict[str, Any]) -> str:
    names = {one["key"]: one["label"] for one in document["processes"]}
    items = []
    for edge in document["chain"]:
        source = escape(names.get(edge["source"], edge["source"]))
        seen = "".join(f"<br><code class='dim'>{escape(line)}</code>" for line in edge["evidence"])
        items.append(f"<li><b>{source}</b> {escape(edge['text'])} <b>{escape(edge['label'])}</b>{seen}</li>")
    return f"<h2>Who waits for whom</h2><ol>{''.join(items)}</ol>" if items else ""


def _helps(helps: dict[str, Any]) -> str:
    if not helps:
        return ""
    items = []
    for one in helps["mitigations"]:
        edits = "".join(
            f"<br><span class='dim'>{escape(k)}: {escape(v)}</span>" for k, v in one["edits"].items()
        )
        items.append(f"<li><b>{escape(one['name'])}</b>: {escape(one['about'])}{edits}</li>")
    return f"<h2>What helps ({escape(helps['code'])}: {escape(helps['title'])})</h2><ul>{''.join(items)}</ul>"


def _table(document: dict[str, Any]) -> str:
    rows = []
    for where, members in groups.alike(document):
        bad = document["outcome"] == "hang" and {one["key"] for one in members} & set(document["culprits"])
        mark = " class='bad'" if bad else ""
        rows.append(
            f"<tr><td{mark}>{escape(groups.called(members))}</td><td class='dim'>{escape(where)}</td></tr>"
        )
    return f"<h2>All processes</h2><table>{''.join(rows)}</table>"


def picture(document: dict[str, Any]) -> str:
    """The graph: processes that stand alike and are no culprits in one box, waits as arrows."""
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
    depth = _depths(list(nodes), list(edges))
    places = _placed(nodes, depth)
    width = (max(depth.values(), default=0) + 1) * (_WIDTH + _GAP_X) - _GAP_X + 2 * _EDGE
    height = max((y for _, y in places.values()), default=0) + _HEIGHT + 2 * _EDGE
    drawn = [_arrow(places, pair, sure=sure, on=pair in on) for pair, sure in edges.items()]
    drawn += [_box(places[key], *nodes[key], hang=document["outcome"] == "hang") for key in nodes]
    said = escape(document["sentence"])
    frame = f"width='{width}' height='{height}' viewBox='0 0 {width} {height}'"
    return f"<svg role='img' aria-label='{said}' {frame}>{_HEAD}{''.join(drawn)}</svg>"


_HEAD = (
    "<defs><marker id='a' viewBox='0 0 8 8' refX='8' refY='4' markerWidth='10' markerHeight='10' orient='auto' "
    "markerUnits='userSpaceOnUse'>"
    "<path d='M0 0L8 4L0 8z'/></marker></defs>"
)


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


def _placed(nodes: dict[str, Any], depth: dict[str, int]) -> dict[str, tuple[int, int]]:
    counts: dict[int, int] = {}
    places = {}
    for key in nodes:
        column = depth[key]
        row = counts.get(column, 0)
        counts[column] = row + 1
        places[key] = (_EDGE + column * (_WIDTH + _GAP_X), _EDGE + row * (_HEIGHT + _GAP_Y))
    return places


def _arrow(places: dict[str, tuple[int, int]], pair: tuple[str, str], *, sure: bool, on: bool) -> str:
    """A curve from the right side of a box to the left side of another; backwards a little lower."""
    (x1, y1), (x2, y2) = places[pair[0]], places[pair[1]]
    y1, y2 = y1 + _HEIGHT // 2, y2 + _HEIGHT // 2
    if x2 > x1:
        start, end, bend = (x1 + _WIDTH, y1), (x2, y2), (40, -40)
    elif x2 == x1:
        start, end, bend = (x1, y1), (x2, y2), (-40, -40)
    else:
        start, end, bend = (x1, y1 + 12), (x2 + _WIDTH, y2 + 12), (-40, 40)
    curve = f"{start[0] + bend[0]} {start[1]} {end[0] + bend[1]} {end[1]} {end[0]} {end[1]}"
    classes = "edge" + (" on" if on else "") + ("" if sure else " guess")
    return f"<path class='{classes}' marker-end='url(#a)' d='M{start[0]} {start[1]}C{curve}'/>"


def _box(place: tuple[int, int], name: str, where: str, guilty: bool, *, hang: bool) -> str:
    x, y = place
    mark = " class='bad'" if guilty and hang else ""
    lines = [where[:_WRAP], where[_WRAP : 2 * _WRAP] + ("…" if len(where) > 2 * _WRAP else "")]
    said = "".join(
        f"<text class='dim' x='{x + 10}' y='{y + 38 + 15 * n}'>{escape(line)}</text>"
        for n, line in enumerate(lines)
        if line
    )
    return (
        f"<g><title>{escape(name)}: {escape(where)}</title>"
        f"<rect{mark} x='{x}' y='{y}' width='{_WIDTH}' height='{_HEIGHT}' rx='6'/>"
        f"<text x='{x + 10}' y='{y + 20}'>{escape(name[:_WRAP])}</text>{said}</g>"
    )
