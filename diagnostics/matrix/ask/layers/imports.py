"""Do the cell's modules import, each in a process of its own?"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from diagnostics.matrix.ask import in_cell
from diagnostics.matrix.plan.verdicts import Answer, Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping

    from diagnostics.matrix.plan.cells import Cell, LayerSettings

SCHEMA = "grpo-doctor.imports.v1"


def read(reply: in_cell.Reply, cell: Cell) -> Answer:
    """Makes the answer of how each module's import ended."""
    modules = reply.document.get("modules", {})
    broken = {name: item for name, item in modules.items() if not item.get("ok")}
    lines = tuple(_line(name, item) for name, item in modules.items())
    outcome, signs = Outcome.FAIL, lines
    late = [name for name, item in broken.items() if item.get("timeout")]
    if late:
        outcome, signs = Outcome.TIMEOUT, ()
        summary = f"{', '.join(late)}: {broken[late[0]].get('error')}"
    elif broken or not modules:
        summary = "; ".join(_line(name, item) for name, item in broken.items()) or "no module was tried"
    else:
        outcome = Outcome.PASS
        seconds = sum(float(item.get("seconds") or 0) for item in modules.values())
        summary = f"{', '.join(modules)} import ({seconds:.0f} s)"
    found = in_cell.answer(reply, cell, outcome, summary, signs=signs, details=lines)
    versions = {name: item.get("version") for name, item in modules.items() if "." not in name}
    return replace(found, ran_with=in_cell.ran_with(cell, versions))


def _line(name: str, item: Mapping[str, object]) -> str:
    if item.get("ok"):
        version = item.get("version")
        return f"{name}: ok, version {version}" if version else f"{name}: ok"
    where = f" at {item['where']}" if item.get("where") else ""
    return f"{name}: {item.get('error')}{where}"


def _program(_settings: LayerSettings, cell: Cell) -> tuple[str, ...]:
    assert cell.recipe is not None
    return ("repro", "imports", *cell.recipe.imports)


LAYERS = (
    in_cell.layer(
        "import",
        50,
        "environment",
        "Can its modules be imported?",
        _program,
        SCHEMA,
        read,
        needs=("install",),
    ),
)
