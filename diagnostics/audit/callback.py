"""Trainer callback `AuditCallback`: check a GRPO run's metrics for silent faults while transformers' Trainer trains it.

    from diagnostics.audit.callback import AuditCallback

    trainer = GRPOTrainer(...)
    AuditCallback().attach(trainer)
    trainer.train()

`attach` puts the callback first, so that callbacks which write curves also write its scalars (`audit/…`). The logger
`grpo_doctor.audit` warns of faults that appear or disappear. audit.json in OUTPUT_DIR, or in `folder`, is written at
each such change and at the end. Only the main process audits. It keeps the first 64 and the last 512 rows. If the audit
raises an exception, the callback logs a warning and stops the audit, not the training.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from diagnostics import safe_io
from diagnostics.audit.finding_tracker import FindingTracker
from diagnostics.audit.recorded import metric_files
from diagnostics.audit.recorded.run_data import MetricRow, MetricSeries
from diagnostics.audit.results import make_document
from diagnostics.output import json_output, text_filters

LOG = logging.getLogger("grpo_doctor.audit")
DOCUMENT = "audit.json"
# Number of rows that are kept from the beginning and from the end of the run.
_FIRST_ROWS, _LAST_ROWS = 64, 512


class AuditCallback(TrainerCallback):  # type: ignore[misc]
    """Trainer callback that checks the training metrics a trainer logs; evaluations and the summary are skipped."""

    def __init__(self, *, folder: str | Path | None = None) -> None:
        """Store the folder for audit.json; None for the trainer's output_dir."""
        self._folder = Path(folder) if folder else None
        self._subject: dict[str, str] = {}
        self._first_rows: list[MetricRow] = []
        self._last_rows: deque[MetricRow] = deque(maxlen=_LAST_ROWS)
        self.findings, self.active = FindingTracker(), False

    def attach(self, trainer: Any) -> AuditCallback:
        """Add the callback to a trainer, before its other callbacks; return the callback."""
        callbacks: list[Any] = trainer.callback_handler.callbacks
        callbacks[:] = [self, *(callback for callback in callbacks if callback is not self)]
        return self

    def on_train_begin(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
        """Start auditing, in the main process only."""
        if state.is_world_process_zero:
            self._folder = self._folder or Path(args.output_dir)
            self._subject = {"run": str(args.output_dir)}
            self.active = True

    def on_log(self, args: Any, state: Any, *_: Any, logs: dict[str, Any] | None = None, **__: Any) -> None:
        """Check one row of metrics; add the audit's scalars for the callbacks that follow."""
        del args
        is_row = logs and "train_runtime" not in logs and not metric_files.is_evaluation(logs)
        if self.active and is_row:
            self._call(self._check, state.global_step, logs)

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Write the final audit.json."""
        if self.active and self.findings.scans:
            self._call(self._write_document)

    def _call(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call a function; log its error and stop the audit, because training must not end because of its audit."""
        try:
            function(*arguments)
        except Exception as error:  # noqa: BLE001
            self.active = False
            LOG.warning("audit: stopped: %s: %s", type(error).__name__, error, exc_info=True)

    def _check(self, step: int, logs: dict[str, Any]) -> None:
        """Add a row to the series, scan it, log and write changes of the findings, and add scalars to the row."""
        if row := metric_files.metric_row(logs, f"step {step}", step):
            (self._first_rows if len(self._first_rows) < _FIRST_ROWS else self._last_rows).append(row)
            series = MetricSeries("metrics", (*self._first_rows, *self._last_rows))
            for change in self.findings.scan(step, (series,)):
                LOG.warning("audit: %s", text_filters.mask_for_screen(change.log_line))
                self._write_document()
        active = self.findings.active
        flags = {f"audit/{family}": float(family in active) for family in self.findings.reported}
        logs |= {"audit/faults": sum(flags.values()), **flags}

    def _write_document(self) -> None:
        """Write audit.json without personal data; errors of the file system are ignored."""
        document = text_filters.redact_for_sharing(make_document(self.findings.finish(self._subject)))
        with contextlib.suppress(OSError):
            if self._folder is not None:
                self._folder.mkdir(parents=True, exist_ok=True)
                safe_io.write_atomically(self._folder / DOCUMENT, json_output.dump(document))
