"""Run one of our programs in the environment of a cell, and read the JSON document that it prints.

`program_layer` makes a layer of such a program; its function `answer` turns the document into the layer's answer. The
environment is built if necessary. If there is no document, as after a timeout or a crash, `EarlyAnswer` is raised. The
other functions make inputs of layers and parts of answers.
"""

import json
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from diagnostics.matrix import environments, locks
from diagnostics.matrix.cells import Cell, LayerSettings
from diagnostics.matrix.context import Context, InterpreterError, platform_name, without_local_paths
from diagnostics.matrix.environments import BuildError, BuildMarker
from diagnostics.matrix.layers.layer import EarlyAnswer, Layer
from diagnostics.matrix.verdicts import Answer, Outcome
from diagnostics.output.redact import truncate
from diagnostics.process import Completed, log_tail, run, signal_name

# Layers that must pass before most of our programs can run in an environment.
NEEDED_LAYERS = ("install", "import")


@dataclass(frozen=True)
class CellRun:
    """A run of a program in a cell that ended before its time limit."""

    process: Completed
    excerpt: str
    """The tail of the log, without local paths."""
    log: str
    """The log's path, below the store's folder."""
    folder: Path
    """The program's working folder."""
    document: dict[str, Any] = field(default_factory=dict)
    """The document that the program printed; `read_document` fills it in."""


def program_layer(
    name: str,
    question: str,
    program: Sequence[str] | Callable[[LayerSettings, Cell], Sequence[str]],
    schema: str,
    answer: Callable[[CellRun, Cell], Answer],
    **fields: Any,
) -> Layer:
    """Return a layer that runs one of our programs in the cell and reads its document.

    Args:
        name: Name of the layer.
        question: The question that the layer answers, for the HTML page.
        program: Arguments of `python -m`; the arguments in the matrix file and `--json` are added.
        schema: Schema of the program's document.
        answer: Function that converts the document into an answer.
        fields: Further fields of the layer; without `needs`, it needs a usable environment.
    """

    def arguments(settings: LayerSettings, cell: Cell) -> Sequence[str]:
        return (*(program(settings, cell) if callable(program) else program), *settings.arguments)

    def check(context: Context, cell: Cell) -> Answer:
        command = [*arguments(context.matrix.settings[name], cell), "--json"]
        return answer(read_document(run_in_cell(context, cell, name, command), schema), cell)

    fields = {"needs": NEEDED_LAYERS, "inputs": program_inputs, "program": arguments, **fields}
    return Layer(name=name, question=question, check=check, **fields)


def environment_inputs(context: Context, cell: Cell) -> Mapping[str, str]:
    """Return the inputs that the layers in the cell's environment share: Python, machine and contents."""
    try:
        _path, version = context.interpreter(cell.python)
    except InterpreterError:
        version = f"{cell.python} (absent)"
    return {"python": version, "machine": platform_name(), "lock": locks.environment_digest(context, cell)}


def program_inputs(context: Context, cell: Cell) -> Mapping[str, str]:
    """Return the inputs of a program in the cell: those of the environment, and the recipe's variables."""
    assert cell.recipe is not None
    variables = tuple(cell.recipe.environment.items())
    return {**environment_inputs(context, cell), "variables": str(variables)}


def built_environment(context: Context, cell: Cell) -> BuildMarker:
    """Return the marker of the cell's environment, which is built if necessary.

    Raises:
        EarlyAnswer: The environment could not be built.
    """
    try:
        return environments.ensure_environment(context, cell)
    except BuildError as error:
        outcome = Outcome.INFRA_ERROR if error.infrastructure else Outcome.FAIL
        raise EarlyAnswer(Answer(outcome, str(error), excerpt=error.excerpt)) from None


