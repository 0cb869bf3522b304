"""Can the cell's environment be built from its committed lock?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnostics.matrix.ask.layers.base import Layer
from diagnostics.matrix.build import environments, locks
from diagnostics.matrix.build.workplace import InterpreterError, Workplace, machine
from diagnostics.matrix.plan.verdicts import Answer, Evidence, Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping

    from diagnostics.matrix.plan.cells import Cell


def environment_inputs(workplace: Workplace, cell: Cell) -> Mapping[str, str]:
    """Returns what everything run in the cell's environment depends on."""
    try:
        _path, version = workplace.interpreter(cell.python)
    except InterpreterError:
        version = f"{cell.python} (absent)"
    return {
        "python": version,
        "machine": machine(),
        "lock": locks.contents(workplace, cell),
    }


def _ask(workplace: Workplace, cell: Cell) -> Answer:
    assert cell.recipe is not None
    try:
        built = environments.ensure(workplace, cell)
    except environments.BuildError as error:
        outcome = Outcome.INFRA_ERROR if error.infrastructure else Outcome.FAIL
        return Answer(outcome, str(error), Evidence.EXECUTED, excerpt=error.excerpt)
    return Answer(
        Outcome.PASS,
        f"{built.packages} packages, {built.size_gb:.1f} GB, built in {built.seconds:.0f} s",
        Evidence.EXECUTED,
        details=(f"recipe: {cell.recipe.about}", f"Python {built.python}"),
        ran_with=cell.recipe.differs,
        excerpt="\n".join(locks.read(workplace, cell, runs=True)),
    )


LAYER = Layer(
    name="install",
    question="Can the environment in which this cell runs without a GPU be built from its committed lock?",
    evidence=Evidence.EXECUTED,
    # Not `resolve`: what runs has a lock of its own, and pairs that nobody allows are asked, too.
    needs=(),
    heavy=True,
    harness=("diagnostics/matrix/ask/layers/install.py",),
    inputs=environment_inputs,
    ask=_ask,
)
