"""How verdicts and evidence are written: a symbol and a word each, since colour alone tells nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnostics.matrix.ask.registry import BY_NAME
from diagnostics.matrix.plan.verdicts import EvidenceLevel, Judged, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from diagnostics.matrix.run.board import Board

# Filled, hollow, dotted: known from a run, from source, from nothing but a declaration.
SHAPES: Mapping[EvidenceLevel, str] = {
    EvidenceLevel.EXECUTED: "●",
    EvidenceLevel.STATIC: "○",
    EvidenceLevel.DECLARED: "◌",
}
SYMBOLS: Mapping[Verdict, str] = {
    Verdict.PASS: "✔",
    Verdict.FAIL: "✘",
    Verdict.EXPECTED_FAIL: "✘",
    Verdict.UNEXPECTED_PASS: "!",
    Verdict.UNRESOLVABLE: "∅",
    Verdict.NOT_RUN: "-",
    Verdict.NOT_JUDGED: "?",
    Verdict.TIMEOUT: "◷",
    Verdict.INFRA_ERROR: "⚠",
    Verdict.FLAKY: "~",
}
WORDS: Mapping[Verdict, str] = {
    Verdict.PASS: "pass",
    Verdict.FAIL: "FAIL",
    Verdict.EXPECTED_FAIL: "expected fail",
    Verdict.UNEXPECTED_PASS: "UNEXPECTED PASS",
    Verdict.UNRESOLVABLE: "unresolvable",
    Verdict.NOT_RUN: "not run",
    Verdict.NOT_JUDGED: "not judged",
    Verdict.TIMEOUT: "timeout",
    Verdict.INFRA_ERROR: "infra error",
    Verdict.FLAKY: "FLAKY",
}
STYLES: Mapping[Verdict, str] = {
    Verdict.PASS: "green",
    Verdict.FAIL: "bold red",
    Verdict.EXPECTED_FAIL: "magenta",
    Verdict.UNEXPECTED_PASS: "bold red",
    Verdict.UNRESOLVABLE: "blue",
    Verdict.NOT_RUN: "dim",
    Verdict.NOT_JUDGED: "yellow",
    Verdict.TIMEOUT: "yellow",
    Verdict.INFRA_ERROR: "yellow",
    Verdict.FLAKY: "bold red",
}


def word(judged: Judged) -> str:
    """Returns the verdict's word; an unresolvable pair that nobody expected says so."""
    text = WORDS[judged.verdict]
    if (
        judged.verdict in {Verdict.UNRESOLVABLE, Verdict.NOT_RUN}
        and not judged.expected
        and not judged.incomplete
    ):
        return f"UNEXPECTED: {text}"
    return text


def totals(board: Board) -> str:
    """Returns the figures of a board in one line; what was not run is never part of what passed.

    'of N questions' counts every question that the cells are asked.
    """
    counts, asked = board.counts(), len(board.squares)
    unexpected = sum(
        1 for square in board.squares if not square.judged.expected and not square.judged.incomplete
    )
    share = f"{100 * counts[Verdict.PASS] / asked:.0f} %" if asked else "0 %"
    listed = ", ".join(
        f"{counts[verdict]} {WORDS[verdict]}"
        for verdict in Verdict
        if counts[verdict] and verdict is not Verdict.PASS
    )
    rest = f"; {listed}" if listed else ""
    return f"{counts[Verdict.PASS]} of {asked} questions passed ({share}){rest}; {unexpected} not as expected"


def family(layer: str) -> str:
    """Returns the group of a layer, under which reports show it."""
    return BY_NAME[layer].group if layer in BY_NAME else "further"
