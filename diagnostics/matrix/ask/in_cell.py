"""Runs one of our programs inside a cell, and reads the one JSON document it prints."""

from __future__ import annotations

import json
import os
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diagnostics.collect.secrets import cut
from diagnostics.matrix.ask.layer import Layer
from diagnostics.matrix.build import environments, locks
from diagnostics.matrix.build.paths import machine, shareable
from diagnostics.matrix.build.workplace import InterpreterError, Workplace
from diagnostics.matrix.plan.verdicts import Answer, EvidenceLevel, Outcome
from diagnostics.processes import Finished, run, tail

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from subprocess import Popen

    from diagnostics.matrix.plan.cells import Cell, LayerSettings

# What must have passed before our programs can be asked in an environment.
USABLE = ("install", "import")


@dataclass(frozen=True)
class Reply:
    """What a program in a cell answered: a document, or the answer that takes its place."""

    document: dict[str, Any]
    excerpt: str
    log: str
    folder: Path
    """Where the program ran, and where what it wrote is."""
    instead: Answer | None = None


@dataclass(frozen=True)
class Ended:
    """A program that ended by itself."""

    done: Finished
    excerpt: str
    log: str
    folder: Path


def layer(
    name: str,
    order: int,
    group: str,
    question: str,
    program: Sequence[str] | Callable[[LayerSettings, Cell], Sequence[str]],
    schema: str,
    read: Callable[[Reply, Cell], Answer],
    *,
    needs: tuple[str, ...] = USABLE,
    codes: Callable[[LayerSettings], Sequence[str]] | None = None,
) -> Layer:
    """Returns a layer that runs one of our programs in the cell and reads its document.

    Args:
        name: Of the layer.
        order: Its place among the layers.
        group: Under which reports show it.
        question: For the page.
        program: What `python -m` is given; the arguments that the matrix file says of the layer come behind it.
        schema: Of the program's document.
        read: Makes the answer of the document.
        needs: Layers that must have passed.
        codes: Known issues that the program makes happen.
    """

    def given(settings: LayerSettings, cell: Cell) -> Sequence[str]:
        chosen = program(settings, cell) if callable(program) else program
        return (*chosen, *settings.arguments)

    def asked(workplace: Workplace, cell: Cell) -> Answer:
        found = ask(workplace, cell, name, [*given(workplace.matrix.layer(name), cell)], schema)
        return found.instead or read(found, cell)

    return Layer(
        name=name,
        order=order,
        group=group,
        question=question,
        evidence=EvidenceLevel.EXECUTED,
        needs=needs,
        inputs=inputs,
        program=given,
        codes=codes,
        ask=asked,
    )


def environment_inputs(workplace: Workplace, cell: Cell) -> Mapping[str, str]:
    """Returns what everything run in the cell's environment depends on."""
    try:
        _path, version = workplace.interpreter(cell.python)
    except InterpreterError:
        version = f"{cell.python} (absent)"
    return {"python": version, "machine": machine(), "lock": locks.contents(workplace, cell)}


def inputs(workplace: Workplace, cell: Cell) -> Mapping[str, str]:
    """Returns what the answer of a program in the cell depends on besides its arguments."""
    assert cell.recipe is not None
    return {**environment_inputs(workplace, cell), "variables": str(cell.recipe.environment)}


def failed(reply: Reply, cell: Cell, *, server: str = "") -> Answer:
    """Returns the answer of a document whose outcome isn't `ok`; what it raised is a sign that can be expected."""
    document = reply.document
    error = " ".join(str(document.get("error") or f"outcome {document.get('outcome')!r}").split())
    return answer(reply, cell, Outcome.FAIL, f"{server}: {error}" if server else error, signs=(error,))


def answer(
    reply: Reply, cell: Cell, outcome: Outcome, summary: str, *, signs: tuple[str, ...] = (), **more: Any
) -> Answer:
    """Returns an answer with what every document says: the versions, and each of its entries as a line."""
    document = reply.document
    lines = tuple(f"{key}: {value}" for key, value in document.items() if key not in {"versions", "schema"})
    return Answer(
        outcome,
        summary if outcome is Outcome.PASS else cut(summary, 300),
        EvidenceLevel.EXECUTED,
        signs=signs,
        details=more.pop("details", lines),
        ran_with=ran_with(cell, document.get("versions")),
        excerpt="" if outcome is Outcome.PASS else reply.excerpt,
        log=reply.log,
        **more,
    )


def execute(
    workplace: Workplace,
    cell: Cell,
    layer: str,
    arguments: list[str],
    *,
    beside: tuple[Path, ...] = (),
    files: Callable[[Path], None] = lambda _folder: None,
) -> Ended | Answer:
    """Runs `python -m <arguments>` in the cell; returns the answer if that could not be done, or took too long.

    Args:
        workplace: Where.
        cell: In whose environment.
        layer: For which question.
        arguments: Of Python, behind `-m`.
        beside: Folders it may import from, behind our own programs.
        files: Puts what it needs into its working folder.
    """
    try:
        environments.ensure(workplace, cell)
    except environments.BuildError as error:
        outcome = Outcome.INFRA_ERROR if error.infrastructure else Outcome.FAIL
        return Answer(outcome, str(error), EvidenceLevel.EXECUTED, excerpt=error.excerpt)
    environment = workplace.cell_environ(cell)
    paths = [environment["PYTHONPATH"], *map(os.fspath, beside)]
    return start(
        workplace,
        environments.python(environments.folder(workplace, cell)),
        (cell.id, layer),
        arguments,
        environment={**environment, "PYTHONPATH": os.pathsep.join(paths)},
        limit_s=workplace.matrix.layer(layer).timeout_s,
        files=files,
    )


