"""Implement `audit --watch FILE…`: look for changed metrics files, and check all files when one has changed.

`Watch` reports findings of the first scan at once, because that scan covers the files' whole history, and later
findings when two scans agree. It reports a finding as gone after two scans without it. `Watch` ends at Ctrl-C, or
when no file has changed for `--idle` seconds, and returns the audit. It looks every 2 s, or more often for a shorter
`--idle`.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from diagnostics.audit.finding_tracker import Change, FindingTracker
from diagnostics.audit.recorded.run_audit import read_metrics, report_unread
from diagnostics.audit.recorded.run_data import MetricSeries, UnreadInputs
from diagnostics.audit.results import Audit, AuditError, NotAvailableError

INTERVAL_S = 2.0
Notify = Callable[[str], None]


class Watch:
    """Scans metrics files repeatedly; the files may appear later.

    Args:
        paths: The metrics files.
        idle_s: Seconds without a change after which the watch ends; negative for never.
        report: Function that receives each change of the findings.
        notify: Function that receives lines about files that do not exist yet.

    Raises:
        AuditError: A path exists and is not a file.
    """

    def __init__(
        self, paths: Sequence[Path], idle_s: float, report: Callable[[Change], None], notify: Notify
    ) -> None:
        for path in paths:
            if not path.exists():
                notify(f"{path}: does not exist yet")
            elif not path.is_file():
                raise AuditError(f"{path}: expected a file: metrics.jsonl, a log, trainer_state.json")
        self._idle_s, self._report = idle_s, report
        self._files = dict.fromkeys(paths, (0, 0, 0))
        self._series: dict[Path, MetricSeries] = {}
        self._unread: dict[Path, UnreadInputs] = {}
        self._findings = FindingTracker()

    def run(
        self, sleep: Callable[[float], None] = time.sleep, clock: Callable[[], float] = time.monotonic
    ) -> Audit:
        """Watch until interrupted or idle; return the audit.

        Raises:
            NotAvailableError: No metrics were read.
        """
        changed = clock()
        try:
            while True:
                if self.scan_files():
                    changed = clock()
                elif 0 <= self._idle_s <= clock() - changed:
                    break
                sleep(INTERVAL_S if self._idle_s < 0 else min(INTERVAL_S, max(0.05, self._idle_s)))
        except KeyboardInterrupt:
            pass  # the usual end
        return self.finish()

    def scan_files(self) -> bool:
        """Read the files that changed and check all metrics; return whether any file changed."""
        changed = False
        for path, version in self._files.items():
            try:
                status = path.stat()
            except OSError:  # it may appear later
                continue
            self._files[path] = (status.st_ino, status.st_size, status.st_mtime_ns)
            if self._files[path] != version:
                changed, self._unread[path] = True, UnreadInputs()
                if series := read_metrics(path, self._unread[path]):
                    self._series[path] = series
        if changed and self._series:
            all_series = tuple(self._series.values())
            step = max(series.rows[-1].step or len(series.rows) for series in all_series)
            for change in self._findings.scan(step, all_series):
                self._report(change)
        return changed

    def finish(self) -> Audit:
        """Return the audit of the whole watch.

        Raises:
            NotAvailableError: No metrics were read.
        """
        names = ", ".join(map(str, self._files))
        unread = UnreadInputs(entry for entries in self._unread.values() for entry in entries)
        if not self._findings.scans:
            reasons = "".join(f"; {reason}" for _, reason in unread[:1])
            raise NotAvailableError(f"{names}: no line of metrics{reasons}")
        return self._findings.finish({"watched": names}, report_unread(unread))
