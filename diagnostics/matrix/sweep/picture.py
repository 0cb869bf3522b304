"""Releases by failures and mitigations, as one SVG picture: symbol and shade, no script, light and dark."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from diagnostics.matrix.ask.attempts import UNMITIGATED, WHOLE
from diagnostics.matrix.sweep import results

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CELL, LEFT, TOP, LINE = 20, 250, 92, 20
_STYLE = """
text{font:12px system-ui,sans-serif;fill:#222}.title{font-weight:600}.small{font-size:11px}.mid{text-anchor:middle}
rect{stroke:#fff;stroke-width:1}.bad{fill:#f3c1bb}.good{fill:#bfe3c4}.some{fill:#f6e3ac}.none{fill:#ececec}
.unknown{fill:#fff;stroke:#999}svg{background:#fff}
@media(prefers-color-scheme:dark){svg{background:#16181c}text{fill:#e6e6e6}rect{stroke:#16181c}.bad{fill:#7d2f27}
.good{fill:#245c31}.some{fill:#6b5613}.none{fill:#2a2d33}.unknown{fill:#16181c;stroke:#777}}
"""
_KINDS = {"bad": "✘", "good": "✔", "some": "◐", "none": "·", "unknown": "?"}
_LEGEND = (
    ("bad", "the failure happens; the mitigation helps against no trigger"),
    ("some", "it helps against some triggers, not against others"),
    ("good", "it helps wherever it applies, the work counted"),
    ("none", "does not apply: the code isn't there, or the engine refuses before"),
    ("unknown", "no answer"),
)


def svg(found: Mapping[str, Any]) -> str:
    """Returns the picture of all sweeps of a document, one below the other."""
    parts: list[str] = []
    top, width = 24, 0
    for name, item in found.items():
        columns = _columns(item)
        drawn, top = _sweep(name, item, columns, top)
        parts += drawn
        width = max(width, LEFT + CELL * len(columns) + 20)
    for kind, words in _LEGEND:
        parts.append(_square(10, top, kind, words))
        parts.append(f'<text x="{CELL + 18}" y="{top + 14}" class="small">{escape(words)}</text>')
        top += LINE
    size = f'viewBox="0 0 {max(width, 620)} {top + 8}" width="{max(width, 620)}" height="{top + 8}"'
    label = "Known failures and mitigations by release"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{label}">'
    return f"{head}<style>{_STYLE}</style>{_symbols()}\n" + "\n".join(parts) + "\n</svg>\n"


def _sweep(
    name: str, item: Mapping[str, Any], columns: Sequence[tuple[str, Sequence[str]]], top: int
) -> tuple[list[str], int]:
    parts = [f'<text x="10" y="{top}" class="title">{escape(name)}: every release</text>']
    for place, (label, _versions) in enumerate(columns):
        x, y = LEFT + CELL * place + 14, top + TOP - 12
        parts.append(f'<text class="small" transform="translate({x},{y}) rotate(-60)">{escape(label)}</text>')
    top += TOP
    for code, content in item["codes"].items():
        parts.append(f'<text x="10" y="{top + 14}" class="title">{escape(code)}</text>')
        top += LINE
        for label, kinds in rows(content["outcomes"], columns):
            parts.append(f'<text x="22" y="{top + 14}" class="small">{escape(label)}</text>')
            for place, kind in enumerate(kinds):
                title = f"{code}, {label}, {columns[place][0]}: {kind}"
                parts.append(_square(LEFT + CELL * place, top, kind, title))
            top += LINE
        top += 8
    return parts, top + 20


def _square(x: int, y: int, kind: str, title: str) -> str:
    return f'<use href="#{kind}" x="{x}" y="{y}"><title>{escape(title)}</title></use>'


def _symbols() -> str:
    made = (
        f'<g id="{kind}"><rect width="{CELL}" height="{LINE}" class="{kind}"/>'
        f'<text x="{CELL // 2}" y="14" class="small mid">{sign}</text></g>'
        for kind, sign in _KINDS.items()
    )
    return f"<defs>{''.join(made)}</defs>"


def _columns(item: Mapping[str, Any]) -> list[tuple[str, Sequence[str]]]:
    """Returns (label, releases): neighbours at the end in which nothing applies share one column."""
    tried = {
        version
        for content in item["codes"].values()
        for trigger, mitigations in content["outcomes"].items()
        if trigger != WHOLE
        for outcome, versions in mitigations[UNMITIGATED].items()
        if outcome != "inapplicable"
        for version in versions
    } | set(item["without_an_answer"])
    releases = item["releases"]
    last = max((place for place, version in enumerate(releases) if version in tried), default=-1)
    columns: list[tuple[str, Sequence[str]]] = [(version, [version]) for version in releases[: last + 1]]
    rest = releases[last + 1 :]
    return [*columns, (f"{rest[0]} to {rest[-1]}", rest)] if rest else columns


def rows(
    outcomes: Mapping[str, Mapping[str, Mapping[str, Sequence[str]]]],
    columns: Sequence[tuple[str, Sequence[str]]],
) -> list[tuple[str, list[str]]]:
    """Returns (label, kind by column): the bare triggers, then each mitigation over all triggers.

    What applies to no release has no row.
    """
    applying = dict(results.applying(outcomes))
    mitigations = dict.fromkeys(name for told in applying.values() for name in told if name != UNMITIGATED)
    whole = {
        version for versions in outcomes.get(WHOLE, {}).get(UNMITIGATED, {}).values() for version in versions
    }
    made = [
        (trigger, [_kind([told[UNMITIGATED]], versions, whole) for _label, versions in columns])
        for trigger, told in applying.items()
    ]
    for name in mitigations:
        tables = [outcomes[trigger][name] for trigger in applying if name in outcomes[trigger]]
        made.append((f"with {name}", [_kind(tables, versions, whole) for _label, versions in columns]))
    return made


def _kind(tables: Sequence[Mapping[str, Sequence[str]]], versions: Sequence[str], whole: set[str]) -> str:
    """Returns what a square says of these releases, which answer alike."""
    found = {outcome for table in tables for outcome, named in table.items() if set(named) & set(versions)}
    if not found:
        return "none" if set(versions) <= whole else "unknown"
    found -= {"inapplicable"}
    if not found:
        return "none"
    bad, good = found & {"reproduced", "not_mitigated"}, found & {"mitigated", "not_reproduced"}
    if found - bad - good:
        return "unknown"
    return "some" if bad and good else "bad" if bad else "good"