def start(
    workplace: Workplace,
    python: Path,
    name: tuple[str, str],
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str],
    limit_s: float,
    files: Callable[[Path], None] = lambda _folder: None,
    ledger: Path | None = None,
    running: set[Popen[Any]] | None = None,
) -> Ended | Answer:
    """Runs `python -m <arguments>` of an environment; returns the answer if that took too long.

    Args:
        workplace: Where.
        python: The environment's.
        name: Cell and layer, after which log and working folder are called.
        arguments: Of Python, behind `-m`.
        environment: All its variables.
        limit_s: What it gets.
        files: Puts what it needs into its working folder.
        ledger: Remembers what runs, the store's own if it is None: one program at a time.
        running: Holds it while it runs, where several do.
    """
    cell, layer = name[0], name[1].replace(":", "-")
    log = workplace.folder("logs", cell) / f"{layer}.log"
    folder = workplace.folder("runs", cell, layer)
    shutil.rmtree(folder)  # what an earlier run wrote there is not this one's evidence
    folder.mkdir()
    files(folder)
    workplace.say(f"running python -m {' '.join(arguments[:2])}")
    done = run(
        [python, "-m", *arguments],
        environment=environment,
        log=log,
        timeout_s=limit_s,
        folder=folder,
        ledger=ledger or workplace.store.folder / "running.json",
        running=running,
    )
    excerpt = shareable(tail(log), workplace.store.folder)
    where = log.relative_to(workplace.store.folder).as_posix()
    if done.timed_out:
        late = f"no answer within {limit_s:.0f} s"
        return Answer(Outcome.TIMEOUT, late, EvidenceLevel.EXECUTED, excerpt=excerpt, log=where)
    return Ended(done, excerpt, where, folder)


def ask(workplace: Workplace, cell: Cell, layer: str, arguments: list[str], schema: str) -> Reply:
    """Runs `python -m <arguments>` in the cell and checks its answer's schema."""
    return reply(execute(workplace, cell, layer, [*arguments, "--json"]), schema)


def reply(ended: Ended | Answer, schema: str) -> Reply:
    """Returns what a program that ended has answered, if it has this schema."""
    if isinstance(ended, Answer):
        return Reply({}, ended.excerpt, ended.log, Path(), ended)
    document, problem = _read(ended.done, schema)
    instead = None
    if problem:
        instead = Answer(
            blame(ended.done), problem, EvidenceLevel.EXECUTED, excerpt=ended.excerpt, log=ended.log
        )
    return Reply(document, ended.excerpt, ended.log, ended.folder, instead)


def _read(done: Finished, schema: str) -> tuple[dict[str, Any], str]:
    """Returns the document, or ({}, what is wrong with it)."""
    if done.code < 0:
        return {}, f"{ended_by(done)} before it answered"
    try:
        document = json.loads(done.output)
    except ValueError:
        shown = " ".join(done.output.split())[:80]
        return (
            {},
            f"the program ended with {done.code} and printed "
            + (f"no JSON document: {shown!r}" if shown else "nothing"),
        )
    if isinstance(document, dict) and done.code == 2:
        return {}, f"the program could not work: {document.get('error')}"
    if not isinstance(document, dict) or document.get("schema") != schema:
        found = document.get("schema") if isinstance(document, dict) else type(document).__name__
        return {}, f"the program answered with {found!r} where {schema!r} was expected"
    return document, ""


def blame(done: Finished) -> Outcome:
    """Says whose fault a missing answer is: a crash (a signal) is the cell's, anything else our program's.

    SIGKILL comes from outside, mostly because memory ran out.
    """
    crashed = done.code < 0 and -done.code not in {signal.SIGKILL, signal.SIGTERM, signal.SIGINT}
    return Outcome.FAIL if crashed else Outcome.INFRA_ERROR


def ended_by(done: Finished) -> str:
    """Says which signal ended a program."""
    try:
        name = signal.Signals(-done.code).name
    except ValueError:
        name = f"signal {-done.code}"
    return f"the program was ended by {name}"


def ran_with(cell: Cell, versions: Any) -> tuple[tuple[str, str], ...]:
    """Returns what ran: the versions a program reported, and what the recipe says differs."""
    reported = (
        {str(name): str(value) for name, value in versions.items() if value}
        if isinstance(versions, dict)
        else {}
    )
    differs = dict(cell.recipe.differs) if cell.recipe else {}
    known = {
        name: f"{reported[name]}: {text}" if name in reported else text for name, text in differs.items()
    }
    return tuple(sorted({**reported, **known}.items()))
