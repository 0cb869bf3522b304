"""`audit --watch FILE…`: check metrics and samples as they grow, on one sliding window, until nothing grows.

The analysis of the window is that of `audit FILE`. A finding is reported when two scans agree, and withdrawn when
three do not find it.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from diagnostics import safe_io
from diagnostics.audit.document import code_of
from diagnostics.audit.metrics import check_learning, check_metrics
from diagnostics.audit.model import CLEAN, FAULT, RUNNING, Audit, AuditError, NotAvailableError, Result, note
from diagnostics.audit.recorded import metric_files, sample_files
from diagnostics.audit.recorded.advantages import check_advantages
from diagnostics.audit.recorded.common import MAX_LINE, READ_ERRORS, parse_object
from diagnostics.audit.recorded.run_data import MetricRow, MetricSeries, Recording, RunArtifacts, Sample
from diagnostics.audit.recorded.samples import check_samples
from diagnostics.audit.recorded.token_streams import check_masks, check_streams

FOUND, AGAIN, GONE = "found", "again", "gone"
INTERVAL_S = 2.0
_SURE, _GONE_AFTER = 2, 3
# Rows of metrics kept from the beginning and from the end; samples kept, and needed before they are checked.
_FIRST_ROWS, _LAST_ROWS, _MAX_SAMPLES, _MIN_SAMPLES = 64, 512, 512, 96
_READ_BYTES = 8 * safe_io.MIB


class Window:
    """The first and last metrics of each file, and the last samples."""

    def __init__(self) -> None:
        self._first: dict[str, list[MetricRow]] = {}
        self._last: dict[str, deque[MetricRow]] = {}
        self._samples: deque[Sample] = deque(maxlen=_MAX_SAMPLES)
        self._reward_range = (float("inf"), float("-inf"))

    def add_metrics(self, source: str, row: MetricRow) -> None:
        """Add a row of metrics."""
        first = self._first.setdefault(source, [])
        if len(first) < _FIRST_ROWS:
            first.append(row)
        else:
            self._last.setdefault(source, deque(maxlen=_LAST_ROWS)).append(row)

    def add_samples(self, rows: Sequence[Sample]) -> None:
        """Add samples."""
        self._samples.extend(rows)
        rewards = [reward for row in rows if (reward := row.total_reward) is not None]
        low, high = self._reward_range
        self._reward_range = min([low, *rewards]), max([high, *rewards])

    def forget(self, source: str) -> None:
        """Drop the metrics of a file that began anew: they are another run's."""
        self._first.pop(source, None)
        self._last.pop(source, None)

    @property
    def series(self) -> tuple[MetricSeries, ...]:
        """Return the metrics of all files."""
        return tuple(
            MetricSeries(source, (*first, *self._last.get(source, ())))
            for source, first in self._first.items()
        )

    def check_metrics(self) -> list[Result]:
        """Run the checks of metrics."""
        return check_metrics(self.series)

    def check_samples(self) -> list[Result]:
        """Run the checks of samples, if there are enough."""
        if len(self._samples) < _MIN_SAMPLES:
            return []
        run = RunArtifacts((Recording("samples", tuple(self._samples)),), self.series)
        results = [*check_samples(run), *check_masks(run), *check_streams(run), *check_advantages(run)]
        return [result for result in results if not self._is_solved(result)]

    def _is_solved(self, result: Result) -> bool:
        """Return whether all rewards are equal because the task is solved by now."""
        low, high = self._reward_range
        return result.family == "rewards/constant" and low < high == result.values["lowest"]


@dataclass(frozen=True)
class Change:
    """A finding that appeared, came back or went away.

    Attributes:
        kind: FOUND, AGAIN or GONE.
        step: The trainer's step.
    """

    kind: str
    step: int
    result: Result

    @property
    def text(self) -> str:
        """Return one line of a log."""
        if self.kind == GONE:
            return f"step {self.step}: gone: {self.result.message}"
        again = " again" if self.kind == AGAIN else ""
        code = f" {code_of(self.result)}".rstrip()
        places = [seen.place for seen in self.result.evidence if seen.place]
        place = f"    # {places[0]}" if places else ""
        return f"step {self.step}: FAULT{again}{code}: {self.result.message}{place}"

    def to_json(self) -> dict[str, Any]:
        """Return one JSON line."""
        result = self.result
        return {
            "type": "change", "change": self.kind, "step": self.step, "family": result.family,
            "outcome": result.outcome,
            "probe": result.probe, "code": code_of(result), "sentence": result.message, "values": result.values,
        }  # fmt: skip


