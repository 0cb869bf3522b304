"""Asks the releases that are due, several at a time, and keeps each answer in the matrix's store as it falls."""

from __future__ import annotations

import datetime
import json
import os
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from diagnostics import processes
from diagnostics.matrix.ask.layers import in_cell, scheduler
from diagnostics.matrix.build import sources
from diagnostics.matrix.build.workplace import shareable
from diagnostics.matrix.plan.verdicts import Answer, Evidence, Outcome
from diagnostics.matrix.records import closure as harness
from diagnostics.matrix.records.events import Event
from diagnostics.matrix.records.identity import digest
from diagnostics.matrix.records.store import latest
from diagnostics.matrix.sweep import environment, wheels

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from diagnostics.matrix.build.workplace import Workplace
    from diagnostics.matrix.sweep.plan import Sweep

_HARNESS = ("diagnostics/matrix/sweep/wheels.py", "diagnostics/matrix/ask/layers/scheduler.py")


@dataclass(frozen=True)
class Release:
    """One release of a sweep, and what its answer rests on."""

    sweep: Sweep
    version: str
    inputs: tuple[tuple[str, str], ...]

    @property
    def name(self) -> str:
        """As the store calls it."""
        return f"{self.sweep.package}-{self.version}"

    @property
    def identity(self) -> str:
        """The digest under which the store keeps the answer."""
        return digest(dict(self.inputs))


def questions(workplace: Workplace, sweep: Sweep, versions: Sequence[str]) -> list[Release]:
    """Returns one question a release.

    Raises:
        BuildError: there is no lock.
        InterpreterError: there is no such Python, and none could be fetched.
    """
    _path, python = workplace.interpreter(sweep.python, fetch=True)
    shared = {
        "layer": f"sweep:{sweep.name}",
        "codes": " ".join(sweep.codes),
        "lock": environment.lock_digest(workplace, sweep),
        "python": python,
        "variables": str(sweep.environment),
        "harness code": workplace.code((*_HARNESS, *harness.files(workplace.programs, sweep.codes))),
    }
    return [
        Release(sweep, version, tuple({"package": f"{sweep.package} {version}", **shared}.items()))
        for version in versions
    ]


def answers(workplace: Workplace, asked: Sequence[Release]) -> dict[str, Event]:
    """Returns what the store knows: version -> its event, finished or not."""
    known = latest(workplace.store.read())
    return {item.version: known[item.identity] for item in asked if item.identity in known}


def run(workplace: Workplace, due: Sequence[Release], *, jobs: int, done: Callable[[Event], None]) -> None:
    """Asks these releases, the store being held; `done` is given each answer.

    Ctrl-C ends what runs, and keeps what was finished.
    """
    if not due:
        return
    python = environment.ensure(workplace, due[0].sweep)
    workplace.stage()
    for left in workplace.folder("sweeps", "running").iterdir():
        processes.end_left_over(left)
    stopping, name = threading.Event(), _now()
    with ThreadPoolExecutor(min(jobs, due[0].sweep.at_a_time or jobs)) as pool:
        futures = [pool.submit(_ask, workplace, item, python, stopping, name) for item in due]
        try:
            for future in as_completed(futures):
                event = future.result()
                if event is not None:
                    workplace.store.append(event)
                    done(event)
        except BaseException:
            stopping.set()
            pool.shutdown(wait=False, cancel_futures=True)
            for ledger in workplace.folder("sweeps", "running").iterdir():
                processes.end_left_over(ledger)
            raise


def _ask(
    workplace: Workplace, item: Release, python: Path, stopping: threading.Event, name: str
) -> Event | None:
    """Returns the answer of one release; None where Ctrl-C took it away."""
    if stopping.is_set():
        return None
    started, clock = _now(), time.monotonic()
    answer = _answer(workplace, item, python)
    if stopping.is_set():
        return None
    command = f"nox -s repro -- --all-versions --sweep {item.sweep.name} --releases {item.version} --fresh"
    seconds = round(time.monotonic() - clock, 2)
    return Event(
        item.identity,
        item.name,
        f"sweep:{item.sweep.name}",
        answer,
        item.inputs,
        command,
        started,
        seconds,
        name,
    )


def _answer(workplace: Workplace, item: Release, python: Path) -> Answer:
    sweep, folder = item.sweep, workplace.folder("sweeps", item.sweep.package)
    try:
        files = wheels.unpack(
            sweep.package, item.version, folder, cache=workplace.folder("wheels"), environ=workplace.environ
        )
    except sources.SourceError as error:
        return Answer(Outcome.INFRA_ERROR, shareable(str(error), workplace), Evidence.EXECUTED)
    log = workplace.folder("logs", item.name) / f"sweep-{sweep.name}.log"
    variables = {**workplace.cell_environ(None), **dict(sweep.environment)}
    variables["PYTHONPATH"] = os.pathsep.join((os.fspath(files), variables["PYTHONPATH"]))
    finished = processes.run(
        [python, "-m", "repro", "run", *sweep.codes, "--timeout", f"{sweep.attempt_s:g}", "--json"],
        environment=variables,
        log=log,
        timeout_s=sweep.timeout_s,
        folder=workplace.folder("runs", item.name),
        ledger=workplace.folder("sweeps", "running") / f"{item.name}.json",
    )
    shutil.rmtree(
        files.parent, ignore_errors=True
    )  # two seconds bring it back; sixty of them have a gigabyte
    reply = _reply(workplace, finished, log, sweep.timeout_s)
    if reply.instead:
        return reply.instead
    answer = scheduler.read(reply, _ran_with(sweep, reply.document.get("versions")))
    return replace(
        answer,
        summary=" ".join(shareable(answer.summary, workplace).split()),
        signs=(*answer.signs, *_whole(reply.document)),
        details=tuple(shareable(text, workplace) for text in answer.details),
    )


def _reply(workplace: Workplace, finished: processes.Finished, log: Path, limit_s: float) -> in_cell.Reply:
    """Reads the document that a repro printed; anything else is our failure, not the release's."""
    excerpt = shareable(processes.tail(log), workplace)
    name = log.relative_to(workplace.store.folder).as_posix()
    try:
        document = json.loads(finished.output)
        if document["schema"] == scheduler.SCHEMA:
            return in_cell.Reply(document, excerpt, name, log.parent)
    except (ValueError, TypeError, KeyError):
        pass
    late = finished.timed_out
    words = (
        f"no answer within {limit_s:.0f} s"
        if late
        else f"the repro ended with {finished.code} and no document"
    )
    outcome = Outcome.TIMEOUT if late else Outcome.INFRA_ERROR
    instead = Answer(outcome, words, Evidence.EXECUTED, excerpt=excerpt, log=name)
    return in_cell.Reply({}, excerpt, name, log.parent, instead)


def _ran_with(sweep: Sweep, versions: Any) -> tuple[tuple[str, str], ...]:
    reported = versions if isinstance(versions, dict) else {}
    return (*sorted((str(name), str(value)) for name, value in reported.items()), ("differs", sweep.differs))


def _whole(document: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns a sign for each failure that a repro answered as a whole: its code isn't in the release."""
    found = document.get("codes", {})
    return tuple(
        f"{code} * unmitigated {item['outcome']}" for code, item in found.items() if not item["attempts"]
    )


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
