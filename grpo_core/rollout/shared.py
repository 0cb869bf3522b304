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

    Either each process has an engine of its own, which samples its share of the requests, or rank 0 has the only one.
    """

    def __init__(self, engine: Engine | None, world: World, *, each: bool) -> None:
        """`engine` is None in processes that have none."""
        self._engine, self._world, self._each = engine, world, each
        self.name: str = self._call_all(lambda engine: engine.name)
        self.capabilities: Capabilities = self._call_all(lambda engine: engine.capabilities)

    @property
    def policy_version(self) -> int:
        """That of rank 0's engine."""
        return int(self._call_all(lambda engine: engine.policy_version))

    def generate(self, requests: Sequence[Request], params: SamplingParams) -> list[Completion]:
        """Sample one completion per request, in the order of the requests."""
        if not self._each or len(requests) % self._world.size:  # a probe goes to every engine
            return list(self._call_all(lambda engine: engine.generate(requests, params)))
        share = requests[self._world.share(len(requests))]
        parts = self._gather(lambda engine: engine.generate(share, params))
        return [completion for part in parts for completion in part]

    def start_generate(self, requests: Sequence[Request], params: SamplingParams) -> None:
        """Send requests to rank 0's engine (see `ProcessEngine`)."""
        self._call_all(lambda engine: engine.start_generate(requests, params))

    def finish_generate(self) -> list[Completion]:
        """Wait for their completions."""
        return list(self._call_all(lambda engine: engine.finish_generate()))

    def update_weights(self, tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Join sharded parameters, which takes all processes, and load them."""
        pairs = list(tensors)
        self._call_all(lambda engine: engine.update_weights(pairs, version))

    def abort(self) -> None:
        """End the call of this process's own engine; no other process takes part."""
        if self._engine is not None:
            self._engine.abort()

    def reset_prefix_cache(self) -> None:
        """Reset it in every engine."""
        self._call_all(lambda engine: engine.reset_prefix_cache())

    def fingerprint(self) -> str | None:
        """Return that of rank 0's engine."""
        digest = self._call_all(lambda engine: engine.fingerprint())
        return None if digest is None else str(digest)

    def sleep(self) -> None:
        """Let every engine sleep."""
        self._call_all(lambda engine: engine.sleep())

    def wake(self) -> None:
        """Wake every engine."""
        self._call_all(lambda engine: engine.wake())

    def close(self) -> None:
        """Close this process's engine."""
        if self._engine is not None:
            self._engine.close()

    def _call_all(self, call: Callable[[Any], Any]) -> Any:
        """Call every engine; return rank 0's answer."""
        return self._gather(call)[0]

    def _gather(self, call: Callable[[Any], Any]) -> list[Any]:
        """Call every engine; a failure in one process is raised in all, so that none waits for it."""
        value, failure = None, None
        if self._engine is not None:
            try:
                value = call(self._engine)
            except EngineError as error:
                failure = str(error)
        answers = self._world.gather((value, failure))
        for _, message in answers:
            if message is not None:
                raise EngineError(message)
        return [value for value, _ in answers]
