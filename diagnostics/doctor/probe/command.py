"""Run the tiers `probe` and `live` and add their results to a report."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType

from diagnostics import catalog
from diagnostics.collect.facts import Facts
from diagnostics.doctor.probe import probes
from diagnostics.doctor.probe.children import Children
from diagnostics.findings import CheckResult, Report
from diagnostics.output import progress
from diagnostics.triage.rules import Rules

NOTES = {
    "probe": "probe: imported in child processes of this environment's Python; no engine was started (--tier live)",
    "live": "live: a tiny random model in an engine in one process, without graphs; a real run adds size and processes",
}
# Results after which the live tier is not worth trying.
_STOPPED = ("other imports, platforms", "imports, platforms")


def run_tier(report: Report, tier: str, python: Path, facts: Facts) -> tuple[Report, bool]:
    """Return the report with the results of a tier, and whether the tier could check nothing."""
    if not os.access(python, os.X_OK):
        broken = CheckResult(tier, "crashed", f"{python}: no interpreter that can be run; give --python PATH")
        return replace(report, checks=(*report.checks, broken)), True
    issues = catalog.load()
    rules = Rules(issues)
    with _ended_by_signals(), Children(python.absolute(), os.environ) as children:
        context = probes.Probe(children, facts.environment, facts.machine, issues, rules, print_progress)
        try:
            checks = probes.run_probes(context)
        except OSError as error:
            broken = CheckResult(tier, "crashed", f"{python} cannot be run: {error.strerror or error}")
            return replace(report, checks=(*report.checks, broken)), True
        incomplete = len(checks) > 1 and all(check.outcome == "skipped" for check in checks[1:])
        if tier == "live" and any(check.check in _STOPPED for check in checks):
            checks.append(CheckResult("live", "skipped", "the imports did not finish"))
        elif tier == "live":
            added = probes.run_live(context)
            checks += added
            incomplete = added[0].outcome == "skipped"
    return replace(report, checks=(*report.checks, *checks), how=NOTES[tier]), incomplete


def print_progress(text: str) -> None:
    """Print on standard error what is being probed."""
    print(f"doctor: {text}", file=sys.stderr, flush=True)
    progress.update(text)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into an ordinary exit, so that children and folders are removed."""

    def exit_on_signal(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, exit_on_signal) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
