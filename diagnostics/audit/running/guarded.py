"""A watcher inside a training: whatever goes wrong with it, the training goes on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from diagnostics.audit.errors import NotAskedError
from diagnostics.audit.running.told import LOG, Told
from diagnostics.audit.running.watcher import Watcher
from diagnostics.output.audits import running

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from diagnostics.audit.recorded.rows import Logged, Row
    from diagnostics.audit.running.probing import Probe


@dataclass
class Guarded:
    """Looks at each step, probes every so many, tells what changed.

    Attributes:
        folder: Where audit.jsonl and audit.json are written; None: nowhere.
        subject: What is looked at, by role.
        share: At most so much of the time; also of probes, which wait for their turn.
        probe: What is asked of the server; None: nothing.
        every: Steps between two probes.
        watcher: What is known so far.
    """

    folder: Path | None = None
    subject: dict[str, str] = field(default_factory=dict)
    share: float = 0.01
    probe: Probe | None = None
    every: int = 100
    watcher: Watcher = field(init=False)

    def __post_init__(self) -> None:
        self.watcher, self._told, self._broken = Watcher(self.share), Told(self.folder), False
        self._probed_at = 0

    def look(
        self, step: int, metrics: Logged | None = None, samples: Callable[[], Sequence[Row]] | None = None
    ) -> dict[str, float]:
        """At what a step left; returns the scalars for the trainer's own curves."""

        def looked() -> None:
            if metrics is not None:
                self.watcher.metrics(self.subject.get("metrics", "metrics"), metrics)
            self._told.changes(self.watcher.looked(step, samples))

        self._guarded(looked)
        return {} if self._broken else self.watcher.scalars()

    def ask(self, step: int) -> None:
        """The server, if it is time; waits for what it says."""
        probe = self.probe
        if probe is None or self._broken or step < self._probed_at + self.every:
            return
        self._probed_at = step

        def asked() -> None:
            found = probe.asked()
            self.watcher.tokens += found.tokens
            self.watcher.requests += found.requests
            # Judged against a floor of its own, and against itself: one look is enough.
            self._told.changes(self.watcher.judged(step, found.answers, sure=1))

        self._guarded(asked)

    def close(self) -> None:
        """Writes the document."""
        self._guarded(lambda: self._told.whole(self.watcher, self.subject))

    def _guarded(self, look: Callable[[], None]) -> None:
        if self._broken:
            return
        try:
            look()
        except NotAskedError as error:
            LOG.warning("audit: %s", running.not_probed(str(error)))
        except Exception as error:  # noqa: BLE001 - a training must not end of what looks at it
            self._broken = True
            LOG.warning("audit: %s", running.broken(error), exc_info=True)
