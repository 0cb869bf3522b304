"""Steps vLLM's engine until all requests of a call have ended. Nothing else may call `step()`.

`LLM.generate` does the same, but can't be ended from outside, and queues everything at once. Here a request is
added when there is room for the whole of it: then no prompt is ever split, none waits inside vLLM, and none is
preempted, which are the paths on which its schedulers fail.
"""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grpo_core.rollout.engine import EngineError
from grpo_core.rollout.vllm.releases import prompt

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# V0 keeps one block in a hundred free, V1 one.
_USABLE = 0.98


@dataclass(frozen=True)
class Job:
    """One completion asked of vLLM: prompt ids and vLLM's own sampling parameters."""

    ids: tuple[int, ...]
    params: Any


class Stepper:
    """The owner of one `LLMEngine`'s loop."""

    def __init__(self, engine: Any) -> None:
        """Reads the engine's limits; it must be idle, and is stepped by nobody else from now on."""
        cache, scheduler = engine.vllm_config.cache_config, engine.vllm_config.scheduler_config
        self._engine = engine
        self._block = int(cache.block_size)
        self._blocks = int(_USABLE * int(cache.num_gpu_blocks))  # on a CPU they are called so, too
        self._most_running = int(scheduler.max_num_seqs)
        self._most_tokens = int(scheduler.max_num_batched_tokens)
        self._names = itertools.count()

    def run(self, jobs: Sequence[Job], aborted: Callable[[], bool]) -> list[Any]:
        """Samples all jobs, or what can be had until `aborted` says so, which is asked before each step.

        Returns:
            For each job vLLM's last output; None for one that had not begun.

        Raises:
            EngineError: vLLM forgot a request, or answered one it was not asked.
        """
        waiting: deque[int] = deque(range(len(jobs)))
        running: dict[str, int] = {}  # vLLM's name of a request: place among the jobs
        outputs: list[Any] = [None] * len(jobs)
        while waiting or running:
            if aborted():
                self._engine.abort_request(list(running))
                break
            running |= self._admitted(jobs, waiting, list(running.values()))
            self._step(running, outputs)
        return outputs

    def _admitted(self, jobs: Sequence[Job], waiting: deque[int], running: list[int]) -> dict[str, int]:
        """Adds as many of the waiting jobs as there is room for; at least one if nothing is running."""
        added: dict[str, int] = {}
        tokens = self._most_tokens - len(running)
        blocks = self._blocks - sum(self._needs(jobs[place]) for place in running)
        while waiting and len(running) + len(added) < self._most_running:
            job = jobs[waiting[0]]
            tokens, blocks = tokens - len(job.ids), blocks - self._needs(job)
            if (running or added) and min(tokens, blocks) < 0:
                break
            name = str(next(self._names))
            self._engine.add_request(name, prompt(job.ids), job.params)
            added[name] = waiting.popleft()
        return added

    def _needs(self, job: Job) -> int:
        """Blocks of the KV cache that a job may come to fill, and one to spare."""
        return (len(job.ids) + int(job.params.max_tokens)) // self._block + 2

    def _step(self, running: dict[str, int], outputs: list[Any]) -> None:
        for output in self._engine.step():
            if output.request_id not in running:
                raise EngineError(
                    f"vllm engine, generate: an answer to request {output.request_id}, not asked"
                )
            outputs[running[output.request_id]] = output
            if output.finished:
                del running[output.request_id]
        if running and not self._engine.has_unfinished_requests():
            raise EngineError(
                f"vllm engine, generate: vLLM has no more of {len(running)} requests, none ended"
            )
