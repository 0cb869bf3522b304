"""The async mode's queue: rollouts that the engine samples ahead of the trainer.

Requests depend on counts alone, never on the clock, so a run can be repeated and resumed exactly. An idle engine
receives the newest policy version and as many rollouts as will not be too old when they are trained on: a rollout after
k others is trained on k updates later. With `max_staleness = 0` that is none before the update is made, and every
number is that of colocate.

With `partial_tokens` the engine receives new weights once per step, whatever is unfinished. A completion that is not
due yet gets at most so many tokens at a time, and the rest under later versions; each token has its own version.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace

import torch

from grpo_core.learn.policy import Policy
from grpo_core.machine.checkpoint import State, completion_from
from grpo_core.rollout.subprocess_engine import ProcessEngine
from grpo_core.tasks.dataset import rollout
from grpo_core.trainer import Trainer
from grpo_core.types import Completion, Request, Rollout


@dataclass
class InFlight:
    """A rollout that was requested and is not trained on yet.

    Attributes:
        rollout: Prompts and requests.
        completions: The completions so far by request id; partial ones where a weight update came in between.
    """

    rollout: Rollout
    completions: dict[str, Completion] = field(default_factory=dict)


class Ahead:
    """The engine's queue, in order; a checkpoint saves it."""

    def __init__(self, trainer: Trainer, engine: ProcessEngine) -> None:
        """Continue with the rollouts that were being sampled when the run was killed, if any."""
        self._trainer, self._engine, self._sync = trainer, engine, trainer.publisher(engine)
        self._partial = trainer.config.rollout.partial_tokens
        self._saves_weights = trainer.config.rollout.max_staleness > 0 and trainer.config.checkpoint.every > 0
        self._flight: list[InFlight] = []
        self._calls: deque[list[tuple[InFlight, list[Request]]]] = deque()
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
        # A rollout is trained on after those in flight, and after the update that is due (`before`).
        young = trainer.config.rollout.max_staleness // train.updates + 1 - before
        fresh = max(0, min(young, train.steps - trainer.step - before) - len(flight))
        if self._calls or not (fresh or flight):
            return
        if self._engine.policy_version != trainer.version:
            trainer.publish(self._sync)
            if self._saves_weights:
                self._sampling_weights = {
                    name: value.clone() for name, value in trainer.policy.state().items()
                }
        trainer.evaluate(self._engine)
        new = [InFlight(trainer.next_rollout()) for _ in range(fresh)]
        self._request([*flight, *new] if self._partial else new)
        flight += new

    def next(self) -> tuple[Rollout, list[Completion]]:
        """Wait for the oldest call; return the oldest rollout and its completions, which are finished by then."""
        answers = iter(self._engine.finish_generate())
        for waiting, requests in self._calls.popleft():
            for request in requests:
                waiting.completions[request.id] = _join(waiting.completions.get(request.id), next(answers))
        oldest = self._flight.pop(0)
        return oldest.rollout, [oldest.completions[request.id] for request in oldest.rollout.requests]

    def _request(self, rollouts: list[InFlight]) -> None:
        """Start sampling, one call per rollout; in partial mode one call with a slice of all, the first to its end."""
        parts = [
            (each, _remaining(each, self._partial if place else 0)) for place, each in enumerate(rollouts)
        ]
        for call in [parts] if self._partial else [[part] for part in parts]:
            together = [request for _, part in call for request in part]
            self._engine.start_generate(together, self._trainer.sampling)
            self._calls.append(call)

    def _state(self) -> State:
        if not self._flight:
            return State()
        assert self._sampling_weights
        return State(
            flight=[
                (each.rollout.number, [asdict(c) for c in each.completions.values()]) for each in self._flight
            ],
            flight_version=self._engine.policy_version,
            tensors={"sampling": self._sampling_weights},
        )

    def _resume(self, state: State) -> None:
        """Send the saved weights to the engine, and repeat the requests."""
        trainer = self._trainer
        for number, entries in state.flight:
            completions = {entry["request_id"]: completion_from(entry) for entry in entries}
            self._flight.append(InFlight(rollout(trainer.prompts, number, trainer.config), completions))
        self._sampling_weights = state.tensors["sampling"]
        self._sync.last = None  # the saved probe is of the same weights: it would show no change
        with temporary_state(trainer.policy, self._sampling_weights):
            self._sync.publish(state.flight_version)
        self._request(self._flight)


def _remaining(waiting: InFlight, budget: int) -> list[Request]:
    """Return the requests for the rest of each completion that is not finished."""
    remaining = []
    for request in waiting.rollout.requests:
        earlier = waiting.completions.get(request.id)
        if earlier is None:
            remaining.append(replace(request, budget=budget))
        elif earlier.finish_reason == "abort":
            remaining.append(replace(request, budget=budget, prefix=earlier.ids))
    return remaining


def _join(earlier: Completion | None, more: Completion) -> Completion:
    """Append to a completion what was sampled after it."""
    if earlier is None:
        return more
    logprobs, versions = earlier.logprobs + more.logprobs, earlier.versions + more.versions
    return replace(more, ids=earlier.ids + more.ids, logprobs=logprobs, versions=versions)


@contextmanager
def temporary_state(policy: Policy, state: Mapping[str, torch.Tensor]) -> Iterator[None]:
    """Give the policy older parameters within the block."""
    now = {name: tensor.clone() for name, tensor in policy.state().items()}
    policy.load_state(state)
    try:
        yield
    finally:
        policy.load_state(now)