def run_in_cell(
    context: Context,
    cell: Cell,
    layer: str,
    arguments: Sequence[str],
    *,
    import_from: Sequence[Path] = (),
    prepare: Callable[[Path], object] = lambda _folder: None,
) -> CellRun:
    """Run `python -m <arguments>` in the cell.

    Args:
        context: The command's context.
        cell: The cell.
        layer: The layer; log and working folder are named after it.
        arguments: Arguments of Python after `-m`.
        import_from: Further folders for imports, after our own programs.
        prepare: Function that writes files into the program's working folder.

    Raises:
        EarlyAnswer: The environment could not be built, or the program took too long.
    """
    built_environment(context, cell)
    environment = context.cell_environ(cell)
    environment["PYTHONPATH"] = os.pathsep.join([environment["PYTHONPATH"], *map(os.fspath, import_from)])
    name = layer.replace(":", "-")
    log = context.folder("logs", cell.id) / f"{name}.log"
    # Files of an earlier run are no evidence of this one.
    folder = context.empty_folder("runs", cell.id, name)
    prepare(folder)
    context.show_status(f"running python -m {' '.join(arguments[:2])}")
    limit_s = context.matrix.settings[layer].timeout_s
    process = run(
        [environments.python_of(context, cell), "-m", *arguments],
        env=environment,
        log=log,
        timeout_s=limit_s,
        cwd=folder,
        ledger=context.store.folder / "running.json",
    )
    excerpt = without_local_paths(log_tail(log), context.store.folder)
    log_name = log.relative_to(context.store.folder).as_posix()
    if process.timed_out:
        late = f"no answer within {limit_s:.0f} s"
        raise EarlyAnswer(Answer(Outcome.TIMEOUT, late, excerpt=excerpt, log=log_name))
    return CellRun(process, excerpt, log_name, folder)


def read_document(completed: CellRun, schema: str) -> CellRun:
    """Return the run with the document that the program printed.

    Raises:
        EarlyAnswer: The program printed no document with this schema, or ended by a signal or with exit code 2.
    """
    process = completed.process
    try:
        document = json.loads(process.output)
    except (ValueError, RecursionError):
        document = None
    problem = ""
    if process.code < 0:
        problem = f"the program was ended by {signal_name(process.code)} before it answered"
    elif isinstance(document, dict) and process.code == 2:
        problem = f"the program could not work: {document.get('error')}"
    elif not isinstance(document, dict) or document.get("schema") != schema:
        printed = (
            repr(truncate(" ".join(process.output.split()), 80)) if process.output.strip() else "nothing"
        )
        problem = f"the program ended with {process.code} and printed {printed}, not a document {schema!r}"
    if problem:
        outcome = outcome_of_exit(process)
        raise EarlyAnswer(Answer(outcome, problem, excerpt=completed.excerpt, log=completed.log))
    return replace(completed, document=document)


def outcome_of_exit(process: Completed) -> Outcome:
    """Return the outcome of a program without a document: FAIL after a crash, else an infrastructure error.

    A crash is an end by a signal other than SIGKILL, SIGTERM and SIGINT. These come from outside, SIGKILL mostly
    because memory ran out.
    """
    crashed = process.code < 0 and -process.code not in {signal.SIGKILL, signal.SIGTERM, signal.SIGINT}
    return Outcome.FAIL if crashed else Outcome.INFRA_ERROR


def executed_answer(
    completed: CellRun, cell: Cell, outcome: Outcome, summary: str, versions: Any = None, **more: Any
) -> Answer:
    """Return the answer of a program that ran in the cell, with versions, log and, unless it passed, an excerpt."""
    return Answer(
        outcome,
        summary if outcome is Outcome.PASS else truncate(summary, 300),
        ran_with=versions_that_ran(cell, versions),
        excerpt="" if outcome is Outcome.PASS else completed.excerpt,
        log=completed.log,
        **more,
    )


def document_lines(document: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a line for each entry of a document, without its versions and its schema."""
    return tuple(f"{key}: {value}" for key, value in document.items() if key not in {"versions", "schema"})


def document_error(document: Mapping[str, Any]) -> str:
    """Return the error in a document on one line, or else its outcome."""
    return " ".join(str(document.get("error") or f"outcome {document.get('outcome')!r}").split())


def versions_that_ran(cell: Cell, versions: Any) -> tuple[tuple[str, str], ...]:
    """Return the versions that a program reported, and the recipe's differences from the declared environment."""
    reported = versions if isinstance(versions, dict) else {}
    ran = {str(name): str(value) for name, value in reported.items() if value}
    for name, remark in (cell.recipe.differs if cell.recipe else {}).items():
        ran[name] = f"{ran[name]}: {remark}" if name in ran else remark
    return tuple(sorted(ran.items()))
