"""Select cells and layers, make a question of each pair of them, and build the grid of their results.

A `Question` is a layer to run for a cell. `ResultsGrid` looks up the question's answers among the store's events, and
compares the newest final answer with the outcome that `matrix.toml` expects now. `matching_codes` finds known issues
whose signature matches a failed answer.
"""

import fnmatch
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

from diagnostics import UserError, catalog
from diagnostics.catalog.signatures import is_satisfied
from diagnostics.fixes import quote_command
from diagnostics.matrix import store
from diagnostics.matrix.cells import Cell, Matrix
from diagnostics.matrix.context import Context
from diagnostics.matrix.identity import question_identity
from diagnostics.matrix.layers import BY_NAME
from diagnostics.matrix.layers.layer import Layer
from diagnostics.matrix.layers.repros import REPRO_MODULES
from diagnostics.matrix.store import Event
from diagnostics.matrix.verdicts import Answer, EvidenceLevel, Judgement, Outcome, Verdict, blocked_by, judge
from diagnostics.toml_source import close_matches
from diagnostics.triage.rules import Rules

_FAILED = frozenset({Outcome.FAIL, Outcome.UNRESOLVABLE, Outcome.TIMEOUT})
# The form of the signs of the layer `contract`.
_MISSING_NAME = re.compile(r"[\w.]+: no (?P<name>\w+) in (?P<module>vllm[\w.]*) \(")
_MISSING_MODULE = re.compile(r"[\w.]+: no module (?P<module>vllm[\w.]*) \(")


@dataclass(frozen=True)
class Question:
    """One layer to run for one cell, with the inputs that its answer depends on."""

    cell: Cell
    layer: Layer
    inputs: tuple[tuple[str, str], ...]

    @cached_property
    def identity(self) -> str:
        """The digest under which the store saves the answer."""
        return question_identity(dict(self.inputs))

    @property
    def key(self) -> tuple[str, str]:
        """(cell, layer)."""
        return self.cell.id, self.layer.name

    @property
    def command(self) -> str:
        """The command that runs the layer again."""
        chosen = ("--cells", self.cell.id, "--layers", self.layer.name, "--fresh")
        return quote_command(("nox", "-s", "matrix", "--", *chosen))


def make_question(context: Context, cell: Cell, layer_name: str) -> Question:
    """Return the question for a layer of a cell, with its inputs as they are now."""
    layer, settings = BY_NAME[layer_name], context.matrix.settings[layer_name]
    program = layer.program(settings, cell)
    codes = layer.codes(settings) if layer.codes else ()
    repros = [REPRO_MODULES[code] for code in codes if code in REPRO_MODULES]
    inputs = {
        "layer": layer_name,
        **cell.versions,
        **layer.inputs(context, cell),
        **({"program": " ".join(program)} if program else {}),
        **({"codes": " ".join(codes)} if codes else {}),
        "code": context.sources.digest([*layer.code, *repros]),
    }
    return Question(cell, layer, tuple(inputs.items()))


def select_cells(matrix: Matrix, globs: Sequence[str], profile: str | None) -> list[Cell]:
    """Return the cells that match a pattern; without patterns, the cells of the profile (`quick` if it is None).

    The profile `full` has all cells.

    Raises:
        UserError: A pattern matches no cell.
    """
    names = [cell.id for cell in matrix.cells]
    for pattern in globs:
        if not fnmatch.filter(names, pattern):
            raise UserError(f"no cell matches {pattern!r}{close_matches(pattern, names)}; --list shows all")
    if globs:
        return [cell for cell in matrix.cells if any(fnmatch.fnmatchcase(cell.id, glob) for glob in globs)]
    return [cell for cell in matrix.cells if profile == "full" or "quick" in cell.profiles]


def select_layers(lists: Sequence[str], *, quick: bool) -> tuple[str, ...]:
    """Return the named layers; without names, all layers. A name such as `train` stands for its layers `train:MODE`.

    Args:
        lists: Texts with names of layers, separated by commas.
        quick: Whether to leave out the layers `repro:CODE` if no layer is named.

    Raises:
        UserError: A layer is unknown.
    """
    chosen: list[str] = []
    for name in (part.strip() for text in lists for part in text.split(",") if part.strip()):
        members = [name] if name in BY_NAME else [layer for layer in BY_NAME if layer.startswith(f"{name}:")]
        if not members:
            known = ", ".join(dict.fromkeys(layer.partition(":")[0] for layer in BY_NAME))
            raise UserError(f"unknown layer {name!r}{close_matches(name, BY_NAME)}; there are {known}")
        chosen += members
    if not chosen and quick:
        return tuple(layer for layer in BY_NAME if not layer.startswith("repro:"))
    return tuple(dict.fromkeys(chosen)) or tuple(BY_NAME)


def with_needs(cell: Cell, layers: Iterable[str]) -> list[str]:
    """Return the given layers of a cell and the layers that must pass before them, in running order."""
    needed: set[str] = set()
    pending = [layer for layer in layers if layer in cell.layers]
    while pending:
        layer = pending.pop()
        needed.add(layer)
        pending += [name for name in BY_NAME[layer].needs if name in cell.layers and name not in needed]
    return [layer for layer in cell.layers if layer in needed]


def make_questions(
    context: Context, cells: Iterable[Cell], layers: Sequence[str] = tuple(BY_NAME)
) -> list[Question]:
    """Return the questions for these cells: the given layers, and the layers that must pass before them."""
    return [make_question(context, cell, layer) for cell in cells for layer in with_needs(cell, layers)]


