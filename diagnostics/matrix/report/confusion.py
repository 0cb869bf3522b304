"""What `doctor` said of each cell's environment, held against what the cell's other layers then saw there.

Twice: as `doctor` knows nothing of what was run in the cell (a prediction), and as it knows all that was published. A
known issue that was made to happen is no failure of the pair; the issues have a table of their own, by code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from diagnostics.matrix.ask.layers.doctor import TOLD, WITHHELD
from diagnostics.matrix.plan.verdicts import EvidenceLevel, Outcome
from diagnostics.matrix.run import triaged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from diagnostics.matrix.run.board import Board, Row, Square

WHEN = (WITHHELD, TOLD)
_GRAVE = frozenset({"error", "blocker"})
# That a declared requirement is not met, that a compiled module lacks libraries: where the recipe departs from what is
# declared (a wheel for CUDA beside PyTorch for CPUs, say), it is the recipe's doing.
_OF_RECIPE = ("CMP904", "ENV910")
KNOWING = {WITHHELD: "not knowing what was run in the cell", TOLD: "knowing what was published of it"}


@dataclass(frozen=True)
class Compared:
    """One prediction and what came of it."""

    cell: str
    about: str
    """'the pair', or the code of a known issue."""
    predicted: bool
    """Doctor said that it will fail, or that the issue concerns this environment."""
    observed: bool
    """It failed, or the issue was made to happen."""
    said: str
    saw: str

    @property
    def agrees(self) -> bool:
        """Whether it came as it was said."""
        return self.predicted is self.observed


@dataclass(frozen=True)
class Confusion:
    """All cases of a board, as doctor spoke at one time."""

    when: str
    pairs: tuple[Compared, ...]
    issues: tuple[Compared, ...]
    open: tuple[str, ...]
    """Cells with a prediction and nothing to hold it against, or the other way round."""
    by_setting: tuple[tuple[str, str], ...]
    """(code, cell) of known issues that were seen and that a setting decides: doctor sees no settings."""
    aside: tuple[str, ...]
    """Cells of which doctor said gravely what is true of the environment, and the recipe's doing: no prediction."""


def confusion(board: Board, when: str) -> Confusion:
    """Returns the cases of every cell that doctor looked at.

    Args:
        board: The verdicts.
        when: WITHHELD or TOLD.
    """
    pairs: list[Compared] = []
    issues: list[Compared] = []
    unknown: list[str] = []
    aside: list[str] = []
    by_setting: list[tuple[str, str]] = []
    for row in board.rows:
        square = row.square("doctor")
        if square is None:
            continue
        if square.event is None or square.event.answer.outcome is not Outcome.PASS:
            unknown.append(f"{row.cell.id}: doctor has not answered")
            continue
        said = [fact for fact in square.event.answer.told("said") if fact[0] == when]
        grave = [f"{severity} {code}" for _when, severity, code in said if severity in _GRAVE]
        if departs(row) and (known := [text for text in grave if text.endswith(_OF_RECIPE)]):
            aside.append(f"{row.cell.id}: {', '.join(dict.fromkeys(known))}")
            grave = [text for text in grave if text not in known]
        pair = _pair(row, grave)
        if pair is None:
            unknown.append(f"{row.cell.id}: nothing was run")
        else:
            pairs.append(pair)
        for case in _issues(row, {code for _when, _severity, code in said}):
            if case.predicted or not triaged.by_setting(case.about):
                issues.append(case)
            elif case.observed:
                by_setting.append((case.about, case.cell))
    return Confusion(when, tuple(pairs), tuple(issues), tuple(unknown), tuple(by_setting), tuple(aside))


def departs(row: Row) -> bool:
    """Tells whether the cell's recipe leaves out, replaces or adds packages against what the pair declares."""
    recipe = row.cell.recipe
    return recipe is not None and bool(recipe.alone or recipe.without or recipe.instead)


def _ran(row: Row) -> list[Square]:
    """The squares of layers that ran the pair and ended by themselves: no known issue's, not doctor's own."""
    return [
        square
        for square in row.squares
        if square.event is not None
        and square.event.answer.evidence is EvidenceLevel.EXECUTED
        and square.event.answer.outcome in {Outcome.PASS, Outcome.FAIL}
        and square.question.layer.name not in {"install", "doctor"}
        and not square.of_issues
    ]


def _pair(row: Row, grave: Sequence[str]) -> Compared | None:
    ran = _ran(row)
    if not ran:
        return None
    failed = [item for item in ran if item.event and item.event.answer.outcome is Outcome.FAIL]
    of_pair = [item for item in failed if not item.of_machine]
    aside = [item for item in failed if item.of_machine]
    passed = [item.question.layer.name for item in ran if item not in failed]
    if not passed and not of_pair:
        return None
    parts = [f"{', '.join(passed)} passed"] if passed else []
    parts += [f"{item.question.layer.name} failed: {item.summary[:110]}" for item in of_pair]
    parts += [f"{item.question.layer.name} failed, as it does without a GPU alone" for item in aside]
    return Compared(
        row.cell.id,
        "the pair",
        bool(grave),
        bool(of_pair),
        ", ".join(grave) or "nothing grave",
        "; ".join(parts),
    )


def _issues(row: Row, said: set[str]) -> Iterator[Compared]:
    """Yields a case for each known issue that some layer of the cell asked about, or whose signature it saw."""
    seen: dict[str, str] = {}
    for square in row.squares:
        for code in _shown(square):
            seen.setdefault(code, f"{square.question.layer.name}: {square.summary[:110]}")
    asked = dict.fromkeys(code for square in row.squares for code in _asked(square))
    for code in dict.fromkeys((*asked, *seen)):
        saw = seen.get(code, "was asked, and does not happen")
        named = "names it" if code in said else "does not name it"
        yield Compared(row.cell.id, code, code in said, code in seen, named, saw)


