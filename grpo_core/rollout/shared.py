"""One engine for all processes of a run under torchrun."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grpo_core.rollout.engine import Capabilities, EngineError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import torch

    from grpo_core.machine.world import World
    from grpo_core.rollout.engine import Engine
    from grpo_core.types import Completion, Request, SamplingParams


class SharedEngine:
    """Every process makes the same calls at the same time and gets the same answers.

    Either each has an engine of its own, which samples its share of the requests, or rank 0 has the only one.
    """

    def __init__(self, engine: Engine | None, world: World, *, each: bool) -> None:
        """`engine` is None in processes that have none."""
        self._engine, self._world, self._each = engine, world, each
        self.name: str = self._agreed(lambda held: held.name)
        self.capabilities: Capabilities = self._agreed(lambda held: held.capabilities)

    @property
    def policy_version(self) -> int:
        """As rank 0's engine says."""
        return int(self._agreed(lambda held: held.policy_version))

    def generate(self, requests: Sequence[Request], params: SamplingParams) -> list[Completion]:
        """Samples one completion a request, in the order of the requests."""
        if not self._each or len(requests) % self._world.size:  # a probe goes to every engine
            return list(self._agreed(lambda held: held.generate(requests, params)))
        share = requests[self._world.share(len(requests))]
        parts = self._world.gather(_attempt(lambda: self._held().generate(share, params)))
        return [completion for part in parts for completion in _unpacked(part)]

    def start_generate(self, requests: Sequence[Request], params: SamplingParams) -> None:
        """The first half of `generate`, where rank 0's engine has halves."""
        self._agreed(lambda held: held.start_generate(requests, params))

    def finish_generate(self) -> list[Completion]:
        """The second half."""
        return list(self._agreed(lambda held: held.finish_generate()))

    def update_weights(self, tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Puts sharded parameters together, which takes all processes, and loads them."""
        whole = list(tensors)
        self._agreed(lambda held: held.update_weights(whole, version))

    def abort(self) -> None:
        """Ends what this process's own engine is at; no other process takes part."""
        if self._engine is not None:
            self._engine.abort()

    def reset_prefix_cache(self) -> None:
        """In every engine."""
        self._agreed(lambda held: held.reset_prefix_cache())

    def fingerprint(self) -> str | None:
        """As rank 0's engine says."""
        digest = self._agreed(lambda held: held.fingerprint())
        return None if digest is None else str(digest)

    def sleep(self) -> None:
        """Where the engines can."""
        self._agreed(lambda held: held.sleep())

    def wake(self) -> None:
        """Where the engines can."""
        self._agreed(lambda held: held.wake())

    def close(self) -> None:
        """Closes this process's engine."""
        if self._engine is not None:
            self._engine.close()

    def _held(self) -> Any:
        assert self._engine is not None
        return self._engine

    def _agreed(self, call: Callable[[Any], Any]) -> Any:
        """Rank 0's answer; a failure in one process is raised in all, so that none waits for it."""
        mine = _attempt(lambda: call(self._engine)) if self._engine is not None else (None, None)
        answers = self._world.gather(mine)
        for answer in answers:
            _unpacked(answer)
        return answers[0][0]


def _attempt(call: Callable[[], Any]) -> tuple[Any, str | None]:
    try:
        return call(), None
    except EngineError as error:
        return None, str(error)


def _unpacked(answer: tuple[Any, str | None]) -> Any:
    value, error = answer
    if error is not None:
        raise EngineError(error)
    return value
