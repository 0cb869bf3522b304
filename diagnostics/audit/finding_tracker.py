"""Track the faults that repeated scans of a run's metrics find: which appear, disappear and reappear, and when.

`FindingTracker.scan` runs the checks of training curves. It reports a fault when two scans in a row find it (or as many
as the caller requires), and withdraws it when three in a row do not. `finish` returns the audit. `AuditCallback`
imports this module in the trainer's process, so it may only import packages that are installed there.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from diagnostics.audit.recorded.run_data import MetricSeries
from diagnostics.audit.results import RUNNING, Audit, Result, note
from diagnostics.audit.training_curves import check_learning, check_metrics

FOUND, GONE = "found", "gone"
SCANS_THAT_AGREE, _GONE_AFTER = 2, 3


@dataclass(frozen=True)
class Change:
    """A finding that a scan reported or withdrew.

    Attributes:
        kind: FOUND or GONE.
        step: Training step of the scan.
        result: The result of the check.
    """

    kind: str
    step: int
    result: Result

    @property
    def log_line(self) -> str:
        """The change as one line of a log."""
        if self.kind == GONE:
            return f"step {self.step}: gone: {self.result.message}"
        code = f" {self.result.code}".rstrip()
        place = next((f"    # {fact.place}" for fact in self.result.evidence if fact.place), "")
        return f"step {self.step}: FAULT{code}: {self.result.message}{place}"

    def to_json(self) -> dict[str, Any]:
        """Return the change as data of one JSON line."""
        result = self.result
        return {
            "type": "change", "change": self.kind, "step": self.step, "family": result.family,
            "outcome": result.outcome, "probe": result.probe, "code": result.code,
            "sentence": result.message, "values": result.values,
        }  # fmt: skip


@dataclass
class TrackedFinding:
    """A fault family, and how the scans found it.

    Attributes:
        result: The last result that found the fault.
        hits: Scans that found the fault since it was last withdrawn; while it is not reported, since the last miss.
        misses: Scans in a row that did not find the fault.
        active: Whether the fault is reported now.
        report_count: How often the fault was reported.
        since: Step of the first report.
        until: Step of the last scan that found the fault.
    """

    result: Result
    hits: int = 0
    misses: int = 0
    active: bool = False
    report_count: int = 0
    since: int = 0
    until: int = 0

    def observe(self, step: int, result: Result | None, needed: int) -> Iterator[Change]:
        """Count a scan with the fault's result, or None without the fault; yield the change, if there is one.

        The fault is reported when `needed` scans in a row find it, and withdrawn when three scans in a row do not.
        """
        if result is not None:
            self.result, self.hits, self.misses, self.until = result, self.hits + 1, 0, step
            if not self.active and self.hits >= needed:
                self.active, self.since, self.report_count = True, self.since or step, self.report_count + 1
                yield Change(FOUND, step, result)
            return
        self.misses += 1
        if not self.active or self.misses >= _GONE_AFTER:
            if self.active:
                yield Change(GONE, step, self.result)
            self.active, self.hits = False, 0


class FindingTracker:
    """The faults that the scans of a run's metrics found, with the steps in which they appeared and disappeared.

    Attributes:
        scans: Number of scans so far.
    """

    def __init__(self) -> None:
        self._tracked: dict[str, TrackedFinding] = {}
        self._series: Sequence[MetricSeries] = ()
        self.scans = 0

    def scan(self, step: int, series: Sequence[MetricSeries], needed: int = SCANS_THAT_AGREE) -> list[Change]:
        """Check the metrics; return the faults that are reported or withdrawn now.

        A fault whose symptom has ended counts as not found. `needed` is the number of scans in a row that must find a
        fault before it is reported.
        """
        self.scans, self._series = self.scans + 1, series
        faults = (result for result in check_metrics(series) if result.is_fault)
        current = {result.family: result for result in faults if result.values.get("open", True)}
        for family, result in current.items():
            self._tracked.setdefault(family, TrackedFinding(result))
        changes = (item.observe(step, current.get(family), needed) for family, item in self._tracked.items())
        return list(itertools.chain.from_iterable(changes))

    @property
    def reported(self) -> dict[str, TrackedFinding]:
        """The findings that were reported at least once, by fault family."""
        return {family: finding for family, finding in self._tracked.items() if finding.report_count}

    def finish(self, subject: dict[str, str], more: Sequence[Result] = ()) -> Audit:
        """Return the audit of the whole run.

        Its results are the learning check, the faults reported at least once with their steps, other faults of the
        last scan, and the last scan's results for topics without a fault.

        Args:
            subject: The audited files, for the report's header.
            more: Further results to add.
        """
        faults = []
        for finding in self.reported.values():
            text = "active from step {since} to {until}; reported {times} times"
            fact = note("active", text, since=finding.since, until=finding.until, times=finding.report_count)
            faults.append(replace(finding.result, evidence=(*finding.result.evidence, fact)))
        families = {result.family for result in faults}
        results = check_metrics(self._series)
        faults += [result for result in results if result.is_fault and result.family not in families]
        topics = {result.topic for result in faults}
        further = [result for result in results if not result.is_fault and result.topic not in topics]
        results = [check_learning(self._series), *faults, *further, *more]
        return Audit(RUNNING, subject | {"scans": str(self.scans)}, tuple(results))
