"""Manage the queue of the async mode: rollouts that the engine samples ahead of the trainer.

Which rollouts are requested depends only on counts, never on time, so a run can be repeated and resumed exactly. An
idle engine gets the newest policy version, and as many rollouts as will not be too old when they are trained on: a
rollout behind k others is trained on k updates later. With `max_staleness = 0` nothing is requested ahead, and all
numbers equal those of colocate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

from grpo_core.learn.policy import Policy
from grpo_core.machine.checkpoint import State
from grpo_core.rollout.subprocess_engine import ProcessEngine
from grpo_core.tasks.dataset import rollout
from grpo_core.trainer import Trainer
from grpo_core.types import Completion, Rollout


class Ahead:
    """The queue of rollouts that the engine samples, oldest first; checkpoints save it."""

    def __init__(self, trainer: Trainer, engine: ProcessEngine) -> None:
        """Continue with the rollouts that were being sampled when the run was killed, if any."""
        self._trainer, self._engine, self._sync = trainer, engine, trainer.publisher(engine)
        self._saves_weights = trainer.config.rollout.max_staleness > 0 and trainer.config.checkpoint.every > 0
        self._flight: list[Rollout] = []
        # The weights that rollouts in flight are sampled with, once the policy has newer ones.
        self._sampling_weights: dict[str, torch.Tensor] = {}
        trainer.in_flight = self._state
        if trainer.resumed is not None and trainer.resumed.flight:
            self._resume(trainer.resumed)
            trainer.resumed = None

    def fill(self) -> None:
        """Send the current policy and new requests to the engine, if it is idle."""
        trainer, flight = self._trainer, self._flight
        train, before = trainer.config.train, int(trainer.ready())
        # If the trainer has a complete step (`before` is 1), its update comes before the next rollout is trained on.
        young = trainer.config.rollout.max_staleness // train.updates + 1 - before
        fresh = max(0, min(young, train.steps - trainer.step - before))
        if flight or not fresh:
            return
        if self._engine.policy_version != trainer.version:
            trainer.publish(self._sync)
            if self._saves_weights:
                self._sampling_weights = {
                    name: value.clone() for name, value in trainer.policy.state().items()
                }
        trainer.evaluate(self._engine)
        self._request([trainer.next_rollout() for _ in range(fresh)])

    def next(self) -> tuple[Rollout, list[Completion]]:
        """Wait for the oldest rollout; return it with its completions."""
        completions = self._engine.finish_generate()
        return self._flight.pop(0), completions

    def _request(self, rollouts: list[Rollout]) -> None:
        """Start sampling, one call per rollout."""
        for each in rollouts:
            self._engine.start_generate(each.requests, self._trainer.sampling)
        self._flight += rollouts

    def _state(self) -> State:
        if not self._flight:
            return State()
        assert self._sampling_weights
        return State(
            flight=[(each.number, []) for each in self._flight],
            flight_version=self._engine.policy_version,
            tensors={"sampling": self._sampling_weights},
        )

    def _resume(self, state: State) -> None:
        """Send the saved weights to the engine, and repeat the requests."""
        trainer = self._trainer
        self._sampling_weights = state.tensors["sampling"]
        self._sync.last = None  # the saved probe is of the same weights: it would show no change
        with temporary_state(trainer.policy, self._sampling_weights):
            self._sync.publish(state.flight_version)
        self._request([rollout(trainer.prompts, number, trainer.config) for number, _ in state.flight])


@contextmanager
def temporary_state(policy: Policy, state: Mapping[str, torch.Tensor]) -> Iterator[None]:
    """Load older parameters into the policy within the block."""
    now = {name: tensor.clone() for name, tensor in policy.state().items()}
    policy.load_state(state)
    try:
        yield
    finally:
        policy.load_state(now)
