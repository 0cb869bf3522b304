"""Can the cell's environment be built from its committed lock?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnostics.matrix.ask import in_cell
from diagnostics.matrix.ask.layer import Layer
from diagnostics.matrix.build import environments, locks
from diagnostics.matrix.build.resolving import packages
from diagnostics.matrix.plan.verdicts import Answer, Evidence, Outcome

if TYPE_CHECKING:
    from diagnostics.matrix.build.workplace import Workplace
    from diagnostics.matrix.plan.cells import Cell


def _ask(workplace: Workplace, cell: Cell) -> Answer:
    assert cell.recipe is not None
    try:
        built = environments.ensure(workplace, cell)
    except environments.BuildError as error:
        outcome = Outcome.INFRA_ERROR if error.infrastructure else Outcome.FAIL
        return Answer(outcome, str(error), Evidence.EXECUTED, excerpt=error.excerpt)
    found = locks.read(workplace, cell, runs=True)
    return Answer(
        Outcome.PASS,
        f"{built.packages} packages, {built.size_gb:.1f} GB, built in {built.seconds:.0f} s",
        Evidence.EXECUTED,
        details=(f"recipe: {cell.recipe.about}", f"Python {built.python}"),
        ran_with=cell.recipe.differs,
        facts=packages(found),
        excerpt="\n".join(found),
    )


LAYERS = (
    # Not behind `resolve`: what runs has a lock of its own, and pairs that nobody allows are asked, too.
    Layer(
        name="install",
        order=40,
        group="environment",
        question="Can the environment in which this cell runs without a GPU be built from its committed lock?",
        evidence=Evidence.EXECUTED,
        inputs=in_cell.environment_inputs,
        ask=_ask,
    ),
)
