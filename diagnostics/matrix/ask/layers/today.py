"""Can the pair still be installed together from what it declares, with today's packages?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnostics.matrix.ask.layer import Layer
from diagnostics.matrix.ask.layers import resolve
from diagnostics.matrix.build.resolving import declared
from diagnostics.matrix.plan.verdicts import Answer, Evidence, Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping

    from diagnostics.matrix.build.workplace import Workplace
    from diagnostics.matrix.plan.cells import Cell


def _inputs(workplace: Workplace, cell: Cell) -> Mapping[str, str]:
    releases = workplace.matrix.releases
    return {
        "python": cell.python,
        "platform": workplace.matrix.platform,
        # Today is the day on which the list of releases was read: a verdict stands until it is read again.
        "exclude_newer": releases.read.isoformat() if releases else "no list of releases",
    }


def _ask(workplace: Workplace, cell: Cell) -> Answer:
    releases = workplace.matrix.releases
    if releases is None:
        remedy = "`python -m diagnostics.matrix releases` reads the index"
        return Answer(Outcome.NOT_RUN, f"no list of releases says what today is: {remedy}", Evidence.STATIC)
    workplace.say("resolving what it declares with today's packages")
    limit = workplace.matrix.layer("resolve:today").timeout_s
    return resolve.answer(declared(workplace, cell, timeout_s=limit, cut=releases.read))


LAYERS = (
    Layer(
        name="resolve:today",
        order=20,
        group="read",
        question="Have the declared requirements of this pair a solution with the packages of today?",
        evidence=Evidence.STATIC,
        heavy=False,
        of_pairs=True,
        solves=True,
        inputs=_inputs,
        ask=_ask,
    ),
)
