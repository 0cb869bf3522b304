"""Cells by layers with their verdicts: what every report shows, from the store and today's expectations."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from diagnostics.matrix.ask.attempts import MODULES
from diagnostics.matrix.ask.registry import BY_NAME
from diagnostics.matrix.plan.verdicts import EvidenceLevel, Judged, Outcome, Verdict, blocked, judge
from diagnostics.matrix.records import store
from diagnostics.matrix.records.identity import digest
from diagnostics.matrix.run import triaged

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from diagnostics.matrix.ask.layer import Layer
    from diagnostics.matrix.build.workplace import Workplace
    from diagnostics.matrix.plan.cells import Cell, LayerSettings
    from diagnostics.matrix.records.events import Event

# What runs a layer and takes its answer: every answer rests on it.
ASKING = "diagnostics.matrix.run.asking"


@dataclass(frozen=True)
class Question:
    """One layer asked of one cell, and what the answer will depend on."""

    cell: Cell
    layer: Layer
    inputs: tuple[tuple[str, str], ...]

    @property
    def identity(self) -> str:
        """The digest under which the store keeps the answer."""
        return digest(dict(self.inputs))

    @property
    def command(self) -> str:
        """Asks again."""
        profile = "" if self.cell.declares is None else "--profile breadth "
        return f"nox -s matrix -- {profile}--cells '{self.cell.id}' --layers {self.layer.name} --fresh"


@dataclass(frozen=True)
class Square:
    """One verdict of the board."""

    question: Question
    judged: Judged
    event: Event | None
    """The answer it rests on; None where nothing was run."""

    @property
    def evidence(self) -> EvidenceLevel:
        """How the verdict is known. What was not run is known from nothing more than a declaration."""
        if self.event is None or self.judged.verdict is Verdict.NOT_RUN:
            return EvidenceLevel.DECLARED
        return self.event.answer.evidence

    @property
    def codes(self) -> tuple[str, ...]:
        """Known issues: those observed, or else those whose signature what was seen bears.

        Triaged by today's catalogue: asking again would show the same. What a repro's log bears besides the issue
        that it made happen is nobody's failure.
        """
        return self.event.answer.codes or triaged.codes(self.event.answer) if self.event else ()

    @property
    def asked_about(self) -> tuple[str, ...]:
        """Known issues that its layer makes happen."""
        return tuple(dict(self.question.inputs).get("codes", "").split())

    @property
    def of_issues(self) -> bool:
        """Whether it shows known issues of a pair: one that was made to happen doesn't stop the pair."""
        return self.question.layer.codes is not None

    @property
    def of_machine(self) -> bool:
        """Whether it failed as announced, and by what runs in place of the pair on a machine without a GPU."""
        expectation = self.question.cell.expectation(self.question.layer.name)
        return bool(expectation and expectation.of_machine and self.judged.expected)

    @property
    def summary(self) -> str:
        """One line: what was observed, or why nothing was."""
        return self.event.answer.summary if self.event else self.judged.remark


@dataclass(frozen=True)
class Row:
    """One cell of the board."""

    cell: Cell
    squares: tuple[Square, ...]

    def square(self, layer: str) -> Square | None:
        """Returns the verdict of a layer, None if the cell isn't asked it."""
        return next((item for item in self.squares if item.question.layer.name == layer), None)


@dataclass(frozen=True)
class Board:
    """All of it."""

    rows: tuple[Row, ...]

    @property
    def squares(self) -> list[Square]:
        """All verdicts, row by row."""
        return [square for row in self.rows for square in row.squares]

    @property
    def layers(self) -> list[str]:
        """The columns: every layer that some cell is asked, in order."""
        asked = {square.question.layer.name for square in self.squares}
        return [name for name in BY_NAME if name in asked]

    def counts(self) -> Counter[Verdict]:
        """Returns how often each verdict stands."""
        return Counter(square.judged.verdict for square in self.squares)


