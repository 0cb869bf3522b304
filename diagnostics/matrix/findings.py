"""What the breadth says: a map of all pairs, and the pairs of which metadata and source say different things."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from packaging.version import Version

from diagnostics.matrix import breadth
from diagnostics.matrix.report import words
from diagnostics.matrix.verdicts import Outcome, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from diagnostics.matrix.board import Board, Row

LEGEND = (
    "● allowed, all names there   ✘ allowed, names missing   ○ not allowed, all names there   "
    "· not allowed, names missing   ? open"
)
_SYMBOLS = {
    (True, Outcome.PASS): "●",
    (True, Outcome.FAIL): "✘",
    (False, Outcome.PASS): "○",
    (False, Outcome.FAIL): "·",
}
# Few enough to name one by one.
_NAMED = 12


def outcome(row: Row, layer: str) -> Outcome | None:
    """Returns what a layer observed, None where it has no answer or wasn't asked."""
    square = row.square(layer)
    return square.event.answer.outcome if square and square.event and square.event.finished else None


def render(board: Board) -> str:
    """Returns map, lists and figures as text."""
    rows = list(board.rows)
    lines = [*_map(rows), "", *_lists(rows), "", *_today(rows), "", *_unexpected(board)]
    return "\n".join([*lines, words.totals(board)]) + "\n"


def _map(rows: Sequence[Row]) -> list[str]:
    """One character a pair: TRL down, vLLM across, by the layer `contract`."""
    pairs = {(row.cell.trl, row.cell.vllm): row for row in rows}
    across = sorted({vllm for _trl, vllm in pairs}, key=Version)
    height = max((len(vllm) for vllm in across), default=0)
    head = [
        " " * 9 + "".join(vllm.rjust(height)[place] for vllm in across).rstrip() for place in range(height)
    ]
    body = [
        f"{trl:<9}" + "".join(_symbol(pairs.get((trl, vllm))) for vllm in across).rstrip()
        for trl in sorted({trl for trl, _vllm in pairs}, key=Version)
    ]
    return ["TRL down, vLLM across, by what TRL's source takes from vLLM's:", *head, *body, LEGEND]


def _symbol(row: Row | None) -> str:
    if row is None:
        return " "
    found = outcome(row, "contract")
    return _SYMBOLS.get((breadth.allowed(row.cell), found), "?") if found else "?"


def _lists(rows: Iterable[Row]) -> list[str]:
    """The pairs that are allowed and broken, and those that are forbidden and work, as far as source tells."""
    lines = []
    for title, may, wanted in (
        ("Allowed by TRL's metadata, and names are missing in that vLLM", True, Outcome.FAIL),
        ("Not allowed by TRL's metadata, and all names are there", False, Outcome.PASS),
    ):
        chosen = [
            row for row in rows if breadth.allowed(row.cell) is may and outcome(row, "contract") is wanted
        ]
        lines += [f"{title}: {len(chosen)} pairs", *_by_trainer(chosen), ""]
    chosen = [
        row for row in rows if breadth.allowed(row.cell) and outcome(row, "resolve") is Outcome.UNRESOLVABLE
    ]
    lines += [
        f"Allowed, and without a solution at their own date: {len(chosen)} pairs",
        *_by_trainer(chosen, "resolve"),
    ]
    return lines


def _by_trainer(rows: Iterable[Row], layer: str = "contract") -> list[str]:
    """One line for each TRL: the vLLM releases, and what is missing in most of them."""
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.cell.trl].append(row)
    lines = []
    for trl, members in groups.items():
        versions = [row.cell.vllm for row in members]
        named = ", ".join(versions if len(versions) <= _NAMED else (versions[0], "…", versions[-1]))
        count = f" ({len(versions)} releases)" if len(versions) > _NAMED else ""
        broken = [row for row in members if outcome(row, layer) is not Outcome.PASS]
        why = _most_common(broken) if layer == "contract" else _first(broken, layer)
        declared = members[0].cell.declares or " (any)"
        lines.append(f"  TRL {trl}, declares vllm{declared}: {named}{count}{f': {why}' if why else ''}")
    return lines


def _first(rows: Sequence[Row], layer: str) -> str:
    """Returns the start of what the first of them was told."""
    square = rows[0].square(layer) if rows else None
    return square.summary.partition(",")[0][:110] if square else ""


def _most_common(rows: Iterable[Row]) -> str:
    """Returns the two names that are missing most often."""
    names: Counter[str] = Counter()
    for row in rows:
        square = row.square("contract")
        if square and square.event:
            names.update({sign.partition(":")[0] for sign in square.event.answer.signs})
    return ", ".join(name for name, _count in names.most_common(2))


def _today(rows: Iterable[Row]) -> list[str]:
    """How the solutions of a pair's own date differ from today's."""
    both = [row for row in rows if outcome(row, "resolve") and outcome(row, "resolve:today")]
    solved = [
        row for row in both if {outcome(row, "resolve"), outcome(row, "resolve:today")} == {Outcome.PASS}
    ]
    lost = [
        row
        for row in both
        if (outcome(row, "resolve"), outcome(row, "resolve:today")) == (Outcome.PASS, Outcome.UNRESOLVABLE)
    ]
    won = [
        row
        for row in both
        if (outcome(row, "resolve"), outcome(row, "resolve:today")) == (Outcome.UNRESOLVABLE, Outcome.PASS)
    ]
    moved: Counter[str] = Counter()
    for row in solved:
        then, now = _shown(row, "resolve"), _shown(row, "resolve:today")
        moved.update(name for name in then if now.get(name) not in {None, then[name]})
    listed = ", ".join(f"{name} in {count}" for name, count in moved.most_common())
    return [
        f"Resolved twice, at their own date and with today's packages: {len(both)} pairs. A solution both times: "
        f"{len(solved)}; only at their own date: {len(lost)}; only today: {len(won)}.",
        f"  Of those with both, another version today: {listed or 'none'}.",
        *(f"  Lost: {row.cell.id}" for row in lost),
        *(f"  Won: {row.cell.id}" for row in won),
    ]


def _shown(row: Row, layer: str) -> Mapping[str, str]:
    square = row.square(layer)
    signs = square.event.answer.signs if square and square.event else ()
    return dict(sign.split(" ", 1) for sign in signs if " " in sign)


def _unexpected(board: Board) -> list[str]:
    """One line for every verdict that is neither expected nor open."""
    found = [
        square for square in board.squares if not square.judged.expected and not square.judged.incomplete
    ]
    lines = [
        f"  {square.question.cell.id} {square.question.layer.name}: {words.word(square.judged)}: "
        f"{square.summary[:160]} ({square.judged.remark})"
        for square in found
    ]
    open_ = sum(
        1 for square in board.squares if square.judged.verdict in {Verdict.NOT_RUN, Verdict.INFRA_ERROR}
    )
    return [f"Not as expected: {len(found)}", *lines, f"Open or not run: {open_}", ""]
