"""Run any engine in a separate process, so that it samples while the trainer trains.

The process is a rollout server for this trainer only, on a free port of loopback with its own token.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from grpo_core.rollout.build import EngineSpec
from grpo_core.rollout.engine import EngineError
from grpo_core.rollout.remote import RemoteEngine
from grpo_core.rollout.server.process import ServerProcess
from grpo_core.types import Completion, Request, SamplingParams


class ProcessEngine(RemoteEngine):
    """An engine in a child process. `start_generate` and `finish_generate` are the two halves of `generate`.

    Attributes:
        pid: The child's process id.
    """

    def __init__(self, spec: EngineSpec, *, timeout_s: float, sync: str = "auto") -> None:
        """Start the child and wait until its engine is ready.

        Args:
            spec: Settings of the engine.
            timeout_s: Longest time for the start, and for an answer.
            sync: Transport of weights; `auto` is shared memory where it works.
        """
        self._server = ServerProcess(spec, timeout_s=timeout_s)
        self.pid = self._server.pid
        self._pool = ThreadPoolExecutor(1, "rollouts")
        self._in_flight: deque[Future[list[Completion]]] = deque()
        try:
            host, port, token = self._server.host, self._server.port, self._server.token
            super().__init__(host, port, timeout_s=timeout_s, token=token, sync=sync)
        except BaseException:
            self._server.close()
            raise
        self.name = self._http.name = f"{spec.engine} (own process)"
        self._http.death = self._server.death

    def start_generate(self, requests: Sequence[Request], params: SamplingParams) -> None:
        """Start sampling in the background, behind earlier calls."""
        self._in_flight.append(self._pool.submit(super().generate, list(requests), params))

    def finish_generate(self) -> list[Completion]:
        """Wait for the completions of the oldest `start_generate`.

        Raises:
            EngineError: The child died or failed, its answer is invalid, or no sampling was started.
        """
        if not self._in_flight:
            raise EngineError(f"{self.name} engine: finish_generate without start_generate")
        return self._in_flight.popleft().result()

    def close(self) -> None:
        """End the child; a call that is sampling fails."""
        super().close()
        self._server.close()
        self._pool.shutdown()
