"""What the breadth says: a map of all pairs, and the pairs of which metadata and source say different things."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.version import Version

from diagnostics.matrix.ask.layers.resolve import SHOWN
from diagnostics.matrix.plan import breadth
from diagnostics.matrix.plan.verdicts import Outcome, Verdict
from diagnostics.matrix.report import words

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from diagnostics.matrix.run.board import Board, Row

LEGEND = (
    "● allowed, all names there   ✘ allowed, names missing   ○ not allowed, all names there   "
    "· not allowed, names missing   ? open or not judged"
)
ALLOWED_BROKEN = "Allowed by TRL's metadata, and names are missing in that vLLM"
FORBIDDEN_WHOLE = "Not allowed by TRL's metadata, and all names are there"
ALLOWED_UNSOLVED = "Allowed, and without a solution at their own date"
NOT_JUDGED = "Not judged, since what decides could not be read"
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
    lines = [*pair_map(rows), "", *_lists(rows), "", *today(rows), "", *_unexpected(board)]
    return "\n".join([*lines, words.totals(board)]) + "\n"


def pair_map(rows: Sequence[Row]) -> list[str]:
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


def contradictions(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Returns the pairs of which metadata and source, or metadata and index, say different things, by title."""
    found: dict[str, list[Row]] = {
        ALLOWED_BROKEN: [],
        FORBIDDEN_WHOLE: [],
        ALLOWED_UNSOLVED: [],
        NOT_JUDGED: [],
    }
    for row in rows:
        may, read = breadth.allowed(row.cell), outcome(row, "contract")
        if may and read is Outcome.FAIL:
            found[ALLOWED_BROKEN].append(row)
        if not may and read is Outcome.PASS:
            found[FORBIDDEN_WHOLE].append(row)
        if read is Outcome.NOT_JUDGED:
            found[NOT_JUDGED].append(row)
        if may and outcome(row, "resolve") is Outcome.UNRESOLVABLE:
            found[ALLOWED_UNSOLVED].append(row)
    return found


def _lists(rows: Iterable[Row]) -> list[str]:
    """The pairs that are allowed and broken, and those that are forbidden and work, as far as source tells."""
    lines = []
    for title, chosen in contradictions(rows).items():
        layer = "resolve" if title == ALLOWED_UNSOLVED else "contract"
        lines += [f"{title}: {len(chosen)} pairs", *by_trainer(chosen, layer), ""]
    return lines[:-1]


def by_trainer(rows: Iterable[Row], layer: str = "contract") -> list[str]:
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
    return square.summary.partition(",")[0].partition(" (e.g.")[0][:110] if square else ""


def _most_common(rows: Iterable[Row]) -> str:
    """Returns the two names that are missing most often."""
    names: Counter[str] = Counter()
    for row in rows:
        square = row.square("contract")
        if square and square.event:
            answer = square.event.answer
            names.update({fact[0] for kind in ("missing", "undecided") for fact in answer.told(kind)})
    return ", ".join(name for name, _count in names.most_common(2))


@dataclass(frozen=True)
class Moved:
    """One pair whose solution at its own date and with today's packages was looked for."""

    row: Row
    then: Mapping[str, str]
    """Package -> version, empty without a solution."""
    now: Mapping[str, str]

    @property
    def lost(self) -> bool:
        """Whether it had a solution and has none any more."""
        return bool(self.then) and not self.now

    @property
    def won(self) -> bool:
        """Whether it has a solution that it didn't have."""
        return bool(self.now) and not self.then

    @property
    def packages(self) -> dict[str, tuple[str, str]]:
        """Packages of both solutions with another version today: (then, now)."""
        return {
            name: (version, self.now[name])
            for name, version in self.then.items()
            if self.now.get(name, version) != version
        }

    @property
    def differs(self) -> bool:
        """Whether the two solutions are not the same, packages that came or went included."""
        return self.then != self.now


def moved(rows: Iterable[Row]) -> list[Moved]:
    """Returns the pairs that were resolved twice."""
    both = (row for row in rows if outcome(row, "resolve") and outcome(row, "resolve:today"))
    return [Moved(row, _solution(row, "resolve"), _solution(row, "resolve:today")) for row in both]


def _solution(row: Row, layer: str) -> dict[str, str]:
    square = row.square(layer)
    if outcome(row, layer) is not Outcome.PASS or square is None or square.event is None:
        return {}
    return square.event.answer.packages


def summary_of_moved(found: Sequence[Moved]) -> list[str]:
    """Says in two sentences how solutions of a pair's own date differ from today's."""
    solved = [item for item in found if item.then and item.now]
    other = [item for item in solved if item.differs]
    counts = Counter(
        f"{name} {_major(then)} → {_major(now)}"
        for item in solved
        for name, (then, now) in item.packages.items()
        if name in SHOWN and _major(then) != _major(now)
    )
    named = ", ".join(f"{name} in {count}" for name, count in counts.most_common(_NAMED))
    median = sorted(len(item.packages) for item in other)[len(other) // 2] if other else 0
    return [
        f"Resolved twice, at their own date and with today's packages: {len(found)} pairs. A solution both times: "
        f"{len(solved)}; only at their own date: {sum(item.lost for item in found)}; only today: "
        f"{sum(item.won for item in found)}.",
        f"Of those with both, {len(other)} get other packages today, half of them at least {median}. Another major "
        f"version of {', '.join(SHOWN)}: {named or 'none'}.",
    ]


def _major(version: str) -> int:
    return Version(version).major


def today(rows: Iterable[Row]) -> list[str]:
    """How the solutions of a pair's own date differ from today's."""
    found = moved(rows)
    return [
        *summary_of_moved(found),
        *(f"  Lost: {item.row.cell.id}" for item in found if item.lost),
        *(f"  Won: {item.row.cell.id}" for item in found if item.won),
    ]


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
        1
        for square in board.squares
        if square.judged.verdict in {Verdict.NOT_RUN, Verdict.NOT_JUDGED, Verdict.INFRA_ERROR}
    )
    return [f"Not as expected: {len(found)}", *lines, f"Open, not run or not judged: {open_}", ""]