def question(workplace: Workplace, cell: Cell, layer: str) -> Question:
    """Returns a question with all that its answer depends on, as it is now."""
    asked, settings = BY_NAME[layer], workplace.matrix.layer(layer)
    program, codes = asked.program(settings, cell), _codes(asked, settings)
    inputs = {
        "layer": layer,
        "vllm": cell.vllm,
        "trl": cell.trl,
        **asked.inputs(workplace, cell),
        **({"program": " ".join(program)} if program else {}),
        **({"codes": " ".join(codes)} if codes else {}),
        "code": workplace.code.digest(*code_of(asked, settings, cell)),
    }
    return Question(cell, asked, tuple(inputs.items()))


def code_of(layer: Layer, settings: LayerSettings, cell: Cell) -> tuple[list[str], Sequence[str]]:
    """Returns the modules at which what we wrote of an answer begins, and the words of the program's command line."""
    program = layer.program(settings, cell)
    return [*layer.modules, ASKING, *program[:1], *repros(_codes(layer, settings))], program[1:]


def _codes(layer: Layer, settings: LayerSettings) -> Sequence[str]:
    return layer.codes(settings) if layer.codes else ()


def repros(codes: Iterable[str]) -> list[str]:
    """Returns the modules of these codes' repros."""
    return [MODULES[code] for code in codes if code in MODULES]


def board(questions: Iterable[Question], events: list[Event]) -> Board:
    """Judges what the store knows of these questions."""
    return Standing(questions, events).board


class Standing:
    """A board that takes in one answer after another; a thousand cells are judged once, not at every answer."""

    def __init__(self, questions: Iterable[Question], events: list[Event]) -> None:
        self._known = store.latest(events)
        self._flaky = store.flaky(events)
        self._before = {(event.cell, event.layer): event for event in events if event.finished}
        self._outcomes = {identity: event for identity, event in self._known.items() if event.finished}
        self._questions: dict[str, list[Question]] = {}
        for item in questions:
            self._questions.setdefault(item.cell.id, []).append(item)
        self._rows = {name: self._judge(name) for name in self._questions}

    @property
    def board(self) -> Board:
        """The board as it stands."""
        return Board(tuple(self._rows.values()))

    def row(self, cell: str) -> Row:
        """Returns the row of a cell."""
        return self._rows[cell]

    def add(self, event: Event) -> None:
        """Takes in an answer and judges its cell again."""
        (self._known[event.identity],) = store.latest(
            [self._known[event.identity], event] if event.identity in self._known else [event]
        ).values()
        if event.finished:
            earlier = self._outcomes.setdefault(event.identity, event)
            self._flaky |= store.flaky([earlier, event])
            self._before[event.cell, event.layer] = event
        if event.cell in self._rows:
            self._rows[event.cell] = self._judge(event.cell)

    def _judge(self, cell: str) -> Row:
        row: dict[str, Square] = {}
        for item in self._questions[cell]:
            event = self._known.get(item.identity)
            earlier = self._before.get((item.cell.id, item.layer.name))
            judged = _judged(item, event, earlier, row, flaky=item.identity in self._flaky)
            row[item.layer.name] = Square(item, judged, event)
        return Row(self._questions[cell][0].cell, tuple(row.values()))


def _judged(
    item: Question,
    event: Event | None,
    earlier: Event | None,
    row: Mapping[str, Square],
    *,
    flaky: bool,
) -> Judged:
    if event is not None:
        return judge(event.answer, item.cell.expectation(item.layer.name), flaky=flaky)
    obstacle = obstacle_of(item, row)
    if obstacle is not None:
        return blocked(obstacle.question.layer.name, obstacle.judged)
    remark = _stale(item, earlier) if earlier is not None else "not asked yet"
    return Judged(Verdict.NOT_RUN, expected=False, incomplete=True, remark=remark)


def _stale(item: Question, earlier: Event) -> str:
    """Says what has changed since the question was last answered."""
    known = dict(earlier.inputs)
    changed = [name for name, value in item.inputs if known.get(name) != value]
    when = f"{earlier.started[:10]} ({earlier.answer.outcome})"
    return f"answered on {when}, but since then changed: {', '.join(changed)}"


def obstacle_of(item: Question, row: Mapping[str, Square]) -> Square | None:
    """Returns the first needed layer of the same cell that did not pass, None if nothing is in the way."""
    for needed in item.layer.needs:
        square = row.get(needed)
        if square is not None and (square.event is None or square.event.answer.outcome is not Outcome.PASS):
            return square
    return None
