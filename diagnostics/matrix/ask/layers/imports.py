"""Do the cell's modules import, each in a process of its own?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnostics.matrix.ask.layers import in_cell
from diagnostics.matrix.ask.layers.base import Layer
from diagnostics.matrix.plan.verdicts import Answer, Evidence, Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping

    from diagnostics.matrix.build.workplace import Workplace
    from diagnostics.matrix.plan.cells import Cell

SCHEMA = "grpo-doctor.imports.v1"
# Of repro, all that importing a module goes through.
PROGRAM = ("repro/__init__.py", "repro/__main__.py", "repro/drivers/imports.py")


def _inputs(workplace: Workplace, cell: Cell) -> Mapping[str, str]:
    assert cell.recipe is not None
    return {**in_cell.inputs(workplace, cell, "import"), "modules": " ".join(cell.recipe.imports)}


def _ask(workplace: Workplace, cell: Cell) -> Answer:
    assert cell.recipe is not None
    reply = in_cell.ask(workplace, cell, "import", ["repro", "imports", *cell.recipe.imports], SCHEMA)
    if reply.instead:
        return reply.instead
    modules = reply.document.get("modules", {})
    broken = {name: item for name, item in modules.items() if not item.get("ok")}
    lines = tuple(_line(name, item) for name, item in modules.items())
    versions = {name: item.get("version") for name, item in modules.items() if "." not in name}
    ran_with = in_cell.ran_with(cell, versions)
    late = [name for name, item in broken.items() if item.get("timeout")]
    if late:
        summary = f"{', '.join(late)}: {broken[late[0]].get('error')}"
        return Answer(
            Outcome.TIMEOUT, summary, Evidence.EXECUTED, details=lines, ran_with=ran_with, log=reply.log
        )
    if broken or not modules:
        first = "; ".join(_line(name, item) for name, item in broken.items()) or "no module was tried"
        return Answer(
            Outcome.FAIL,
            first[:300],
            Evidence.EXECUTED,
            signs=lines,
            details=lines,
            ran_with=ran_with,
            excerpt=reply.excerpt,
            log=reply.log,
        )
    seconds = sum(float(item.get("seconds") or 0) for item in modules.values())
    summary = f"{', '.join(modules)} import ({seconds:.0f} s)"
    return Answer(
        Outcome.PASS, summary, Evidence.EXECUTED, signs=lines, details=lines, ran_with=ran_with, log=reply.log
    )


def _line(name: str, item: Mapping[str, object]) -> str:
    if item.get("ok"):
        version = item.get("version")
        return f"{name}: ok, version {version}" if version else f"{name}: ok"
    where = f" at {item['where']}" if item.get("where") else ""
    return f"{name}: {item.get('error')}{where}"


LAYER = Layer(
    name="import",
    question="Can its modules be imported?",
    evidence=Evidence.EXECUTED,
    needs=("install",),
    heavy=True,
    harness=("diagnostics/matrix/ask/layers/imports.py", *in_cell.HARNESS, *PROGRAM),
    inputs=_inputs,
    ask=_ask,
)
