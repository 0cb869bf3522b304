"""`python -m diagnostics.matrix sweep`: known failures in every release of a package, and what helps where."""

from __future__ import annotations

import datetime
import json
import sys
from typing import TYPE_CHECKING

from diagnostics import catalog
from diagnostics.matrix.ask import attempts
from diagnostics.matrix.build import wheels
from diagnostics.matrix.build.environments import BuildError
from diagnostics.matrix.build.paths import ROOT
from diagnostics.matrix.build.sources import WheelError
from diagnostics.matrix.build.workplace import InterpreterError
from diagnostics.matrix.report.progress import shown
from diagnostics.matrix.run.board import board
from diagnostics.matrix.sweep import asking, environment, picture, results, swift
from diagnostics.matrix.sweep.plan import SWEEPS
from diagnostics.tables import TableError

if TYPE_CHECKING:
    import argparse
    from typing import Any

    from diagnostics.matrix.build.workplace import Workplace
    from diagnostics.matrix.records.events import Event
    from diagnostics.matrix.sweep.asking import SweepAsked
    from diagnostics.matrix.sweep.plan import Sweep

PUBLISHED = ROOT / "diagnostics" / "data" / "sweep.json"
NAMES = (*sorted(SWEEPS), swift.NAME)


def main(options: argparse.Namespace, workplace: Workplace) -> int:
    """Asks what is due and prints the tables.

    Returns:
        0: every release answered as the catalogue says. 1: one did not. 2: it can't be done. 3: one gave no answer.
    """
    if options.publish and options.releases:
        raise TableError("--publish wants every release; leave --releases away")
    found: dict[str, Any] = {}
    open_ = False
    try:
        for name in options.sweep or sorted(SWEEPS):
            if options.lock:
                _lock(workplace, name)
            elif name == swift.NAME:
                open_ |= _swift(workplace, options)
            else:
                found[name] = _sweep(workplace, SWEEPS[name], options)
    except (InterpreterError, BuildError) as error:
        raise WheelError(str(error)) from error
    if options.publish and found:
        _publish(found)
    return _judged(found) or (3 if open_ else 0)


def _lock(workplace: Workplace, name: str) -> None:
    for sweep in swift.BESIDE.values() if name == swift.NAME else [SWEEPS[name]]:
        environment.lock(workplace, sweep)
        print(environment.lock_path(workplace, sweep))


def _sweep(workplace: Workplace, sweep: Sweep, options: argparse.Namespace) -> dict[str, Any]:
    every = wheels.releases(sweep.package, sweep.first, workplace.environ)
    chosen = wheels.matching(every, options.releases, sweep.package)
    releases = dict.fromkeys(chosen, sweep)
    asked = asking.questions(workplace, releases, asking.of_repros, attempts.SCHEMA, attempts.told)
    found = results.document(sweep, every, chosen, _answered(workplace, asked, options))
    print("\n".join(results.summary(found)))
    return found


def _swift(workplace: Workplace, options: argparse.Namespace) -> bool:
    """Asks ms-swift's releases, prints the table; tells whether one gave no answer."""
    every = wheels.releases(swift.PACKAGE, swift.FIRST, workplace.environ)
    chosen = wheels.matching(every, options.releases, swift.PACKAGE)
    if not (options.releases or options.every):
        chosen = swift.newest_of_minors(chosen)
    releases = {version: swift.beside(version) for version in chosen}
    asked = asking.questions(workplace, releases, swift.program, swift.ANSWERS, swift.read)
    events = _answered(workplace, asked, options)
    found = {version: swift.report(events.get(version), releases[version]) for version in chosen}
    document = swift.published(found)
    table = swift.markdown(document)
    print(table)
    if options.publish:
        swift.PUBLISHED.write_text(
            json.dumps(document, ensure_ascii=False, indent=1) + "\n", encoding="utf-8"
        )
        swift.TABLE.write_text(table, encoding="utf-8")
        print(f"{swift.PUBLISHED}\n{swift.TABLE}", file=sys.stderr)
    return bool(document["unanswered"])


def _answered(workplace: Workplace, asked: list[SweepAsked], options: argparse.Namespace) -> dict[str, Event]:
    """Asks what is due of these and returns version -> answer."""
    known = board(asked, workplace.store.read())
    due = [
        square for square in known.squares if options.fresh or not (square.event and square.event.finished)
    ]
    first, last = asked[0].cell.vllm, asked[-1].cell.vllm
    about = f"{len(asked)} releases from {first} to {last}, {len(due)} to ask"
    print(f"{asked[0].sweep.package}: {about}", file=sys.stderr, flush=True)
    if not due:
        return asking.answers(known)
    with workplace.store.locked(), shown() as progress:
        return asking.answers(asking.ask(workplace, asked, progress, fresh=options.fresh, jobs=options.jobs))


def _publish(asked: dict[str, Any]) -> None:
    """Writes what was asked now, beside what was published of the other sweeps."""
    known = results.read(PUBLISHED)
    found = {name: item for name, item in sorted((known | asked).items()) if name in SWEEPS}
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    PUBLISHED.write_text(results.to_text(found, today), encoding="utf-8")
    drawn = ROOT / "docs" / "results" / "sweep.svg"
    drawn.write_text(picture.svg(found), encoding="utf-8")
    print(f"{PUBLISHED}\n{drawn}", file=sys.stderr)


def _judged(found: dict[str, Any]) -> int:
    issues = catalog.load()
    lines = [line for item in found.values() for line in results.disagreements(item, issues)]
    for line in lines:
        print(f"sweep: the catalogue disagrees: {line}", file=sys.stderr)
    if lines:
        return 1
    return 3 if any(item["without_an_answer"] for item in found.values()) else 0
