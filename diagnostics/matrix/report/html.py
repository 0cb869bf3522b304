"""The board as one HTML page: one script of its own, no outside assets, nothing fetched.

Without the script the page is whole: every verdict opens by its link. The script adds filter, keys and copying.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diagnostics.collect import compat
from diagnostics.matrix.ask.layers.resolve import SHOWN
from diagnostics.matrix.plan.verdicts import Verdict
from diagnostics.matrix.report import confusion, findings, glance, words
from diagnostics.matrix.report.changes import NO_CHANGES
from diagnostics.output import pages

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from diagnostics.collect.compat import Compat
    from diagnostics.matrix.report.changes import Changes
    from diagnostics.matrix.run.board import Board, Row, Square

PAGE = Path(__file__).with_name("page")
# From so many cells on, the page leaves out what its rows and panels tell already.
MANY = 100
_OPEN = "could not be followed to its end"


def render(
    board: Board, generated: str, changes: Changes = NO_CHANGES, published: Compat | None = None
) -> str:
    """Returns the page. Everything that comes from logs or upstream is escaped by the template engine.

    Args:
        board: What this machine's store says.
        generated: When.
        changes: Since the run before.
        published: The table beside which it stands; the one that is shipped.
    """
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string((PAGE / "page.html").read_text(encoding="utf-8"))
    script = (PAGE / "page.js").read_text(encoding="utf-8")
    rows = [_row(board, row, changes) for row in board.rows]
    known = glance.pairs(board, compat.load() if published is None else published)
    page: str = template.render(
        style=Markup(pages.style((PAGE / "page.css").read_text(encoding="utf-8"))),  # noqa: S704 - our own file
        script=Markup(script),  # noqa: S704 - our own file
        script_hash=f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}",
        generated=generated,
        totals=words.totals(board),
        layers=[{"name": name, "question": _question(board, name)} for name in board.layers],
        groups=list(_groups(board.layers)),
        rows=rows,
        many=len(rows) >= MANY,
        found=_found(board),
        families=list(_families(rows)),
        headline=glance.headline(known),
        ran=glance.ran(known),
        map=glance.grid(known),
        predictions=[_predictions(one) for one in confusion.of(board) if one.pairs or one.issues],
        compared=changes.since,
        changes=_changes(board, changes),
        verdicts=[{"value": item.value, "word": words.WORDS[item].lower()} for item in Verdict],
        shapes=[{"shape": shape, "evidence": evidence.value} for evidence, shape in words.SHAPES.items()],
    )
    return page


def _question(board: Board, layer: str) -> str:
    return next(
        square.question.layer.question for square in board.squares if square.question.layer.name == layer
    )


def _groups(layers: list[str]) -> Iterator[dict[str, Any]]:
    """Yields the layers' families, neighbours together."""
    for name, members in itertools.groupby(layers, key=words.family):
        yield {"name": name, "layers": len(list(members))}


