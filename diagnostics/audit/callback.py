"""`AuditCallback`: a callback of transformers' Trainer that looks for silent faults while a GRPO trainer trains.

    from diagnostics.audit.callback import AuditCallback

    trainer = GRPOTrainer(...)
    AuditCallback().attach(trainer)
    trainer.train()

Attached, it stands before those that write curves, so that its scalars (`audit/…`) go wherever the trainer's own go,
and it sees the samples of each step. Given as `callbacks=[AuditCallback()]` it sees the metrics alone, and its findings
are in the log and in OUTPUT_DIR/audit.jsonl. It needs the standard library, and transformers for its base class.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from diagnostics.audit.recorded.readers import metrics, plain
from diagnostics.audit.recorded.rows import Row
from diagnostics.audit.running.guarded import Guarded
from diagnostics.audit.running.probing import Probe

if TYPE_CHECKING:
    from collections.abc import Sequence


class TrainerHooks:
    """What is called when; `AuditCallback` is this as a TrainerCallback.

    Attributes:
        guarded: What looks; None before the training begins, and in all processes but the first.
    """

    def __init__(
        self,
        *,
        server: str = "",
        every: int = 100,
        trainer_config: str | Path | None = None,
        share: float = 0.01,
        folder: str | Path | None = None,
    ) -> None:
        """Sets what is looked at.

        Args:
            server: Of `vllm serve`; asked after a checkpoint was saved, when the engine has got its weights. Empty:
                nothing is asked.
            every: Steps between two such questions, at least.
            trainer_config: What the trainer samples with, for these; see docs/audit.md.
            share: Looking at samples takes at most so much of the time.
            folder: Where audit.jsonl and audit.json go; None: the trainer's output_dir.
        """
        self._server, self._every, self._share = server, every, share
        self._config = Path(trainer_config) if trainer_config else None
        self._folder = Path(folder) if folder else None
        self._trainer: Any = None
        self._seen: Any = None
        self._saved = False
        self.guarded: Guarded | None = None

    def attach(self, trainer: Any) -> TrainerHooks:
        """Puts it before the trainer's other callbacks, once; returns it."""
        callbacks: list[Any] = trainer.callback_handler.callbacks
        callbacks[:] = [self, *(each for each in callbacks if each is not self)]
        self._trainer = trainer
        return self

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The first process looks."""
        del control
        if not state.is_world_process_zero:
            return
        folder = self._folder or Path(args.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        probe = Probe(self._server, Path(args.output_dir), self._config) if self._server else None
        subject = {"run": str(args.output_dir), **({"server": self._server} if self._server else {})}
        self.guarded = Guarded(folder, subject, self._share, probe, self._every)

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        """A line of metrics; what stands is added to it for those callbacks that come after."""
        del args, control
        if self.guarded is None or not logs or _is_no_step(logs):
            return
        row = metrics.logged(logs, f"step {state.global_step}", state.global_step)
        logs.update(self.guarded.look(state.global_step, row, lambda: self._samples(state.global_step)))

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """From now on there is something to hold the engine against."""
        del args, state, control
        self._saved = True

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Behind the generation of the step after a checkpoint: the engine holds its weights, and samples nothing."""
        del args, control
        if self._saved and self.guarded is not None:
            self._saved = False
            self.guarded.ask(state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Writes the document."""
        del args, state, control
        if self.guarded is not None:
            self.guarded.close()

    def _samples(self, step: int) -> list[Row]:
        """The completions that the trainer keeps for its own log, where it does and they are new."""
        kept = getattr(self._trainer, "_logs", None)
        if not isinstance(kept, dict) or not kept.get("completion"):
            return []
        prompts, texts, advantages = (
            list(kept.get(name) or ()) for name in ("prompt", "completion", "advantages")
        )
        newest = (len(texts), repr(texts[-1])[:2000], repr(texts[0])[:2000], advantages[-1:])
        if newest == self._seen or not len(prompts) == len(texts) == len(advantages):
            return []
        self._seen = newest
        return rows(step, prompts, texts, advantages, dict(kept.get("rewards") or {}))


def rows(
    step: int,
    prompts: Sequence[Any],
    texts: Sequence[Any],
    advantages: Sequence[Any],
    rewards: dict[str, Any],
) -> list[Row]:
    """Samples of a step; those with the same prompt are a group."""
    scores = {str(name): list(values) for name, values in rewards.items() if len(values) == len(texts)}
    return [
        Row(
            step,
            plain.text_of(prompts[each]),
            plain.text_of(texts[each]),
            advantage=plain.number(advantages[each]),
            scores={name: plain.number(values[each]) for name, values in scores.items()},
            place=f"step {step}",
        )
        for each in range(len(texts))
    ]


def _is_no_step(logs: dict[str, Any]) -> bool:
    """Of an evaluation, or of the whole run."""
    return "train_runtime" in logs or any(str(name).startswith("eval_") for name in logs)


if TYPE_CHECKING:

    class AuditCallback(TrainerHooks):
        """As it is seen from outside."""

else:

    def __getattr__(name: str) -> type:
        """`AuditCallback`, made when it is asked for: until then transformers is not imported."""
        if name != "AuditCallback":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from transformers import TrainerCallback

        made = type(
            name, (TrainerHooks, TrainerCallback), {"__doc__": TrainerHooks.__doc__, "__module__": __name__}
        )
        globals()[name] = made
        return made
