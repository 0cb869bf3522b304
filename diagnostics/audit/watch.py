"""`audit --watch FILE…`: check metrics and samples while a run writes them, with the checks of `audit FILE`.

New lines go into a sliding window, which is checked after each step. A finding is printed when two scans agree. It is
withdrawn when three scans no longer find it. The watch ends when no file has grown for `--idle` seconds.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from diagnostics import safe_io
from diagnostics.audit.metrics import check_learning, check_metrics
from diagnostics.audit.recorded import metric_files, sample_files
from diagnostics.audit.recorded.advantages import check_advantages
from diagnostics.audit.recorded.run_data import (
    MAX_LINE,
    READ_ERRORS,
    MetricRow,
    MetricSeries,
    Recording,
    RunArtifacts,
    Sample,
    parse_object,
)
from diagnostics.audit.recorded.samples import check_samples
from diagnostics.audit.recorded.token_streams import check_masks, check_streams
from diagnostics.audit.results import RUNNING, Audit, AuditError, NotAvailableError, Result, code_of, note

FOUND, AGAIN, GONE = "found", "again", "gone"
INTERVAL_S = 2.0
_SURE, _GONE_AFTER = 2, 3
# Rows of metrics kept from the beginning and from the end; samples kept, and needed before they are checked.
_FIRST_ROWS, _LAST_ROWS, _MAX_SAMPLES, _MIN_SAMPLES = 64, 512, 512, 96
_READ_BYTES = 8 * safe_io.MIB
Rows = Sequence[MetricRow | Sample]


@dataclass(frozen=True)
class Change:
    """A finding that appeared, reappeared or was withdrawn.

    Attributes:
        kind: FOUND, AGAIN or GONE.
        step: The trainer's step.
    """

    kind: str
    step: int
    result: Result

    @property
    def log_line(self) -> str:
        """Return one line of a log."""
        if self.kind == GONE:
            return f"step {self.step}: gone: {self.result.message}"
        again = " again" if self.kind == AGAIN else ""
        code = f" {code_of(self.result)}".rstrip()
        place = next((f"    # {fact.place}" for fact in self.result.evidence if fact.place), "")
        return f"step {self.step}: FAULT{again}{code}: {self.result.message}{place}"

    def to_json(self) -> dict[str, Any]:
        """Return one JSON line."""
        result = self.result
        return {
            "type": "change",
            "change": self.kind,
            "step": self.step,
            "family": result.family,
            "outcome": result.outcome,
            "probe": result.probe,
            "code": code_of(result),
            "sentence": result.message,
            "values": result.values,
        }


@dataclass
class Alarm:
    """State of one fault family: the number of scans that found it, and when it was active."""

    result: Result
    scans: int = 0
    missing: int = 0
    active: bool = False
    times: int = 0
    since: int = 0
    until: int = 0

    def confirm(self, step: int, result: Result) -> list[Change]:
        """Count a scan that found it."""
        self.result, self.missing, self.until = result, 0, step
        self.scans += 1
        if self.active or self.scans < _SURE:
            return []
        self.active, self.since = True, self.since or step
        self.times += 1
        return [Change(FOUND if self.times == 1 else AGAIN, step, result)]

    def miss(self, step: int) -> list[Change]:
        """Count a scan that did not find it."""
        self.missing += 1
        if self.active and self.missing < _GONE_AFTER:
            return []
        was_active, self.active, self.scans = self.active, False, 0
        return [Change(GONE, step, self.result)] if was_active else []


class Window:
    """The first and last metrics of each file, the last samples, and the findings of all scans of them."""

    def __init__(self) -> None:
        self._metrics: dict[str, tuple[list[MetricRow], deque[MetricRow]]] = {}
        self._samples: deque[Sample] = deque(maxlen=_MAX_SAMPLES)
        self._reward_range = (float("inf"), float("-inf"))
        self._alarms: dict[str, Alarm] = {}
        self._latest: dict[str, Result] = {}
        self.scans = 0

    def add_metrics(self, source: str, row: MetricRow) -> list[Result]:
        """Add a row of metrics and check them all."""
        first, last = self._metrics.setdefault(source, ([], deque(maxlen=_LAST_ROWS)))
        (first if len(first) < _FIRST_ROWS else last).append(row)
        return check_metrics(self._series)

    def forget(self, source: str) -> None:
        """Drop the metrics of a file that was overwritten: they belong to an earlier run."""
        self._metrics.pop(source, None)

    @property
    def _series(self) -> tuple[MetricSeries, ...]:
        return tuple(MetricSeries(name, (*first, *last)) for name, (first, last) in self._metrics.items())

    def add_samples(self, rows: Sequence[Sample]) -> list[Result]:
        """Add the samples of a step, and check the last ones if there are enough."""
        self._samples.extend(rows)
        rewards = [reward for row in rows if (reward := row.total_reward) is not None]
        low, high = self._reward_range
        low, high = self._reward_range = min([low, *rewards]), max([high, *rewards])
        if len(self._samples) < _MIN_SAMPLES:
            return []
        run = RunArtifacts((Recording("samples", tuple(self._samples)),), self._series)
        results = [*check_samples(run), *check_masks(run), *check_streams(run), *check_advantages(run)]
        # All rewards may be equal because the task is solved by now.
        solved = low < high
        return [
            result
            for result in results
            if not (result.family == "rewards/constant" and solved and result.values["lowest"] == high)
        ]

    def update(self, step: int, results: Sequence[Result]) -> list[Change]:
        """Take the results of a scan and return what changed."""
        self.scans += 1
        scanned = {result.topic: result for result in results}
        self._latest |= scanned
        current = {
            result.family: result for result in results if result.is_fault and result.values.get("open", True)
        }
        changes: list[Change] = []
        for family, result in current.items():
            changes += self._alarms.setdefault(family, Alarm(result)).confirm(step, result)
        for family, alarm in self._alarms.items():
            if family not in current and alarm.result.topic in scanned:
                changes += alarm.miss(step)
        return changes

    @property
    def reported(self) -> dict[str, Alarm]:
        """Return the alarms that were reported at least once, by family."""
        return {family: alarm for family, alarm in self._alarms.items() if alarm.times}

    def finish(self, subject: dict[str, str]) -> Audit:
        """Return the audit: all reported findings, those of the whole window, and whether the run learns."""
        faults = []
        for alarm in self.reported.values():
            span = "since step {since}" if alarm.active else "from step {since} to {until}, {times} times"
            fact = note("active", f"active {span}", since=alarm.since, until=alarm.until, times=alarm.times)
            faults.append(replace(alarm.result, evidence=(*alarm.result.evidence, fact)))
        families = {result.family for result in faults}
        window_results = check_metrics(self._series)
        faults += [result for result in window_results if result.is_fault and result.family not in families]
        topics = {result.topic for result in faults}
        passed = [
            result for result in self._latest.values() if result.is_clean and result.topic not in topics
        ]
        rewards = [result for result in (*faults, *passed) if result.topic in {"rewards", "advantages"}]
        learning = check_learning(self._series, rewards)
        return Audit(RUNNING, subject | {"steps": str(self.scans)}, (learning, *faults, *passed))


class GrowingFile:
    """New lines or records of a file; after truncation or replacement it starts from the beginning."""

    def __init__(self, path: Path) -> None:
        self.path, self.invalid_lines, self.restarted = path, 0, False
        self._identity = (0, 0)
        self._parse = self._parse_events if path.name.startswith("events.out.tfevents") else self._parse_lines
        self._restart()

    def _restart(self) -> None:
        self._offset, self._line, self._rest = 0, 0, b""
        self._is_json: bool | None = None

    def read_new_rows(self) -> Rows:
        """Return what was added since the last call.

        Raises:
            OSError: The file exists and cannot be read.
        """
        self.restarted = False
        try:
            file = safe_io.open_regular(self.path)
        except FileNotFoundError:
            return []
        with file:
            status = os.fstat(file.fileno())
            identity = (status.st_dev, status.st_ino)
            if self._identity not in ((0, 0), identity) or status.st_size < self._offset:
                self.restarted = True
                self._restart()
            self._identity = identity
            file.seek(self._offset)
            data = file.read(_READ_BYTES)
        self._offset += len(data)
        return self._parse(self._rest + data)

    def _parse_events(self, data: bytes) -> Rows:
        steps: dict[int, dict[str, float]] = {}
        try:
            self._rest = data[metric_files.parse_events(memoryview(data), steps) :]
        except READ_ERRORS:
            self.invalid_lines, self._rest = self.invalid_lines + 1, b""
        return [row for row in metric_files.event_rows(self.path.name, steps) if row]

    def _parse_lines(self, data: bytes) -> Rows:
        complete, _, self._rest = data.rpartition(b"\n")
        if len(self._rest) > MAX_LINE:
            self.invalid_lines, self._rest = self.invalid_lines + 1, b""
        lines = complete.split(b"\n") if complete else []
        first, self._line = self._line + 1, self._line + len(lines)
        if self._is_json is None and (line := next(filter(bytes.strip, lines), b"")):
            self._is_json = parse_object(line) is not None
        if not self._is_json:
            return metric_files.parse_log_lines(self.path.name, first, complete) if complete else []
        rows: list[MetricRow | Sample] = []
        for number, line in enumerate(lines, first):
            try:
                rows += self._parse_json(line, f"{self.path.name}:{number}") if line.strip() else []
            except READ_ERRORS:
                self.invalid_lines += 1
        return rows

    def _parse_json(self, line: bytes, place: str) -> Rows:
        entry = parse_object(line)
        if entry is None:
            raise ValueError("not a JSON object")
        if sample_files.detect_format(entry):
            return sample_files.parse_line(entry, place)
        if metric_files.is_evaluation(entry) or "train_runtime" in entry:
            return []
        row = metric_files.metric_row(entry, place)
        return [row] if row else []


class Watch:
    """A watch over files that may appear later.

    Args:
        paths: The files.
        idle_s: Seconds without growth after which to end; negative for never.
        report: Receives each change.
        notify: Receives lines about the files and the scans.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        idle_s: float,
        report: Callable[[Change], None],
        notify: Callable[[str], None],
    ) -> None:
        for path in paths:
            if path.exists() and not path.is_file():
                expected = "expected a file: metrics.jsonl, a log, an event file, completions.jsonl"
                raise AuditError(f"{path}: {expected}")
            if not path.exists():
                notify(f"{path}: does not exist yet")
        self._idle_s, self._report, self._notify = idle_s, report, notify
        self._files = [GrowingFile(path) for path in paths]
        self._window = Window()
        self._pending: list[Sample] = []
        self._step = 0

    def run(
        self, sleep: Callable[[float], None] = time.sleep, clock: Callable[[], float] = time.monotonic
    ) -> Audit:
        """Watch until interrupted or idle; return everything that was found."""
        grown = clock()
        try:
            while True:
                if self.scan_files():
                    grown = clock()
                elif 0 <= self._idle_s <= clock() - grown:
                    break
                else:
                    sleep(INTERVAL_S if self._idle_s < 0 else min(INTERVAL_S, max(0.05, self._idle_s)))
        except KeyboardInterrupt:
            pass  # the usual end
        return self.finish()

    def scan_files(self) -> bool:
        """Read and check new lines; return whether there were any."""
        any_growth = False
        for file in self._files:
            try:
                rows = file.read_new_rows()
            except OSError as error:
                raise AuditError(f"{file.path}: {error.strerror or error}") from error
            if file.restarted:
                self._notify(f"{file.path}: it begins anew; its earlier metrics no longer count")
                self._window.forget(str(file.path))
            for row in rows:
                self._add(str(file.path), row)
            any_growth = any_growth or bool(rows) or file.restarted
        return any_growth

    def _add(self, source: str, row: MetricRow | Sample) -> None:
        if isinstance(row, Sample):
            if self._pending and self._pending[-1].step != row.step:
                self._check_samples()
            self._pending.append(row)
            return
        self._step = row.step if row.step is not None else self._step + 1
        self._update(self._window.add_metrics(source, row))

    def _check_samples(self) -> None:
        """Check the samples of a step, which is complete once a sample of another step came."""
        if self._pending:
            self._step = max(self._step, self._pending[0].step)
            results = self._window.add_samples(self._pending)
            self._pending = []
            self._update(results)

    def _update(self, results: list[Result]) -> None:
        for change in self._window.update(self._step, results):
            self._report(change)

    def finish(self) -> Audit:
        """Check the rest and return the audit.

        Raises:
            NotAvailableError: Nothing was read.
        """
        self._check_samples()
        invalid = sum(file.invalid_lines for file in self._files)
        names = ", ".join(str(file.path) for file in self._files)
        unread = f"; {invalid} lines could not be read" if invalid else ""
        self._notify(f"{self._window.scans} scans{unread}")
        if not self._window.scans:
            raise NotAvailableError(f"{names}: no line of metrics and no sample")
        return self._window.finish({"watched": names})