def _families(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yields the cells by how they are run; what is only read comes last."""

    def recipe(row: dict[str, Any]) -> str:
        return row["cell"].recipe.name if row["cell"].recipe else ""

    order = {name: position for position, name in enumerate(dict.fromkeys(map(recipe, rows)))}
    inorder = sorted(rows, key=lambda row: (not recipe(row), order[recipe(row)]))
    for name, members in itertools.groupby(inorder, key=recipe):
        found = list(members)
        about = found[0]["cell"].recipe.about if name else "nothing of these pairs was run here"
        yield {
            "name": f"Run by the recipe {name}" if name else "Metadata and source",
            "about": about,
            "rows": found,
        }


def _found(board: Board) -> list[dict[str, Any]]:
    """Returns what metadata, source and index disagree on, of generated cells, as titles with lines."""
    rows = [row for row in board.rows if row.cell.declares is not None]
    if not rows:
        return []
    lists = [
        {
            "title": f"{title}: {len(chosen)} pairs",
            "lines": findings.by_trainer(
                chosen, "resolve" if title == findings.ALLOWED_UNSOLVED else "contract"
            ),
        }
        for title, chosen in findings.contradictions(rows).items()
    ]
    dates = {"title": "At their own date, and with today's packages", "lines": findings.today(rows)}
    return [*lists, dates]


def _predictions(one: confusion.Confusion) -> dict[str, Any]:
    """Returns both tables of one time, and what doctor had wrong."""
    return {
        "title": confusion.KNOWING[one.when],
        "tables": [
            {"name": name, **confusion.counts(cases)}
            for name, cases in (("the pair fails", one.pairs), ("a known issue is there", one.issues))
        ],
        "wrong": [
            {"cell": case.cell, "anchor": _anchor(case.cell, "doctor"), "case": case}
            for case in (*one.pairs, *one.issues)
            if not case.agrees
        ],
        "aside": confusion.remarks([one]),
    }


def _changes(board: Board, changes: Changes) -> list[dict[str, Any]]:
    """Returns the changed answers of questions that stand on the board."""
    asked = {(square.question.cell.id, square.question.layer.name) for square in board.squares}
    return [
        {
            "cell": item.cell,
            "layer": item.layer,
            "words": item.words,
            "new": item.before is None,
            "anchor": _anchor(item.cell, item.layer),
        }
        for item in changes.found
        if (item.cell, item.layer) in asked
    ]


def _row(board: Board, row: Row, changes: Changes) -> dict[str, Any]:
    squares = [(layer, row.square(layer)) for layer in board.layers]
    return {
        "cell": row.cell,
        "anchor": _anchor(row.cell.id),
        "squares": [
            _square(square, changes) | _excerpt(square, row) if square else {"layer": layer, "asked": False}
            for layer, square in squares
        ],
    }


def _anchor(cell: str, layer: str = "cell") -> str:
    return f"{cell}.{layer}".replace("+", "_").replace(":", "_")


def _square(square: Square, changes: Changes) -> dict[str, Any]:
    verdict, event, layer = square.judged.verdict, square.event, square.question.layer
    change = changes.of(square.question.cell.id, layer.name)
    word = words.word(square.judged)
    return {
        "asked": True,
        "layer": layer.name,
        "question": layer.question,
        "anchor": _anchor(square.question.cell.id, layer.name),
        "cell": square.question.cell.id,
        "verdict": verdict.value,
        "word": word,
        "symbol": words.SYMBOLS[verdict],
        "shape": words.SHAPES[square.evidence],
        "evidence": square.evidence.value,
        "surprise": not square.judged.expected and not square.judged.incomplete,
        "change": change.words if change else "",
        "codes": square.codes,
        "summary": square.summary,
        "remark": square.judged.remark if square.event else "",
        "expected": square.judged.expected,
        "link": _link(square),
        "command": square.question.command,
        "inputs": square.question.inputs,
        "identity": square.question.identity,
        "answer": event.answer if event else None,
        "evidence_lines": _evidence(event.answer.details) if event else [],
        "points": _points(event.answer.curve) if event else "",
        "started": event.started if event else "",
        "seconds": event.seconds if event else 0.0,
    }


def _excerpt(square: Square, row: Row) -> dict[str, Any]:
    """Returns what a square shows at length, as {shown, about, folded}.

    The lock of today is shown as it differs from the pair's own, and a resolver's words once: hundreds of pairs stay
    a page that a phone can load.
    """
    answer, layer = square.event.answer if square.event else None, square.question.layer.name
    text = answer.excerpt if answer else ""
    packages = answer.packages if answer else {}
    if packages and square.judged.verdict is Verdict.PASS:
        own = row.square("resolve")
        before = own.event.answer.packages if own and own.event else {}
        if layer != "resolve:today" or not before:
            return {"shown": text, "about": "The lock", "folded": True}
        return {"shown": _differing(before, packages), "about": "Today's lock", "folded": False}
    said = (
        square.summary and square.summary in " ".join(text.split()) and len(text) < 1.5 * len(square.summary)
    )
    about = "The resolver's words" if square.question.layer.solves else "End of the log"
    return {"shown": "" if said else text, "about": about, "folded": False}


def _differing(own: Mapping[str, str], today: Mapping[str, str]) -> str:
    """Says in which packages a lock differs from another; by name those that a reader asks for first."""
    names = {name for name, _version in own.items() ^ today.items()}
    if not names:
        return "the same as at the pair's own date"
    named = (name for name in SHOWN if name in names)
    lines = [f"{name} {own.get(name, 'absent')} → {today.get(name, 'absent')}" for name in named]
    return "\n".join((f"{len(names)} of {len(today)} packages differ from the pair's own date", *lines))


def _evidence(lines: tuple[str, ...]) -> list[str]:
    """Returns what was observed line by line; paths that lead out of what is read only as a number."""
    open_ = [line for line in lines if line.startswith(_OPEN)]
    kept = [line for line in lines if line not in open_]
    return (
        [*kept, f"{len(open_)} attribute paths could not be followed to their end"]
        if len(open_) > 1
        else list(lines)
    )


def _points(curve: tuple[float, ...]) -> str:
    """Returns a curve as the points of a line in a box of 400 by 100, the vertical axis from 0 to 1."""
    if len(curve) < 2:
        return ""
    step = 400 / (len(curve) - 1)
    return " ".join(
        f"{index * step:.1f},{100 - 100 * min(1.0, max(0.0, value)):.1f}" for index, value in enumerate(curve)
    )


def _link(square: Square) -> str:
    expectation = square.question.cell.expectation(square.question.layer.name)
    link = expectation.link if expectation else ""
    return link if link.startswith("https://") else ""
