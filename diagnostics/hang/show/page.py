"""One self-contained page: the sentence, the graph as a picture, the chain, all processes. Light and dark."""

from __future__ import annotations

from html import escape
from typing import Any

from diagnostics.hang.show import groups, picture
from diagnostics.output import pages

_STYLE = """
h1{font-size:1.15rem}.said{font-size:1.25rem;margin:.4rem 0 1rem}.bad{color:var(--fail)}
figure{margin:1.2rem 0}figure svg{max-width:100%;height:auto}
svg text{fill:var(--ink);font:13px system-ui,sans-serif}svg .dim{fill:var(--dim);font-size:11.5px}
rect{fill:var(--raised);stroke:var(--edge)}
rect.bad{fill:color-mix(in srgb,var(--fail) 12%,var(--paper));stroke:var(--fail);stroke-width:2.5}
path.edge{stroke:var(--edge);fill:none;stroke-width:1.5}path.on{stroke:var(--stop);stroke-width:2.5}
path.guess{stroke-dasharray:5 4}marker path{fill:var(--edge)}
table{border-collapse:collapse;width:100%}
td{border-top:1px solid var(--line);padding:.3rem .5rem;vertical-align:top;overflow-wrap:anywhere}
"""


def text(document: dict[str, Any]) -> str:
    """The page."""
    code = f" {escape(document['code'])}" if document["code"] else ""
    hang = document["outcome"] == "hang"
    word = f"<span class='bad'>HANG{code}</span>" if hang else escape(document["outcome"].upper())
    certainty = f" <span class='dim'>{document['certainty']}</span>" if hang else ""
    drawn, choice = picture.pictures(document)
    parts = [
        f"<h1>{word}{certainty}</h1><p class='said'>{escape(document['sentence'])}</p>",
        f"<figure>{drawn}</figure>",
        _chain(document),
    ]
    titles = (("Seen of it", "evidence"), ("Excluded", "excluded"), ("Not seen", "unseen"), ("Next", "next"))
    for title, key in titles:
        parts.append(_list(title, document[key]))
    parts += [_helps(document["helps"]), _table(document)]
    stacks = escape("\n".join(groups.tree(document)))
    parts.append(
        f"<details><summary>Stacks, outermost first</summary><pre tabindex='0'>{stacks}</pre></details>"
    )
    return pages.framed(
        f"hang: {document['outcome']}{document['code'] and ' ' + document['code']}", parts, _STYLE + choice
    )


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
