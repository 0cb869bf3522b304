"""Define the training loops of the three rollout modes (colocate, async, server), side by side.

The engine is in this process (colocate), in a child process (async), or behind HTTP (server: a running server, or one
that the run starts). Each loop builds its engine or connects to one, and closes it at the end. With several training
processes, each has an engine in colocate; in the other modes all use that of rank 0. `run_mode` runs the configured
loop. In async, `RolloutQueue` requests rollouts ahead of the trainer, as far as `max_staleness` allows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

import torch

from grpo_core.learn.group_pool import StalenessError
from grpo_core.learn.policy import Policy
from grpo_core.machine.checkpoint import State
from grpo_core.publish import SyncError
from grpo_core.rollout.engine import Engine, EngineError
from grpo_core.rollout.engine_factory import build_engine
from grpo_core.rollout.remote_engines import ProcessEngine, engine_for
from grpo_core.rollout.server.process import token_from_environment
from grpo_core.tasks.dataset import rollout
from grpo_core.trainer import Trainer
from grpo_core.types import Completion, Rollout


def train_colocate(trainer: Trainer) -> None:
    """Train with the engine in this process: publish weights, sample, update the policy.

    An engine that can sleep is put to sleep before the update, and woken before the next step.
    All tokens come from the newest policy version.
    """
    in_process = build_engine(trainer.config, trainer.model_dir)
    with closing(trainer.share_engine(in_process, per_rank=True)) as engine:
        sync = trainer.publisher(engine)
        sleeper: Any = engine if engine.capabilities.sleep else None
        for _ in trainer.steps():
            if sleeper is not None:
                sleeper.wake()
            trainer.publish(sync)
            trainer.evaluate(engine)
            while not trainer.ready():
                rollout = trainer.next_rollout()
                with trainer.timed("rollout"):
                    completions = engine.generate(rollout.requests, trainer.sampling)
                trainer.add_rollout(rollout, completions)
            if sleeper is not None:
                sleeper.sleep()
            trainer.learn()


def train_async(trainer: Trainer) -> None:
    """Keep the engine sampling in another process, and train on the rollouts that are finished (see `RolloutQueue`)."""
    process = ProcessEngine(trainer.config, trainer.model_dir) if trainer.world.is_first else None
    with closing(trainer.share_engine(process)) as engine:
        queue = RolloutQueue(trainer, engine)
        for _ in trainer.steps():
            queue.fill()
            while not trainer.ready():
                with trainer.timed("rollout"):  # only the time that the trainer waits
                    rollout, completions = queue.next()
                trainer.add_rollout(rollout, completions, max_age=trainer.config.rollout.max_staleness)
                queue.fill()
            trainer.learn()


def train_with_server(trainer: Trainer) -> None:
    """Train with an engine behind HTTP: publish weights, sample, update the policy."""
    with server_engine(trainer) as engine:
        sync = trainer.publisher(engine)
        for _ in trainer.steps():
            trainer.publish(sync)
            trainer.evaluate(engine)
            while not trainer.ready():
                rollout = trainer.next_rollout()
                with trainer.timed("rollout"):
                    completions = engine.generate(rollout.requests, trainer.sampling)
                trainer.add_rollout(rollout, completions)
            trainer.learn()


def run_mode(trainer: Trainer) -> None:
    """Train in the configured mode."""
    LOOPS[trainer.config.rollout.mode](trainer)


LOOPS = {"colocate": train_colocate, "async": train_async, "server": train_with_server}


class RolloutQueue:
    """The async mode's queue of rollouts that the engine samples ahead of the trainer; checkpoints save it.

    Which rollouts are requested does not depend on time, so a run can be repeated and resumed exactly. An idle engine
    gets the newest policy version, and as many of the run's rollouts as will not be too old when they are trained on.
    With `max_staleness = 0` nothing is requested ahead, and the numbers equal those of colocate.
    """

    def __init__(self, trainer: Trainer, engine: ProcessEngine) -> None:
        """Sample the rollouts that were in flight at the checkpoint again, if the run is resumed."""
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
        """If the engine is idle, send it the current policy, evaluate if that is due, and request rollouts."""
        trainer, flight = self._trainer, self._flight
        train, before = trainer.config.train, int(trainer.ready())
        # A rollout is trained on after those in flight, and after the update that is due (`before`).
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
        """Return the rollouts in flight, and the weights that sample them, for a checkpoint."""
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
    """Load older parameters into the policy for the block; restore the present ones after it."""
    now = {name: tensor.clone() for name, tensor in policy.state().items()}
    policy.load_state(state)
    try:
        yield
    finally:
        policy.load_state(now)


@contextmanager
def server_engine(trainer: Trainer) -> Iterator[Engine]:
    """Yield the client of the run's server; port 0 starts a server that ends with the run.

    Raises:
        EngineError: The server failed or went away.
        SyncError: After an upload, the server's weights differ from those sent.
        StalenessError: A completion is from a policy version that is too old, or that was never published.

    Each message says how to resume the run.
    """
    options = trainer.config.rollout
    client: Engine | None = None
    try:
        if trainer.world.is_first and options.port == 0:
            client = ProcessEngine(trainer.config, trainer.model_dir)
        elif trainer.world.is_first:
            folder, token = trainer.folder / "weights", token_from_environment()
            client = engine_for(options, options.host, options.port, folder, token=token)
        with closing(trainer.share_engine(client)) as engine:
            yield engine
    except (EngineError, SyncError, StalenessError) as error:
        where = (
            f"When the server at http://{options.host}:{options.port} is well again, " if options.port else ""
        )
        remedy = f"{where}--resume goes on from the last checkpoint."
        raise type(error)(f"{str(error).rstrip('.')}. {remedy}") from error
