"""Track the faults that repeated scans of a run's metrics find: which appear, disappear and reappear.

`FindingTracker.scan` runs the checks of training curves. It reports a fault when two scans in a row find it, and
withdraws it when two in a row do not. `finish` returns the audit. `AuditCallback`
imports this module in the trainer's process, so it may only import packages that are installed there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from diagnostics.audit.recorded.run_data import MetricSeries
from diagnostics.audit.results import RUNNING, Audit, Result, put_causes_first
from diagnostics.audit.training_curves import check_learning, check_metrics

FOUND, GONE = "found", "gone"


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
        names = ("family", "outcome", "probe", "code", "values")
        fields = {name: getattr(self.result, name) for name in names}
        return {
            "type": "change",
            "change": self.kind,
            "step": self.step,
            "sentence": self.result.message,
        } | fields


class FindingTracker:
    """The faults that the scans of a run's metrics found.

    Attributes:
        scans: Number of scans so far.
        reported: The last result of each fault that was reported at least once, by family.
        active: Families of the faults that are reported now.
    """

    def __init__(self) -> None:
        self.scans = 0
        self.reported: dict[str, Result] = {}
        self.active: set[str] = set()
        self._before: set[str] = set()
        self._series: Sequence[MetricSeries] = ()

    def scan(self, step: int, series: Sequence[MetricSeries]) -> list[Change]:
        """Check the metrics; return the faults that are reported or withdrawn now.

        A fault whose symptom has ended counts as not found. The first scan reports its faults at once.
        """
        self.scans, self._series = self.scans + 1, series
        faults = (result for result in check_metrics(series) if result.is_fault)
        current = {result.family: result for result in faults if result.values.get("open", True)}
        before = self._before if self.scans > 1 else current.keys()
        gone = [family for family in self.reported if family in self.active - current.keys() - before]
        new_families = [family for family in current if family in before - self.active]
        self._before, self.active = {*current}, self.active.difference(gone).union(new_families)
        self.reported |= {family: result for family, result in current.items() if family in self.active}
        changes = [Change(FOUND, step, current[family]) for family in new_families]
        return [*(Change(GONE, step, self.reported[family]) for family in gone), *changes]

    def finish(self, subject: dict[str, str], more: Sequence[Result] = ()) -> Audit:
        """Return the audit of the whole run.

        Its results are the learning check, the faults that were reported or that the last scan found (causes first),
        and the last scan's results for topics without a fault.

        Args:
            subject: The audited files, for the report's header.
            more: Further results to add.
        """
        last = check_metrics(self._series)
        faults = self.reported | {result.family: result for result in last if result.is_fault}
        topics = {result.topic for result in faults.values()}
        further = [result for result in last if not result.is_fault and result.topic not in topics]
        results = (check_learning(self._series), *put_causes_first(*faults.values(), *further, *more))
        return Audit(RUNNING, subject | {"scans": str(self.scans)}, results)
