"""`AuditCallback`: check a GRPO run for silent faults while transformers' Trainer trains it.

    from diagnostics.audit.callback import AuditCallback

    trainer = GRPOTrainer(...)
    AuditCallback().attach(trainer)
    trainer.train()

`attach` puts it before the callbacks that write curves, so they write its scalars (`audit/…`), too. It then also checks
the samples of each step. Passed as `callbacks=[AuditCallback()]`, it checks only metrics. Findings are warnings of the
logger `grpo_doctor.audit` and lines of OUTPUT_DIR/audit.jsonl. It needs only the standard library and transformers.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from pathlib import Path
from typing import Any

from diagnostics import safe_io
from diagnostics.audit.recorded import metric_files
from diagnostics.audit.recorded.run_data import Sample, number, text_of
from diagnostics.audit.results import AuditError, make_document
from diagnostics.audit.watch import Window
from diagnostics.output import prepare

LOG = logging.getLogger("grpo_doctor.audit")
CHANGES, DOCUMENT = "audit.jsonl", "audit.json"


class TrainerHooks:
    """The hooks; `AuditCallback` is this class as a TrainerCallback."""

    def __init__(self, *, share: float = 0.01, folder: str | Path | None = None, **removed: Any) -> None:
        """Configure the callback.

        Args:
            share: Share of the training time that checks of samples may take.
            folder: Where audit.jsonl and audit.json go; None for the trainer's output_dir.
            removed: Options of earlier releases, refused.

        Raises:
            AuditError: An option was removed.
        """
        if removed:
            instead = "run `audit --server URL --checkpoint DIR` after a checkpoint"
            raise AuditError(f"AuditCallback({', '.join(removed)}): removed; {instead}")
        self._share = share
        self._folder = Path(folder) if folder else None
        self._trainer: Any = None
        self._last_samples: Any = None
        self._subject: dict[str, str] = {}
        self._began = time.perf_counter()
        self._seconds = self._sample_seconds = 0.0
        self.window, self.active = Window(), False

    def attach(self, trainer: Any) -> TrainerHooks:
        """Put it before the trainer's other callbacks and return it."""
        callbacks: list[Any] = trainer.callback_handler.callbacks
        callbacks[:] = [self, *(callback for callback in callbacks if callback is not self)]
        self._trainer = trainer
        return self

    def on_train_begin(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
        """Start in the first process."""
        if state.is_world_process_zero:
            self._folder = self._folder or Path(args.output_dir)
            self._subject = {"run": str(args.output_dir)}
            self._began = time.perf_counter()
            self.active = True

    def on_log(self, args: Any, state: Any, *_: Any, logs: dict[str, Any] | None = None, **__: Any) -> None:
        """Check a line of metrics and the samples; add scalars for the callbacks that follow."""
        del args
        if not self.active or not logs or "train_runtime" in logs or metric_files.is_evaluation(logs):
            return
        try:
            self._check(state.global_step, logs)
        except Exception as error:  # noqa: BLE001 - training must not end because of its audit
            self.active = False
            LOG.warning("audit: stopped: %s: %s", type(error).__name__, error, exc_info=True)
            return
        flags = {f"audit/{family}": float(alarm.active) for family, alarm in self.window.reported.items()}
        logs |= {"audit/faults": sum(flags.values()), "audit/seconds": self._seconds, **flags}

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Write the document."""
        if self.active and self._folder is not None and self.window.scans:
            document = prepare.for_sharing(
                prepare.for_screen(make_document(self.window.finish(self._subject)))
            )
            with contextlib.suppress(OSError):
                text = json.dumps(document, indent=1, ensure_ascii=False)
                safe_io.write_atomically(self._folder / DOCUMENT, text.encode())

    def _check(self, step: int, logs: dict[str, Any]) -> None:
        began = time.perf_counter()
        row = metric_files.metric_row(logs, f"step {step}", step)
        results = self.window.add_metrics("metrics", row) if row else []
        allowed = self._share * (began - self._began) - self._seconds
        if self._share >= 1 or allowed >= self._sample_seconds:
            sample_began = time.perf_counter()
            if samples := self._new_samples(step):
                results += self.window.add_samples(samples)
                self._sample_seconds = time.perf_counter() - sample_began
        for change in self.window.update(step, results):
            LOG.warning("audit: %s", prepare.for_screen(change.log_line))
            self._write_change(prepare.for_sharing(prepare.for_screen(change.to_json())))
        self._seconds += time.perf_counter() - began

    def _write_change(self, entry: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            if self._folder is not None:
                self._folder.mkdir(parents=True, exist_ok=True)
                with (self._folder / CHANGES).open("a", encoding="utf-8") as file:
                    file.write(json.dumps(entry, ensure_ascii=False) + "\n")

    def _new_samples(self, step: int) -> list[Sample]:
        """Return the completions that TRL keeps for its own log, if they are new; equal prompts are a group."""
        logs = getattr(self._trainer, "_logs", None)
        if not isinstance(logs, dict) or not logs.get("completion"):
            return []
        columns = [list(logs.get(name) or ()) for name in ("prompt", "completion", "advantages")]
        prompts, texts, advantages = columns
        newest = (len(texts), repr(texts[-1])[:2000], repr(texts[0])[:2000], advantages[-1:])
        if newest == self._last_samples or not len(prompts) == len(texts) == len(advantages):
            return []
        self._last_samples = newest
        rewards = {str(name): list(values) for name, values in dict(logs.get("rewards") or {}).items()}
        scores = {name: values for name, values in rewards.items() if len(values) == len(texts)}
        return [
            Sample(
                step,
                text_of(prompt),
                text_of(text),
                advantage=number(advantage),
                place=f"step {step}",
                scores={name: number(values[index]) for name, values in scores.items()},
            )
            for index, (prompt, text, advantage) in enumerate(zip(*columns, strict=True))
        ]


def __getattr__(name: str) -> type:
    """Build `AuditCallback` when it is first used; transformers is imported only then."""
    if name != "AuditCallback":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from transformers import TrainerCallback

    members = {"__doc__": TrainerHooks.__doc__, "__module__": __name__}
    callback = type(name, (TrainerHooks, TrainerCallback), members)
    globals()[name] = callback
    return callback
