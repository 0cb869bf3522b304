"""Layers `install`, `import` and `rollout`: build the environment of the cell, and import modules there.

`install` builds the environment from its lock. `import` imports each of the recipe's modules in a separate process, and
`rollout` those of the trainer's rollout worker. An import that does not end in time gives TIMEOUT.
"""

from collections.abc import Mapping
from typing import Any

from diagnostics.matrix import locks
from diagnostics.matrix.cells import Cell
from diagnostics.matrix.context import Context
from diagnostics.matrix.layers import cell_run
from diagnostics.matrix.layers.layer import Layer
from diagnostics.matrix.resolve import package_facts
from diagnostics.matrix.verdicts import Answer, Outcome


def _install(context: Context, cell: Cell) -> Answer:
    """Build the cell's environment from its lock, and return the answer with its packages."""
    assert cell.recipe is not None
    built = cell_run.built_environment(context, cell)
    pins = locks.read_pins(context, cell, runnable=True)
    return Answer(
        Outcome.PASS,
        f"{built.packages} packages, built in {built.seconds:.0f} s",
        details=(f"recipe: {cell.recipe.about}", f"Python {built.python}"),
        ran_with=tuple(cell.recipe.differs.items()),
        facts=package_facts(pins),
        excerpt="\n".join(pins),
    )


def import_answer(completed: cell_run.CellRun, cell: Cell) -> Answer:
    """Return the answer for the document of the program that imports each module in a separate process."""
    modules: Mapping[str, Mapping[str, Any]] = completed.document.get("modules", {})
    broken = {name: item for name, item in modules.items() if not item.get("ok")}
    late = [name for name, item in broken.items() if item.get("timed_out")]
    lines = tuple(_module_line(name, item) for name, item in modules.items())
    outcome, signs = Outcome.FAIL, lines
    if late:
        outcome, signs = Outcome.TIMEOUT, ()
        summary = f"{', '.join(late)}: {broken[late[0]].get('error')}"
    elif broken or not modules:
        summary = (
            "; ".join(_module_line(name, item) for name, item in broken.items()) or "no module was tried"
        )
    else:
        outcome = Outcome.PASS
        seconds = sum(float(item.get("seconds") or 0) for item in modules.values())
        summary = f"{', '.join(modules)} import ({seconds:.0f} s)"
    versions = {name: item.get("version") for name, item in modules.items() if "." not in name}
    return cell_run.executed_answer(completed, cell, outcome, summary, versions, signs=signs, details=lines)


def _module_line(name: str, item: Mapping[str, Any]) -> str:
    if item.get("ok"):
        return f"{name}: ok, version {item['version']}" if item.get("version") else f"{name}: ok"
    location = f" at {item['where']}" if item.get("where") else ""
    return f"{name}: {item.get('error')}{location}"


LAYERS = (
    # `install` does not need `resolve`: the runnable environment has a separate lock, and forbidden pairs run, too.
    Layer(
        name="install",
        question="Can the cell's GPU-free environment be built from its committed lock?",
        check=_install, inputs=cell_run.environment_inputs,
        code=(__name__, "diagnostics.matrix.environments", "diagnostics.matrix.libstdcxx"),
    ),
    cell_run.program_layer(
        "import", "Can its modules be imported?",
        lambda _settings, cell: ("repro", "imports", *(cell.recipe.imports if cell.recipe else ())),
        "grpo-doctor.imports.v1", import_answer, code=(__name__, "repro.drivers.imports"), needs=("install",),
    ),
    cell_run.program_layer(
        "rollout", "Can the trainer's rollout worker or server for vLLM be imported without a GPU?",
        lambda _settings, cell: ("repro", "imports", *(cell.recipe.rollout if cell.recipe else ())),
        "grpo-doctor.imports.v1", import_answer,
        code=(__name__, "repro.drivers.imports"), needs=("install",),
    ),
)  # fmt: skip
