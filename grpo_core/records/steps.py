"""A run's steps, recorded whole where they are due: what each began from, and its first update, as digests."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from grpo_core.files import due
from grpo_core.learn.policy import whole
from grpo_core.records.recording import Recorder
from grpo_core.rollout.weights.digest import fingerprint_like, spot_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    import torch

    from grpo_core.config import Config
    from grpo_core.learn.policy import Policy
    from grpo_core.types import Request, Sample

EXACT = "spot1-"  # what `exact_digest` begins with


class StepRecorder:
    """Looks at every step in all processes, and writes in the first."""

    def __init__(self, folder: Path, config: Config, *, first: bool) -> None:
        """Goes on behind what is recorded in the folder."""
        self._config, self._result = config, dict[str, Any]()
        self._recorder = Recorder(folder, config) if first else None
        if first and (said := unreplayable(config)):
            print(f"grpo_core: {said}", file=sys.stderr)

    def begin(self, step: int, policy: Policy) -> Callable[[Policy, float], None] | None:
        """What is to look at the step's first update; None: the step is not recorded."""
        self._result = {}
        if not due(step, self._config.output.record_every, self._config):
            return None
        before = exact_digest(policy.tensors())

        def look(policy: Policy, loss: float) -> None:
            self._result = {"loss": loss, "gradient": gradient_digest(policy), "policy": before}

        return look

    def end(
        self, step: int, version: int, samples: Sequence[Sample], requests: Mapping[str, Request]
    ) -> None:
        """Writes the step down, if it was looked at; `requests` by id."""
        if self._recorder is not None and self._result:
            asked = [requests[sample.completion.request_id] for sample in samples]
            self._recorder.write(step, version, samples, asked, self._result)


def unreplayable(config: Config) -> str:
    """Which recorded steps `replay` will lack the parameters of when the run has ended, and what keeps them; or ""."""
    steps, every, keep = config.train.steps, config.checkpoint.every, config.checkpoint.keep
    recorded = [step for step in range(1, steps + 1) if due(step, config.output.record_every, config)]
    saved = [step for step in range(1, steps + 1) if every and (step % every == 0 or step == steps)]
    # The first step begins from the model that every run keeps.
    lacking = [step for step in recorded if step > 1 and step - 1 not in saved[-keep:]]
    if not lacking:
        return ""
    first = min(step for step in recorded if step > 1)
    return (
        f"output.record_every = {config.output.record_every}: of {len(recorded)} recorded steps {len(lacking)} begin "
        f"from parameters that no checkpoint will keep, so that `replay` asks for --policy; checkpoint.every = 1 and "
        f"checkpoint.keep = {steps - first + 2} keep them all"
    )


def gradient_digest(policy: Policy, like: str = EXACT) -> str:
    """Of the gradients that a policy has now, of the kind of `like`."""
    gradients = [(name, value.grad) for name, value in policy.trained()]
    return digest_like(like, [(name, whole(grad)) for name, grad in gradients if grad is not None])


def digest_like(recorded: str, tensors: Iterable[tuple[str, torch.Tensor]]) -> str:
    """The digest of tensors, of the kind that was recorded: by a sync, by another program, or `exact_digest`."""
    return exact_digest(tensors) if recorded.startswith(EXACT) else fingerprint_like(recorded, tensors, 0)


def exact_digest(tensors: Iterable[tuple[str, torch.Tensor]]) -> str:
    """Of every byte, at a third of the cost of SHA-256: what a recorded step is compared by.

    >>> import torch
    >>> exact_digest([("a", torch.ones(1))])[:9]
    'spot1-v0-'
    """
    return spot_digest(tensors, 0, every=1)
