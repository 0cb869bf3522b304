"""`AuditCallback`: check a GRPO run's metrics for silent faults while transformers' Trainer trains it.

    from diagnostics.audit.callback import AuditCallback

    trainer = GRPOTrainer(...)
    AuditCallback().attach(trainer)
    trainer.train()

`attach` puts it before the callbacks that write curves, so that they write its scalars (`audit/…`), too. Findings are
warnings of the logger `grpo_doctor.audit` and lines of OUTPUT_DIR/audit.jsonl. It needs only the standard library and
transformers.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections import deque
from pathlib import Path
from typing import Any

from diagnostics import safe_io
from diagnostics.audit.alarms import Findings
from diagnostics.audit.recorded import metric_files
from diagnostics.audit.recorded.run_data import MetricRow, MetricSeries
from diagnostics.audit.results import AuditError, make_document, shareable
from diagnostics.output import prepare

LOG = logging.getLogger("grpo_doctor.audit")
CHANGES, DOCUMENT = "audit.jsonl", "audit.json"
# Rows kept from the beginning and from the end.
_FIRST_ROWS, _LAST_ROWS = 64, 512


class TrainerHooks:
    """The hooks; `AuditCallback` is this class as a TrainerCallback."""

    def __init__(self, *, folder: str | Path | None = None, **removed: Any) -> None:
        """Configure the callback.

        Args:
            folder: Where audit.jsonl and audit.json go; None for the trainer's output_dir.
            removed: Options of earlier releases, refused.

        Raises:
            AuditError: An option was removed.
        """
        if removed:
            instead = "run `audit RUN` for samples, `audit --server URL --checkpoint DIR` for weights"
            raise AuditError(f"AuditCallback({', '.join(removed)}): removed; {instead}")
        self._folder = Path(folder) if folder else None
        self._subject: dict[str, str] = {}
        self._seconds = 0.0
        self._first: list[MetricRow] = []
        self._last: deque[MetricRow] = deque(maxlen=_LAST_ROWS)
        self.findings, self.active = Findings(), False

    def attach(self, trainer: Any) -> TrainerHooks:
        """Put it before the trainer's other callbacks and return it."""
        callbacks: list[Any] = trainer.callback_handler.callbacks
        callbacks[:] = [self, *(callback for callback in callbacks if callback is not self)]
        return self

    def on_train_begin(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
        """Start in the first process."""
        if state.is_world_process_zero:
            self._folder = self._folder or Path(args.output_dir)
            self._subject = {"run": str(args.output_dir)}
            self.active = True

    def on_log(self, args: Any, state: Any, *_: Any, logs: dict[str, Any] | None = None, **__: Any) -> None:
        """Check a line of metrics; add scalars for the callbacks that follow."""
        del args
        if not self.active or not logs or "train_runtime" in logs or metric_files.is_evaluation(logs):
            return
        try:
            self._check(state.global_step, logs)
        except Exception as error:  # noqa: BLE001 - training must not end because of its audit
            self.active = False
            LOG.warning("audit: stopped: %s: %s", type(error).__name__, error, exc_info=True)
            return
        flags = {f"audit/{family}": float(alarm.active) for family, alarm in self.findings.reported.items()}
        logs |= {"audit/faults": sum(flags.values()), "audit/seconds": self._seconds, **flags}

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Write the document."""
        if self.active and self._folder is not None and self.findings.scans:
            document = shareable(make_document(self.findings.finish(self._subject)))
            with contextlib.suppress(OSError):
                text = json.dumps(document, indent=1, ensure_ascii=False)
                safe_io.write_atomically(self._folder / DOCUMENT, text.encode())

    def _check(self, step: int, logs: dict[str, Any]) -> None:
        began = time.perf_counter()
        if row := metric_files.metric_row(logs, f"step {step}", step):
            (self._first if len(self._first) < _FIRST_ROWS else self._last).append(row)
            series = MetricSeries("metrics", (*self._first, *self._last))
            for change in self.findings.scan(step, (series,)):
                LOG.warning("audit: %s", prepare.for_screen(change.log_line))
                self._write_change(shareable(change.to_json()))
        self._seconds += time.perf_counter() - began

    def _write_change(self, entry: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            if self._folder is not None:
                self._folder.mkdir(parents=True, exist_ok=True)
                with (self._folder / CHANGES).open("a", encoding="utf-8") as file:
                    file.write(json.dumps(entry, ensure_ascii=False) + "\n")


def __getattr__(name: str) -> type:
    """Build `AuditCallback` when it is first used; transformers is imported only then."""
    if name != "AuditCallback":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from transformers import TrainerCallback

    members = {"__doc__": TrainerHooks.__doc__, "__module__": __name__}
    callback = type(name, (TrainerHooks, TrainerCallback), members)
    globals()[name] = callback
    return callback
