"""What `doctor --tier probe` and `--tier live` add to a report."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from diagnostics import catalog
from diagnostics.doctor.probe import tiers
from diagnostics.doctor.probe.children import Children
from diagnostics.doctor.probe.outcomes import not_looked_at
from diagnostics.output import pulse
from diagnostics.output.findings import CheckResult
from diagnostics.triage.rules import Rules

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import FrameType

    from diagnostics.collect.collection import Facts
    from diagnostics.output.findings import Report

NOTES = {
    "probe": "probe: imported in child processes of this environment's Python; no engine was started (--tier live)",
    "live": "live: a tiny random model in an engine in one process, without graphs; a real run adds size and processes",
}


# What the probe says where nothing more is worth trying.
_ENDS = ("other imports, platforms", "imports, platforms")


def tried(report: Report, tier: str, python: Path, facts: Facts) -> tuple[Report, bool]:
    """The report with what came of trying, and whether a tier that was asked for could look at nothing."""
    if not os.access(python, os.X_OK):
        broken = CheckResult(tier, "crashed", f"{python}: no interpreter that can be run; give --python PATH")
        return replace(report, checks=(*report.checks, broken)), True
    issues = catalog.load()
    rules = Rules(issues)
    checks: list[CheckResult] = []
    incomplete = False
    with _ended_by_signals(), Children(python.absolute(), os.environ) as children:
        try:
            checks += tiers.probe(children, facts.environment, facts.machine, issues, rules, _say)
        except OSError as error:
            broken = CheckResult(tier, "crashed", f"{python} cannot be run: {error.strerror or error}")
            return replace(report, checks=(*report.checks, broken)), True
        incomplete = not_looked_at(checks[1:])
        if tier == "live" and any(check.check in _ENDS for check in checks):
            checks.append(CheckResult("live", "skipped", "the imports did not come to their end"))
        elif tier == "live":
            added = tiers.live(children, facts.environment, facts.machine, rules, _say)
            checks += added
            incomplete = added[0].outcome == "skipped"
    return replace(report, checks=(*report.checks, *checks), how=NOTES[tier]), incomplete


def _say(text: str) -> None:
    print(f"doctor: {text}", file=sys.stderr, flush=True)
    pulse.doing(text)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Turns SIGTERM and SIGHUP into an ordinary end, so that children and folders go, too."""

    def end(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