@dataclass(frozen=True)
class LayerResult:
    """The verdict on one layer of one cell."""

    question: Question
    judgement: Judgement
    event: Event | None
    """The stored answer; None if the layer did not run."""

    @property
    def evidence(self) -> EvidenceLevel:
        """The evidence level of the verdict; DECLARED if the layer did not run or its verdict is `not_run`."""
        if self.event is None or self.judgement.verdict is Verdict.NOT_RUN:
            return EvidenceLevel.DECLARED
        return self.event.answer.evidence

    @property
    def codes(self) -> tuple[str, ...]:
        """Codes of known issues that the layer reported, or else of those whose signature matches a failure."""
        return () if self.event is None else self.event.answer.codes or matching_codes(self.event.answer)

    @property
    def summary(self) -> str:
        """What the layer observed, or why it did not run, in one line."""
        return self.event.answer.summary if self.event else self.judgement.remark


@dataclass(frozen=True)
class CellResults:
    """One row of the grid: the results of a cell, by layer."""

    cell: Cell
    layers: dict[str, LayerResult]


class ResultsGrid:
    """The results of questions, by cell and layer; adding an answer updates the results of its cell."""

    def __init__(self, questions: Iterable[Question], events: Iterable[Event]) -> None:
        self._events: dict[str, list[Event]] = {}
        self._questions: dict[str, list[Question]] = {}
        for event in events:
            self._events.setdefault(event.identity, []).append(event)
        for question in questions:
            self._questions.setdefault(question.cell.id, []).append(question)
        self._rows = {cell: self._judge_cell(cell) for cell in self._questions}

    @property
    def cell_rows(self) -> list[CellResults]:
        """The rows, one for each cell."""
        return list(self._rows.values())

    @property
    def results(self) -> list[LayerResult]:
        """All results, row by row."""
        return [result for row in self.cell_rows for result in row.layers.values()]

    @property
    def layers(self) -> list[str]:
        """The layers that occur in a cell, in running order; they are the columns."""
        present = {name for row in self.cell_rows for name in row.layers}
        return [name for name in BY_NAME if name in present]

    def counts(self) -> Counter[Verdict]:
        """Return how often each verdict occurs."""
        return Counter(result.judgement.verdict for result in self.results)

    def cell_row(self, cell: str) -> CellResults:
        """Return the row of a cell."""
        return self._rows[cell]

    def result(self, question: Question) -> LayerResult:
        """Return the result of a question."""
        return self._rows[question.cell.id].layers[question.layer.name]

    def add(self, event: Event) -> None:
        """Add an answer and judge its cell again."""
        self._events.setdefault(event.identity, []).append(event)
        if event.cell in self._rows:
            self._rows[event.cell] = self._judge_cell(event.cell)

    def _judge_cell(self, cell: str) -> CellResults:
        """Return the row of a cell; a layer may be blocked by the layers before it."""
        row: dict[str, LayerResult] = {}
        for question in self._questions[cell]:
            events = self._events.get(question.identity, [])
            judgement = self._judge(question, events, row)
            row[question.layer.name] = LayerResult(question, judgement, store.latest(events))
        return CellResults(self._questions[cell][0].cell, row)

    def _judge(self, question: Question, events: list[Event], row: Mapping[str, LayerResult]) -> Judgement:
        """Return the verdict on a question: by its newest answer, as blocked by another layer, or not run yet."""
        event = store.latest(events)
        if event is not None:
            expectation = question.cell.expect.get(question.layer.name)
            return judge(event.answer, expectation, flaky=store.is_flaky(events))
        obstacle = blocking_result(question, row)
        if obstacle is not None:
            return blocked_by(obstacle.question.layer.name, obstacle.judgement)
        return Judgement(
            Verdict.NOT_RUN, expected=False, incomplete=True, remark="not run yet with these inputs"
        )


def blocking_result(question: Question, row: Mapping[str, LayerResult]) -> LayerResult | None:
    """Return the result of the first needed layer of the cell that did not pass; None if there is none."""
    for needed in question.layer.needs:
        result = row.get(needed)
        if result is not None and (result.event is None or result.event.answer.outcome is not Outcome.PASS):
            return result
    return None


def matching_codes(answer: Answer) -> tuple[str, ...]:
    """Return the codes of the known issues whose signature matches a failed answer; empty for other answers."""
    if answer.outcome not in _FAILED:
        return ()
    errors = import_errors(answer.signs) if answer.evidence is EvidenceLevel.STATIC else []
    texts = (answer.summary, *answer.signs, *answer.details, answer.excerpt, *errors)
    return _codes_in("\n".join(texts))


def import_errors(signs: Iterable[str]) -> list[str]:
    """Return the error message that Python prints for each missing name, because signatures match such messages.

    >>> import_errors(["vllm.a.B: no B in vllm.a (trl/x.py:1, at import)"])
    ["ImportError: cannot import name 'B' from 'vllm.a'"]
    """
    errors = []
    for sign in signs:
        name, module = _MISSING_NAME.match(sign), _MISSING_MODULE.match(sign)
        if name:
            errors.append(f"ImportError: cannot import name '{name['name']}' from '{name['module']}'")
        elif module:
            errors.append(f"ModuleNotFoundError: No module named '{module['module']}'")
    return errors


def is_inactive(code: str) -> bool:
    """Return whether a known issue is not `active`: it occurs only with some settings, or is retired."""
    issue = catalog.load().get(code)
    return issue is not None and issue.status != "active"


_rules = cache(lambda: Rules(catalog.load()))


@cache
def _codes_in(text: str) -> tuple[str, ...]:
    rules = _rules()
    patterns = {rules.rules[index].pattern for line in text.splitlines() for index in rules.set.match(line)}
    signed = ((code, issue.signature) for code, issue in rules.issues.items())
    return tuple(code for code, signature in signed if signature and is_satisfied(signature, patterns))
