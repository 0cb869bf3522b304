"""Do known issues other than the scheduler's happen in this cell, each asked by its own code?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnostics.matrix.ask.layers import in_cell, scheduler
from diagnostics.matrix.ask.layers.base import Layer
from diagnostics.matrix.plan.cells import LAYERS as LAYER_NAMES
from diagnostics.matrix.plan.verdicts import Evidence

if TYPE_CHECKING:
    from collections.abc import Mapping

    from diagnostics.matrix.build.workplace import Workplace
    from diagnostics.matrix.plan.cells import Cell
    from diagnostics.matrix.plan.verdicts import Answer

CODES = tuple(name.removeprefix("repro:") for name in LAYER_NAMES if name.startswith("repro:"))
# These are about what can't be imported.
_IMPORTS = frozenset({"CMP002", "CMP003"})


def _layer(code: str) -> Layer:
    name = f"repro:{code}"

    def inputs(workplace: Workplace, cell: Cell) -> Mapping[str, str]:
        shared = in_cell.inputs(workplace, cell, name)
        return {**shared, "repros": scheduler.programs(workplace, (code,))}

    def ask(workplace: Workplace, cell: Cell) -> Answer:
        arguments = workplace.matrix.layer(name).arguments
        program = ["repro", "run", code, "--mitigation", "all", "--timeout", "240", *arguments]
        reply = in_cell.ask(workplace, cell, name, program, scheduler.SCHEMA)
        if reply.instead:
            return reply.instead
        return scheduler.read(reply, in_cell.ran_with(cell, reply.document.get("versions")))

    return Layer(
        name=name,
        question=f"Does {code} happen with the cell's own packages, and which mitigations help?",
        evidence=Evidence.EXECUTED,
        needs=("install",) if code in _IMPORTS else ("install", "import"),
        heavy=True,
        harness=(
            "diagnostics/matrix/ask/layers/repros.py",
            "diagnostics/matrix/ask/layers/scheduler.py",
            *in_cell.HARNESS,
        ),
        inputs=inputs,
        ask=ask,
    )


LAYERS = tuple(map(_layer, CODES))
