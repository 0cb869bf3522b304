"""One release of a sweep as a question of the matrix: its own code, laid beside the environment that all share."""

from __future__ import annotations

import datetime
import os
import shutil
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from diagnostics import processes
from diagnostics.matrix.ask import attempts, in_cell
from diagnostics.matrix.ask.layer import Layer, infrastructure
from diagnostics.matrix.build import sources, wheels
from diagnostics.matrix.plan.cells import Cell
from diagnostics.matrix.plan.verdicts import Answer, Evidence, Outcome
from diagnostics.matrix.run.board import ASKING, Question, repros
from diagnostics.matrix.run.runner import Options, run
from diagnostics.matrix.sweep import environment

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from diagnostics.matrix.build.workplace import Workplace
    from diagnostics.matrix.records.events import Event
    from diagnostics.matrix.run.board import Board
    from diagnostics.matrix.run.progress import Progress
    from diagnostics.matrix.sweep.plan import Sweep

    Read = Callable[[in_cell.Reply, tuple[tuple[str, str], ...]], Answer]


@dataclass(frozen=True)
class Asked(Question):
    """One release of a sweep."""

    sweep: Sweep

    @property
    def command(self) -> str:
        """Asks again."""
        return f"{self.sweep.command} --releases {self.cell.vllm} --fresh"


def questions(
    workplace: Workplace,
    releases: Mapping[str, Sweep],
    program: Callable[[Sweep], Sequence[str]],
    schema: str,
    read: Read,
) -> list[Asked]:
    """Returns one question a release, with all that its answer rests on.

    Args:
        workplace: Where.
        releases: Version -> what it is asked as.
        program: What `python -m` is given.
        schema: Of the document that it prints.
        read: Makes the answer of the document and of what ran.

    Raises:
        BuildError: there is no lock.
        InterpreterError: there is no such Python, and none could be fetched.
    """
    found: list[Asked] = []
    for version, sweep in releases.items():
        name, given = f"sweep:{sweep.name}", program(sweep)
        _path, python = workplace.interpreter(sweep.python, fetch=True)
        inputs = {
            "layer": name,
            "package": f"{sweep.package} {version}",
            "program": " ".join(given),
            "codes": " ".join(sweep.codes),
            "lock": environment.lock_digest(workplace, sweep),
            "python": python,
            "variables": str(sweep.environment),
            "code": workplace.code.digest((__name__, ASKING, given[0], *repros(sweep.codes)), given[1:]),
        }
        layer = Layer(
            name=name,
            order=0,
            group="sweep",
            question=f"What do {', '.join(sweep.codes)} in this release?",
            evidence=Evidence.EXECUTED,
            heavy=False,  # nothing is built for one of them alone, so that several can be asked at a time
            ask=_asking(sweep, version, given, schema, read),
        )
        found.append(Asked(_cell(sweep, version, name), layer, tuple(inputs.items()), sweep))
    return found


def _cell(sweep: Sweep, version: str, layer: str) -> Cell:
    """Returns a release as a cell that is asked one thing."""
    return Cell(
        id=f"{sweep.package}-{version}",
        vllm=version,
        trl="",
        python=sweep.python,
        exclude_newer=datetime.date.max,
        recipe=None,
        layers=(layer,),
        profiles=("sweep",),
        expectations=(),
        note="",
    )


def _asking(
    sweep: Sweep, version: str, given: Sequence[str], schema: str, read: Read
) -> Callable[[Workplace, Cell], Answer]:
    def ask(workplace: Workplace, cell: Cell) -> Answer:
        folder, cache = workplace.folder("sweeps", sweep.package), workplace.folder("wheels")
        try:
            files = wheels.unpack(sweep.package, version, folder, cache=cache, environ=workplace.environ)
        except sources.SourceError as error:
            return infrastructure(str(error), Evidence.EXECUTED)
        variables = {**workplace.cell_environ(None), **dict(sweep.environment)}
        ended = in_cell.start(
            workplace,
            environment.python(workplace, sweep),
            (cell.id, cell.layers[0]),
            [*given, "--json"],
            environment={
                **variables,
                "PYTHONPATH": os.pathsep.join((os.fspath(files), variables["PYTHONPATH"])),
            },
            limit_s=sweep.timeout_s,
            ledger=workplace.folder("sweeps", "running") / f"{cell.id}.json",
            running=workplace.running,
        )
        shutil.rmtree(
            files.parent, ignore_errors=True
        )  # two seconds bring it back; sixty of them have a gigabyte
        found = in_cell.reply(ended, schema)
        if found.instead and found.instead.outcome is Outcome.FAIL:
            return replace(found.instead, outcome=Outcome.INFRA_ERROR)  # our program's, not the release's
        versions = found.document.get("versions")
        reported = versions if isinstance(versions, dict) else {}
        ran_with = sorted((str(name), str(value)) for name, value in reported.items())
        return found.instead or read(found, (*ran_with, ("differs", sweep.differs)))

    return ask


def of_repros(sweep: Sweep) -> Sequence[str]:
    """Returns the program that makes a sweep's known failures happen."""
    return attempts.program(sweep.codes, limit_s=sweep.attempt_s)


def ask(workplace: Workplace, asked: Sequence[Asked], progress: Progress, *, fresh: bool, jobs: int) -> Board:
    """Asks what is due, the store being held; Ctrl-C ends what runs, and keeps what was finished."""
    for sweep in dict.fromkeys(item.sweep for item in asked):
        environment.ensure(workplace, sweep)
        jobs = min(jobs, sweep.at_a_time or jobs)
    workplace.stage()
    for left in workplace.folder("sweeps", "running").iterdir():
        processes.end_left_over(left)
    again = frozenset((item.cell.id, item.layer.name) for item in asked if fresh)
    return run(workplace, asked, Options(fresh=again, jobs=jobs), progress)


def answers(found: Board) -> dict[str, Event]:
    """Returns what is answered: version -> event, finished or not."""
    return {square.question.cell.vllm: square.event for square in found.squares if square.event}
