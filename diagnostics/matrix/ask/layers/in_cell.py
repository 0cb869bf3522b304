"""Runs one of our programs inside a cell, and reads the one JSON document it prints."""

from __future__ import annotations

import json
import os
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diagnostics.matrix.ask.layers.install import environment_inputs
from diagnostics.matrix.build import environments
from diagnostics.matrix.build.workplace import Workplace, shareable
from diagnostics.matrix.plan.verdicts import Answer, Evidence, Outcome
from diagnostics.processes import Finished, run, tail

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from diagnostics.matrix.plan.cells import Cell

HARNESS = ("diagnostics/matrix/ask/layers/in_cell.py", "diagnostics/processes.py")


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


def inputs(workplace: Workplace, cell: Cell, layer: str) -> Mapping[str, str]:
    """Returns what the answer of a program in the cell depends on: environment, arguments, variables."""
    assert cell.recipe is not None
    return {
        **environment_inputs(workplace, cell),
        "arguments": " ".join(workplace.matrix.layer(layer).arguments),
        "variables": str(cell.recipe.environment),
    }


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
        return Answer(outcome, str(error), Evidence.EXECUTED, excerpt=error.excerpt)
    log = workplace.log(cell, layer)
    folder = workplace.folder("runs", cell.id, layer.replace(":", "-"))
    shutil.rmtree(folder)  # what an earlier run wrote there is not this one's evidence
    folder.mkdir()
    files(folder)
    environment = workplace.cell_environ(cell)
    paths = [environment["PYTHONPATH"], *map(os.fspath, beside)]
    limit_s = workplace.matrix.layer(layer).timeout_s
    workplace.say(f"running python -m {' '.join(arguments[:2])}")
    done = run(
        [environments.python(environments.folder(workplace, cell)), "-m", *arguments],
        environment={**environment, "PYTHONPATH": os.pathsep.join(paths)},
        log=log,
        timeout_s=limit_s,
        folder=folder,
        ledger=workplace.store.folder / "running.json",
    )
    excerpt = shareable(tail(log), workplace)
    name = log.relative_to(workplace.store.folder).as_posix()
    if done.timed_out:
        late = f"no answer within {limit_s:.0f} s"
        return Answer(Outcome.TIMEOUT, late, Evidence.EXECUTED, excerpt=excerpt, log=name)
    return Ended(done, excerpt, name, folder)


def ask(workplace: Workplace, cell: Cell, layer: str, arguments: list[str], schema: str) -> Reply:
    """Runs `python -m <arguments>` in the cell and checks its answer's schema."""
    ended = execute(workplace, cell, layer, [*arguments, "--json"])
    if isinstance(ended, Answer):
        return Reply({}, ended.excerpt, ended.log, Path(), ended)
    document, problem = _read(ended.done, schema)
    instead = None
    if problem:
        instead = Answer(blame(ended.done), problem, Evidence.EXECUTED, excerpt=ended.excerpt, log=ended.log)
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