@dataclass
class _Alarm:
    """State of one family of faults."""

    result: Result
    scans: int = 0
    missing: int = 0
    active: bool = False
    times: int = 0
    since: int = 0
    until: int = 0


@dataclass
class Alarms:
    """Findings of a run, with when they appeared and went away."""

    alarms: dict[str, _Alarm] = field(default_factory=dict)
    latest: dict[str, Result] = field(default_factory=dict)
    scans: int = 0

    def update(self, step: int, results: Iterable[Result]) -> list[Change]:
        """Take the results of a scan and return what changed."""
        self.scans += 1
        results = list(results)
        topics = {result.topic for result in results}
        self.latest |= {result.topic: result for result in results}
        current = {
            result.family: result
            for result in results
            if result.outcome == FAULT and result.values.get("open", True)
        }
        changes = [change for family in current if (change := self._confirm(step, current[family]))]
        for family, alarm in self.alarms.items():
            if family not in current and alarm.result.topic in topics:
                changes += self._miss(step, alarm)
        return changes

    def _confirm(self, step: int, result: Result) -> Change | None:
        alarm = self.alarms.setdefault(result.family, _Alarm(result))
        alarm.result, alarm.missing, alarm.until = result, 0, step
        alarm.scans += 1
        if alarm.active or alarm.scans < _SURE:
            return None
        alarm.active, alarm.times = True, alarm.times + 1
        alarm.since = alarm.since or step
        return Change(FOUND if alarm.times == 1 else AGAIN, step, result)

    def _miss(self, step: int, alarm: _Alarm) -> Iterator[Change]:
        alarm.missing += 1
        if not alarm.active:
            alarm.scans = 0
        elif alarm.missing >= _GONE_AFTER:
            alarm.active, alarm.scans = False, 0
            yield Change(GONE, step, alarm.result)

    @property
    def reported(self) -> dict[str, _Alarm]:
        """Return the alarms that were reported at least once."""
        return {family: alarm for family, alarm in self.alarms.items() if alarm.times}

    def results(self) -> list[Result]:
        """Return all findings, with when they were active, and the latest clean results."""
        faults = []
        for alarm in self.reported.values():
            text = (
                "active since step {since}"
                if alarm.active
                else "active from step {since} to {until}, {times} times"
            )
            seen = note("active", text, since=alarm.since, until=alarm.until, times=alarm.times)
            faults.append(replace(alarm.result, evidence=(*alarm.result.evidence, seen)))
        topics = {result.topic for result in faults}
        clean = [
            result for topic, result in self.latest.items() if topic not in topics and result.outcome == CLEAN
        ]
        return faults + clean


