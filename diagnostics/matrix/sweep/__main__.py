"""`python -m diagnostics.matrix.sweep`: known failures in every release of a package, and what helps where."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from diagnostics import catalogue
from diagnostics.matrix.build.environments import BuildError
from diagnostics.matrix.build.sources import SourceError
from diagnostics.matrix.build.uv import UvMissingError
from diagnostics.matrix.build.workplace import ROOT, InterpreterError, Workplace
from diagnostics.matrix.plan.cells import load
from diagnostics.matrix.records.store import Store, StoreBusyError
from diagnostics.matrix.sweep import environment, picture, results, run, wheels
from diagnostics.matrix.sweep.plan import SWEEPS
from diagnostics.tables import TableError

if TYPE_CHECKING:
    from typing import Any, NoReturn

    from diagnostics.matrix.records.events import Event
    from diagnostics.matrix.sweep.plan import Sweep

PUBLISHED = ROOT / "diagnostics" / "data" / "sweep.json"
_TROUBLE = (
    TableError,
    StoreBusyError,
    UvMissingError,
    SourceError,
    InterpreterError,
    BuildError,
)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see --help\n")


def main(arguments: list[str] | None = None) -> int:
    """Runs what is due and prints the table.

    Returns:
        0: every release answered as the catalogue says. 1: one did not. 2: it can't be done. 3: one gave no answer.
        130: interrupted.
    """
    options = _options(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    found: dict[str, Any] = {}
    try:
        workplace = _workplace(options)
        for name in options.sweep or sorted(SWEEPS):
            if options.lock:
                environment.lock(workplace, SWEEPS[name])
                print(environment.lock_path(workplace, SWEEPS[name]))
            else:
                found[name] = _sweep(workplace, SWEEPS[name], options)
    except _TROUBLE as error:
        print(f"sweep: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(
            "sweep: interrupted: what was finished is kept, the next run goes on from here", file=sys.stderr
        )
        return 130
    if options.publish and found:
        _publish(found)
    return _judged(found)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = _Parser(prog="python -m diagnostics.matrix.sweep", description=__doc__)
    parser.add_argument("--sweep", action="append", choices=sorted(SWEEPS), help="one of them (default: all)")
    parser.add_argument(
        "--releases", action="append", default=[], metavar="GLOB", help="only these, as '0.6.*'"
    )
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="releases at a time (default: cores)"
    )
    parser.add_argument("--fresh", action="store_true", help="ask again what is answered already")
    parser.add_argument(
        "--publish", action="store_true", help="write diagnostics/data/sweep.json and its picture"
    )
    parser.add_argument(
        "--lock", action="store_true", help="resolve again what runs beside the releases, run nothing"
    )
    parser.add_argument(
        "--store", type=Path, default=ROOT / ".matrix", help="folder of verdicts and environments"
    )
    options = parser.parse_args(arguments)
    if options.jobs < 1:
        parser.error(f"--jobs {options.jobs}: expected at least 1")
    if options.publish and options.releases:
        parser.error("--publish wants every release; leave --releases away")
    return options


def _workplace(options: argparse.Namespace) -> Workplace:
    return Workplace(load(ROOT / "matrix.toml"), Store(options.store.resolve()), say=_say)


def _sweep(workplace: Workplace, sweep: Sweep, options: argparse.Namespace) -> dict[str, Any]:
    every = wheels.releases(sweep.package, sweep.first, workplace.environ)
    chosen = wheels.matching(every, options.releases, sweep.package)
    asked = run.questions(workplace, sweep, chosen)
    known = run.answers(workplace, asked)
    due = [i for i in asked if options.fresh or i.version not in known or not known[i.version].finished]
    _say(f"{sweep.package}: {len(chosen)} releases from {chosen[0]} to {chosen[-1]}, {len(due)} to ask")
    left = len(due)

    def done(event: Event) -> None:
        nonlocal left
        left -= 1
        _say(f"{event.cell}: {event.answer.summary[:160]} ({event.seconds:.1f} s, {left} open)")

    with workplace.store.locked():
        run.run(workplace, due, jobs=options.jobs, done=done)
    found = results.document(sweep, every, chosen, run.answers(workplace, asked))
    print("\n".join(results.summary(found)))
    return found


def _publish(asked: dict[str, Any]) -> None:
    """Writes what was asked now, beside what was published of the other sweeps."""
    known = json.loads(PUBLISHED.read_text(encoding="utf-8"))["sweeps"] if PUBLISHED.exists() else {}
    found = {name: item for name, item in sorted((known | asked).items()) if name in SWEEPS}
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    PUBLISHED.write_text(results.to_text(found, today), encoding="utf-8")
    drawn = ROOT / "docs" / "sweep.svg"
    drawn.write_text(picture.svg(found), encoding="utf-8")
    print(f"{PUBLISHED}\n{drawn}", file=sys.stderr)


def _judged(found: dict[str, Any]) -> int:
    issues = catalogue.load()
    lines = [line for item in found.values() for line in results.disagreements(item, issues)]
    for line in lines:
        print(f"sweep: the catalogue disagrees: {line}", file=sys.stderr)
    if lines:
        return 1
    return 3 if any(item["without_an_answer"] for item in found.values()) else 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
