"""`audit --watch FILE…`: looks at metric files and samples as they grow, until Ctrl-C or until nothing grows."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from diagnostics.audit.errors import AuditError, NotAskedError
from diagnostics.audit.recorded.rows import Logged, Row
from diagnostics.audit.running.growing import Reader
from diagnostics.audit.running.watcher import Watcher
from diagnostics.output.audits import running

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from diagnostics.audit.model import Audit
    from diagnostics.audit.running.probing import Probe
    from diagnostics.audit.running.watcher import Change

INTERVAL_S = 2.0


@dataclass(frozen=True)
class Watched:
    """What is watched, and how.

    Attributes:
        files: They may come later.
        idle_s: Ends when nothing has grown for so long; negative: never.
        probe: What is asked of a server; None: nothing.
        every: Steps between two probes.
    """

    files: tuple[Path, ...]
    idle_s: float = -1.0
    probe: Probe | None = None
    every: int = 100


@dataclass
class Watch:
    """The watch over some files.

    Attributes:
        watched: What.
        told: Is given each change as it comes.
        noted: Is given what else is to be said.
    """

    watched: Watched
    told: Callable[[Change], None]
    noted: Callable[[str], None] = lambda text: print(f"diagnostics: audit: {text}", file=sys.stderr)
    watcher: Watcher = field(default_factory=lambda: Watcher(share=1.0))

    def __post_init__(self) -> None:
        for path in self.watched.files:
            if path.exists() and not path.is_file():
                raise AuditError(
                    f"{path}: expected a file: metrics.jsonl, a log, an event file, completions.jsonl"
                )
        self._readers = [Reader(path) for path in self.watched.files]
        self._waiting: dict[Path, list[Row]] = {}
        self._step = self._probed_at = 0
        for path in self.watched.files:
            if not path.exists():
                self.noted(running.waiting(str(path)))

    def run(
        self, sleep: Callable[[float], None] = time.sleep, clock: Callable[[], float] = time.monotonic
    ) -> Audit:
        """Until it is interrupted, or idle; what it found stands, however it ends."""
        grown = clock()
        try:
            while True:
                if self.round():
                    grown = clock()
                    continue  # there may be more
                if 0 <= self.watched.idle_s <= clock() - grown:
                    break
                sleep(
                    INTERVAL_S if self.watched.idle_s < 0 else min(INTERVAL_S, max(0.05, self.watched.idle_s))
                )
        except KeyboardInterrupt:
            pass  # the usual end: what was found is told
        return self.ended()

    def round(self) -> bool:
        """Reads what came; whether anything did."""
        any_more = False
        for reader in self._readers:
            try:
                found, anew = reader.more()
            except OSError as error:
                raise AuditError(f"{reader.path}: {error.strerror or error}") from error
            if anew:
                self.noted(running.anew(str(reader.path)))
                self.watcher.window.forget(str(reader.path))
            for each in found:
                self._took(reader.path, each)
            any_more = any_more or bool(found) or anew
        return any_more

    def ended(self) -> Audit:
        """The rest, and all of it."""
        for path in list(self._waiting):
            self._samples_of(path)
        for reader in self._readers:
            reader.close()
        unread = sum(reader.unread for reader in self._readers)
        self.noted(running.summary(self.watcher.steps, self.watcher.left_out, unread))
        if not self.watcher.steps:
            raise NotAskedError(
                f"{', '.join(map(str, self.watched.files))}: no line of metrics and no sample came"
            )
        subject = {"watched": ", ".join(map(str, self.watched.files))}
        if self.watched.probe is not None:
            subject["server"] = self.watched.probe.server
        return self.watcher.audit(subject)

    def _took(self, path: Path, each: Logged | Row) -> None:
        if isinstance(each, Row):
            waiting = self._waiting.setdefault(path, [])
            if waiting and waiting[-1].step != each.step:
                self._samples_of(path)
            self._waiting.setdefault(path, []).append(each)
            return
        self.watcher.metrics(str(path), each)
        self._step = each.step if each.step is not None else self._step + 1
        self._look()

    def _samples_of(self, path: Path) -> None:
        """The samples of a step, when one of another step has come: then it is whole."""
        rows = self._waiting.pop(path, [])
        if rows:
            self._step = max(self._step, rows[0].step)
            self._look(lambda: rows)

    def _look(self, samples: Callable[[], Sequence[Row]] | None = None) -> None:
        self._tell(self.watcher.looked(self._step, samples))
        probe = self.watched.probe
        if probe is None or self._step < self._probed_at + self.watched.every:
            return
        self._probed_at = self._step
        try:
            found = probe.asked()
        except NotAskedError as error:
            self.noted(running.not_probed(str(error)))
            return
        self.watcher.tokens += found.tokens
        self.watcher.requests += found.requests
        self._tell(self.watcher.judged(self._step, found.answers, sure=1))

    def _tell(self, changes: Sequence[Change]) -> None:
        for change in changes:
            self.told(change)