class GrowingFile:
    """New lines or records of a file; after truncation or replacement it starts from the beginning."""

    def __init__(self, path: Path) -> None:
        self.path, self.invalid_lines, self.restarted = path, 0, False
        self._offset, self._line, self._identity = 0, 0, (0, 0)
        self._rest = b""
        self._is_events = path.name.startswith("events.out.tfevents")
        self._is_json: bool | None = None

    def read(self) -> list[MetricRow | Sample]:
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
                self.restarted, self._offset, self._line, self._rest, self._is_json = True, 0, 0, b"", None
            self._identity = identity
            file.seek(self._offset)
            data = file.read(_READ_BYTES)
        self._offset += len(data)
        return self._parse_events(data) if self._is_events else self._parse_lines(data)

    def _parse_events(self, data: bytes) -> list[MetricRow | Sample]:
        data = self._rest + data
        steps: dict[int, dict[str, float]] = {}
        try:
            self._rest = data[metric_files.parse_events(memoryview(data), steps) :]
        except READ_ERRORS:
            self.invalid_lines, self._rest = self.invalid_lines + 1, b""
        return [row for row in metric_files.event_rows(self.path.name, steps) if row]

    def _parse_lines(self, data: bytes) -> list[MetricRow | Sample]:
        complete, _, self._rest = (self._rest + data).rpartition(b"\n")
        if len(self._rest) > MAX_LINE:
            self.invalid_lines, self._rest = self.invalid_lines + 1, b""
        lines = complete.split(b"\n") if complete else []
        first, self._line = self._line + 1, self._line + len(lines)
        if self._is_json is None and (line := next(filter(bytes.strip, lines), b"")):
            self._is_json = parse_object(line) is not None
        if not self._is_json:
            return list(metric_files.parse_log_lines(self.path.name, first, complete)) if complete else []
        rows: list[MetricRow | Sample] = []
        for number, line in enumerate(lines, first):
            if not line.strip():
                continue
            try:
                rows += self._parse_json(line, f"{self.path.name}:{number}")
            except READ_ERRORS:
                self.invalid_lines += 1
        return rows

    def _parse_json(self, line: bytes, place: str) -> list[MetricRow | Sample]:
        entry = parse_object(line)
        if entry is None:
            raise ValueError("not a JSON object")
        if sample_files.detect_format(entry):
            return list(sample_files.parse_line(entry, place))
        if metric_files.is_evaluation(entry) or "train_runtime" in entry:
            return []
        row = metric_files.metric_row(entry, place)
        return [row] if row else []


class Watch:
    """A watch over files that may appear later.

    Args:
        paths: The files.
        idle_s: End when nothing grew for so long; negative for never.
        report: Receives each change.
        remark: Receives other remarks.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        idle_s: float,
        report: Callable[[Change], None],
        remark: Callable[[str], None],
    ) -> None:
        for path in paths:
            if path.exists() and not path.is_file():
                raise AuditError(
                    f"{path}: expected a file: metrics.jsonl, a log, an event file, completions.jsonl"
                )
            if not path.exists():
                remark(f"{path}: does not exist yet")
        self._idle_s, self._report, self._remark = idle_s, report, remark
        self._files = [GrowingFile(path) for path in paths]
        self._window, self._alarms = Window(), Alarms()
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
        """Read and check what was added; return whether anything was."""
        any_growth = False
        for file in self._files:
            try:
                rows = file.read()
            except OSError as error:
                raise AuditError(f"{file.path}: {error.strerror or error}") from error
            if file.restarted:
                self._remark(f"{file.path}: it begins anew; its earlier metrics no longer count")
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
        self._window.add_metrics(source, row)
        self._step = row.step if row.step is not None else self._step + 1
        self._update(self._window.check_metrics())

    def _check_samples(self) -> None:
        """Check the samples of a step, which is complete once a sample of another step came."""
        if self._pending:
            self._step = max(self._step, self._pending[0].step)
            self._window.add_samples(self._pending)
            self._pending = []
            self._update(self._window.check_samples())

    def _update(self, results: list[Result]) -> None:
        for change in self._alarms.update(self._step, results):
            self._report(change)

    def finish(self) -> Audit:
        """Check the rest and return the audit.

        Raises:
            NotAvailableError: Nothing was read.
        """
        self._check_samples()
        invalid = sum(file.invalid_lines for file in self._files)
        names = ", ".join(str(file.path) for file in self._files)
        self._remark(
            f"{self._alarms.scans} scans" + (f"; {invalid} lines could not be read" if invalid else "")
        )
        if not self._alarms.scans:
            raise NotAvailableError(f"{names}: no line of metrics and no sample")
        return finish_audit({"watched": names}, self._window, self._alarms)


def finish_audit(subject: dict[str, str], window: Window, alarms: Alarms) -> Audit:
    """Return the audit of a watched run: all reported findings, those of the whole window, and whether it learns."""
    results = alarms.results()
    families = {result.family for result in results}
    results += [
        result
        for result in window.check_metrics()
        if result.outcome == FAULT and result.family not in families
    ]
    topics = {result.topic for result in results if result.outcome == FAULT}
    results = [result for result in results if result.outcome == FAULT or result.topic not in topics]
    rewards = [result for result in results if result.topic in {"rewards", "advantages"}]
    results.insert(0, check_learning(window.series, rewards))
    return Audit(RUNNING, subject | {"steps": str(alarms.scans)}, tuple(results))
