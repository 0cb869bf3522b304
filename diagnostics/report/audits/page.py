"""An audit as one self-contained page. Light and dark."""

from __future__ import annotations

from html import escape
from typing import Any

from diagnostics.report.audits import pictures, terminal, wording

_STYLE = """
:root{color-scheme:light dark;--bg:#fff;--fg:#1b1f24;--dim:#5b6570;--box:#f3f5f7;--line:#8a949e;--bad:#b3261e;
--good:#1a6b2b;--open:#8a5a00}
@media (prefers-color-scheme:dark){:root{--bg:#14171a;--fg:#e6e9ec;--dim:#9aa5b1;--box:#20262c;--line:#66717c;
--bad:#ff8a80;--good:#81c995;--open:#fdd663}}
body{background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,sans-serif;max-width:900px;margin:2rem auto;
padding:0 1rem}
h1{font-size:1.1rem;margin:0}h2{font-size:1rem;margin:1.4rem 0 .2rem}.said{font-size:1.2rem;margin:.4rem 0 1rem}
.dim,.not_asked{color:var(--dim)}.fault{color:var(--bad)}.clean{color:var(--good)}
.not_decided,.masked{color:var(--open)}
figure{margin:1.2rem 0}rect{fill:var(--line)}line{stroke:var(--bad);stroke-width:1.5}
svg text{fill:var(--fg);font:12px system-ui,sans-serif}
li{overflow-wrap:anywhere}ul{margin:.2rem 0}
"""


def text(document: dict[str, Any]) -> str:
    """The page."""
    outcome = document["outcome"]
    parts = [
        "<!doctype html><html lang='en'><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width,initial-scale=1'>",
        f"<title>audit: {escape(wording.HEADS[outcome])}</title><style>{_STYLE}</style>",
        f"<h1 class='{outcome}'>audit: {escape(wording.HEADS[outcome])}</h1>",
        f"<p class='said'>{escape(document['sentence'])}</p>",
        _list([f"{role}: {value}" for role, value in document["subject"].items()], "dim"),
        *map(_answer, document["answers"]),
        pictures.drawn(document["pictures"]),
        f"<p class='dim'>{escape(terminal.cost(document))}</p>",
    ]
    return "\n".join(parts) + "\n"


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
