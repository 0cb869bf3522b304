"""Layer `conformance`: run the conformance suite of the engine protocol against the real engine of the cell.

pytest, with pinned hashes, is installed in a folder of the store next to the cell, not into it. A failed test or a
crash gives FAIL, a run over its time limit TIMEOUT. Other faults of pytest, or no passed test, are infrastructure
faults.
"""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from diagnostics import safe_io
from diagnostics.matrix.cells import Cell, LayerSettings
from diagnostics.matrix.context import ROOT, Context, InterpreterError
from diagnostics.matrix.layers import cell_run
from diagnostics.matrix.layers.layer import EarlyAnswer, Layer
from diagnostics.matrix.verdicts import Answer, Outcome
from diagnostics.output.redact import redact_tail
from diagnostics.process import signal_name

SUITE = "tests/grpo_core/conformance"
_PACKAGE = SUITE.replace("/", ".")
# Wheels that are installed next to the cell, not into it, with their hashes. Cells have `packaging` anyway.
_TOOLS = {
    "pytest==8.3.5": "sha256:c69214aa47deac29fad6c2a4f590b9c4a9fdb16a403176fe154b79c0b4d4d820",
    "pluggy==1.6.0": "sha256:e920276dd6813095e9377c0bc5566d94c932c33b27a3e3945d8389c374dd4746",
    "iniconfig==2.1.0": "sha256:9deba5723312380e77435581c6bf4935c94cbfab9b1ed33ef8d238ea168eb760",
}
_OUTCOMES = "outcomes.json"
_KINDS = ("passed", "not applicable", "failed")


def _inputs(context: Context, cell: Cell) -> Mapping[str, str]:
    """Return the inputs of the answer: those of programs in the cell, and pytest's version."""
    return {**cell_run.program_inputs(context, cell), "pytest": " ".join(_TOOLS)}


def _program(settings: LayerSettings, _cell: Cell) -> list[str]:
    """Return the command line of pytest after `python -m`."""
    options = ["-q", "-c", os.devnull, "--rootdir", ".", "--import-mode=importlib", "-p", "no:cacheprovider"]
    plugin = ["-p", f"{_PACKAGE}.plugin", f"{SUITE}/suite.py", "--outcomes", _OUTCOMES]
    return ["pytest", *options, *plugin, *settings.arguments]


def _check(context: Context, cell: Cell) -> Answer:
    """Run the suite in the cell, and turn its outcomes into an answer."""
    tools = _install_tools(context, cell)
    program = _program(context.matrix.settings["conformance"], cell)
    completed = cell_run.run_in_cell(
        context, cell, "conformance", program, import_from=(tools,), prepare=_copy_suite
    )
    try:
        path = completed.folder / _OUTCOMES
        outcomes = safe_io.parse_json(safe_io.read_bytes(path, safe_io.DOCUMENT_LIMIT, inside=path.parent))
    except (OSError, ValueError):
        outcomes = {}
    outcome, summary = suite_outcome(outcomes, completed)
    lines = tuple(f"{name}: {item['outcome']}{_reason(item)}" for name, item in outcomes.items())
    signs = tuple(line for line in lines if not line.endswith(": passed"))
    return cell_run.executed_answer(completed, cell, outcome, summary, signs=signs, details=lines)


def _copy_suite(folder: Path) -> None:
    """Copy the suite into a package `tests` in the working folder, which Python finds before installed packages."""
    ignore = shutil.ignore_patterns("__pycache__", "test_*")
    shutil.copytree(ROOT / SUITE, folder / SUITE, ignore=ignore)
    shutil.copy(ROOT / "tests" / "__init__.py", folder / "tests")


def _install_tools(context: Context, cell: Cell) -> Path:
    """Return a folder with pytest for the cell's Python, installed when first needed.

    Raises:
        EarlyAnswer: pytest could not be installed.
    """
    target = context.folder("beside") / f"pytest-python{cell.python}"
    if not target.exists():
        aside = context.empty_folder("beside", f"{target.name}.part")
        try:
            python, _version = context.interpreter(cell.python)
        except InterpreterError as error:
            raise EarlyAnswer(Answer(Outcome.INFRA_ERROR, str(error))) from None
        requirements = "".join(f"{name} --hash={digest}\n" for name, digest in _TOOLS.items())
        options = ["--quiet", "--no-config", "--no-deps", "--require-hashes", "-r", "-", "--target"]
        result = context.run_command(
            [context.uv, "pip", "install", "--python", python, *options, aside],
            timeout_s=300,
            stdin=requirements,
        )
        if result.code != 0:
            errors = redact_tail(result.errors[-64_000:], 4000)
            summary = f"pytest could not be installed next to the cell: {errors.strip()[-200:]}"
            raise EarlyAnswer(Answer(Outcome.INFRA_ERROR, summary, excerpt=errors))
        aside.rename(target)
    return target


def suite_outcome(
    outcomes: Mapping[str, Mapping[str, str]], completed: cell_run.CellRun
) -> tuple[Outcome, str]:
    """Return the suite's outcome and summary.

    Args:
        outcomes: Test -> its `outcome` and `why`.
        completed: The process of pytest.
    """
    names = {kind: [name for name, item in outcomes.items() if item["outcome"] == kind] for kind in _KINDS}
    counts = ", ".join(f"{len(tests)} {kind}" for kind, tests in names.items() if tests)
    process = completed.process
    if process.code < 0:
        ended = f"the program was ended by {signal_name(process.code)} after these: {counts or 'none'}"
        return cell_run.outcome_of_exit(process), ended
    if names["failed"]:
        first = names["failed"][0]
        return Outcome.FAIL, f"{counts}; first {first}{_reason(outcomes[first])}"
    if process.code != 0 or not names["passed"]:
        return Outcome.INFRA_ERROR, f"pytest ended with {process.code}: {counts or 'no test ran'}"
    return Outcome.PASS, counts


def _reason(item: Mapping[str, str]) -> str:
    return f" ({item['why']})" if item.get("why") else ""


LAYERS = (
    Layer(
        name="conformance",
        question="Does the real engine pass the conformance suite that every engine passes?",
        check=_check, code=(__name__, _PACKAGE, "grpo_core"),
        needs=(*cell_run.NEEDED_LAYERS, "engine"), inputs=_inputs, program=_program,
    ),
)  # fmt: skip
