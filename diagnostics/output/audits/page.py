"""An audit as one self-contained page. Light and dark."""

from __future__ import annotations

from html import escape
from typing import Any

from diagnostics.output import pages
from diagnostics.output.audits import pictures, terminal, wording

_STYLE = """
h1{font-size:1.15rem}h2{font-size:1rem;margin:1.4rem 0 .2rem}.said{font-size:1.25rem;margin:.4rem 0 1rem}
.not_asked{color:var(--dim)}.fault{color:var(--fail)}.clean{color:var(--pass)}
.not_decided,.masked{color:var(--wait)}
figure{margin:1.2rem 0;max-width:54rem}rect{fill:var(--edge)}line{stroke:var(--fail);stroke-width:1.5}
svg text{fill:var(--ink);font:12px system-ui,sans-serif}
@media (max-width:40rem){svg text{font-size:20px}}
"""


def text(document: dict[str, Any]) -> str:
    """The page."""
    outcome = document["outcome"]
    parts = [
        f"<h1 class='{outcome}'>audit: {escape(wording.HEADS[outcome])}</h1>",
        f"<p class='said'>{escape(document['sentence'])}</p>",
        _list([f"{role}: {value}" for role, value in document["subject"].items()], "dim"),
        *map(_answer, document["answers"]),
        pictures.drawn(document["pictures"]),
        f"<p class='dim'>{escape(terminal.cost(document))}</p>",
    ]
    return pages.framed(f"audit: {wording.HEADS[outcome]}", parts, _STYLE)


def _answer(answer: dict[str, Any]) -> str:
    code = f" {answer['code']}" if answer["code"] and answer["outcome"] == "fault" else ""
    word = f"<span class='{answer['outcome']}'>{wording.HEADS[answer['outcome']]}{escape(code)}</span>"
    helps = [f"{one['name']}: {one['about']}" for one in answer["helps"].get("mitigations", ())]
    return (
        f"<h2>{word} <span class='dim'>{escape(answer['probe'])}</span> {escape(answer['sentence'])}</h2>"
        + _list(terminal.details(answer))
        + (f"<p>What helps: {escape(answer['helps']['title'])}</p>{_list(helps)}" if helps else "")
    )


def _list(lines: list[str], kind: str = "") -> str:
    if not lines:
        return ""
    return f"<ul class='{kind}'>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"