def _shown(square: Square) -> Sequence[str]:
    """The codes that a layer made happen, or whose signature a failure of the pair bears.

    What a repro's log bears besides is left out: it was driven there on purpose.
    """
    if square.event is None or square.question.layer.name == "doctor" or square.of_machine:
        return ()
    return square.event.answer.codes if square.of_issues else square.codes


def _asked(square: Square) -> Iterable[str]:
    """The codes that a layer asked about and answered; what was not run counts where that was expected."""
    event = square.event
    if event is None:
        return ()
    settled = event.answer.outcome in {Outcome.PASS, Outcome.FAIL} or square.judged.expected
    return square.asked_about if settled else ()


def counts(cases: Iterable[Compared]) -> dict[str, int]:
    """Returns how many cases there are of each of the four kinds."""
    found = {"said_and_seen": 0, "said_not_seen": 0, "seen_not_said": 0, "neither": 0}
    for case in cases:
        kinds = {
            (True, True): "said_and_seen", (True, False): "said_not_seen", (False, True): "seen_not_said",
        }  # fmt: skip
        found[kinds.get((case.predicted, case.observed), "neither")] += 1
    return found


def of(board: Board) -> list[Confusion]:
    """Returns the cases of both times; nothing where no cell of the board is asked what doctor says."""
    if not any(row.square("doctor") for row in board.rows):
        return []
    return [confusion(board, when) for when in WHEN]


def text(found: Sequence[Confusion]) -> str:
    """Returns tables and disagreements for the terminal; '' where there is nothing to hold against anything."""
    lines: list[str] = []
    for one in found:
        if not one.pairs and not one.issues:
            continue
        lines += ["", f"doctor against what was seen, {KNOWING[one.when]}:"]
        for title, cases in (("pairs", one.pairs), ("known issues in cells", one.issues)):
            lines += [f"  {line}" for line in _grid(title, cases)]
        lines += [f"  disagree: {line}" for line in disagreements(one)]
    if lines:
        lines += [f"  {line}" for line in remarks(found)]
    return "\n".join([*lines, ""]) if lines else ""


def remarks(found: Sequence[Confusion]) -> list[str]:
    """Returns what is no case: predictions that are the recipe's doing, and what is open; each once."""
    why = "the recipe departs from what the pair declares"
    lines = [f"set aside: {line}: {why}" for one in found for line in one.aside]
    cells: dict[str, dict[str, None]] = {}
    for code, cell in (item for one in found for item in one.by_setting):
        cells.setdefault(code, {})[cell] = None
    lines += [
        f"left to lint, since a setting decides: {code}, seen in {len(names)} of the cells"
        for code, names in sorted(cells.items())
    ]
    return list(dict.fromkeys((*lines, *(f"open: {line}" for one in found for line in one.open))))


def _grid(title: str, cases: Sequence[Compared]) -> list[str]:
    n = counts(cases)
    head = f"{title}: {len(cases)}"
    width = max(24, len(head))
    return [
        f"{head:<{width}}  seen  not seen",
        f"{'doctor says so':<{width}}  {n['said_and_seen']:>4}  {n['said_not_seen']:>8}",
        f"{'doctor does not':<{width}}  {n['seen_not_said']:>4}  {n['neither']:>8}",
    ]


def disagreements(one: Confusion) -> list[str]:
    """Returns one line for each case in which it did not come as it was said."""
    return [
        f"{case.cell}, {case.about}: doctor: {case.said}; seen: {case.saw}"
        for case in (*one.pairs, *one.issues)
        if not case.agrees
    ]


def markdown(found: Sequence[Confusion], escape: Callable[[str], str]) -> list[str]:
    """Returns the lines of the report's section.

    Args:
        found: What `of` gave.
        escape: Makes a text of logs harmless in Markdown.
    """
    lines: list[str] = []
    for one in found:
        if not one.pairs and not one.issues:
            continue
        lines += ["", f"## What doctor said, {KNOWING[one.when]}", ""]
        lines += ["| | seen | not seen |", "| --- | --- | --- |"]
        for title, cases in (("pair fails", one.pairs), ("known issue", one.issues)):
            n = counts(cases)
            lines += [f"| {title}: doctor says so | {n['said_and_seen']} | {n['said_not_seen']} |"]
            lines += [f"| {title}: doctor does not | {n['seen_not_said']} | {n['neither']} |"]
        lines += ["", *(f"- {escape(line)}" for line in disagreements(one) or ["They agree in every case."])]
    if lines:
        lines += ["", *(f"- {escape(line)}" for line in remarks(found))]
    return lines


def document(found: Sequence[Confusion]) -> dict[str, Any]:
    """Returns it for programs: by time, the four counts and the disagreements."""
    return {
        one.when: {
            "pairs": counts(one.pairs),
            "issues": counts(one.issues),
            "disagreements": [
                {
                    "cell": case.cell,
                    "about": case.about,
                    "predicted": case.predicted,
                    "observed": case.observed,
                    "said": case.said,
                    "saw": case.saw,
                }
                for case in (*one.pairs, *one.issues)
                if not case.agrees
            ],
            "by_setting": [{"code": code, "cell": cell} for code, cell in one.by_setting],
            "set_aside": list(one.aside),
            "open": list(one.open),
        }
        for one in found
    }
