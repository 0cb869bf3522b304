"""Drives the real V0 scheduler of the installed vLLM the way `LLMEngine` does, the forward pass aside.

Real: `vllm.core.scheduler.Scheduler` with its block manager, `Sequence`, `SequenceGroup`, and the engine's
`StopChecker`. Simulated: the forward pass (each sampled token is `TOKEN`). The halves of a step mirror
`LLMEngine.step`, `_advance_to_next_step` and `_process_model_outputs` (engine/llm_engine.py of vLLM 0.7.3, lines
1262, 1218 and 983).
"""

from __future__ import annotations

import inspect
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

TOKEN = 7
SIMULATED = ("the forward pass (every sampled token is 7)",)
MODULES = ("vllm.config", "vllm.core.scheduler", "vllm.engine.output_processor.stop_checker", "vllm.inputs")


@dataclass(frozen=True)
class Setup:
    """How the engine is configured.

    Attributes:
        chunked: Chunked prefill.
        async_output: Async output processing: a step's output is processed during the next step.
        max_model_len: Tokens of prompt and completion together.
        token_budget: `max_num_batched_tokens`.
        max_num_seqs: Requests running at once.
        blocks: KV cache blocks.
        block_size: Tokens in a block.
    """

    chunked: bool = False
    async_output: bool = True
    max_model_len: int = 64
    token_budget: int = 64
    max_num_seqs: int = 8
    blocks: int = 64
    block_size: int = 16


@dataclass(frozen=True)
class Step:
    """A step between its schedule and its output."""

    metadata: list[Any]
    outputs: Any
    groups: list[Any]
    is_async: bool


class V0Engine:
    """One engine: the real scheduler and the loop around it."""

    def __init__(self, setup: Setup) -> None:
        from vllm.core.scheduler import Scheduler
        from vllm.engine.output_processor.stop_checker import StopChecker

        self.setup = setup
        callback = self._process_early if setup.async_output else None
        self.scheduler = Scheduler(*_configs(setup), None, 1, callback)
        self._stop_checker = StopChecker(setup.max_model_len, lambda _sequence: None)
        self._pending: deque[Step] = deque()
        self._done: dict[str, int] = {}
        self._sequences = 0

    def add(self, request_id: str, *, prompt: int, max_tokens: int, min_tokens: int = 0) -> None:
        """As `LLMEngine.add_request`: a prompt of `prompt` tokens waits."""
        from vllm import SamplingParams
        from vllm.inputs import token_inputs
        from vllm.sequence import Sequence, SequenceGroup

        params = SamplingParams(max_tokens=max_tokens, min_tokens=min_tokens, ignore_eos=True)
        sequence = Sequence(self._sequences, token_inputs([1] * prompt), self.setup.block_size, 0)
        self._sequences += 1
        self.scheduler.add_seq_group(
            SequenceGroup(request_id, [sequence], arrival_time=time.time(), sampling_params=params)
        )

    @property
    def unfinished(self) -> bool:
        """As `LLMEngine.has_unfinished_requests`."""
        return bool(self.scheduler.has_unfinished_seqs())

    @property
    def leaked_blocks(self) -> int:
        """Blocks still taken; 0 after a clean drain."""
        return self.setup.blocks - int(self.scheduler.block_manager.get_num_free_gpu_blocks())

    def schedule(self) -> Step:
        """First half of a step: what runs next is decided, and marked as running."""
        metadata, outputs, is_async = self.scheduler.schedule()
        self.scheduler.get_and_reset_finished_requests_ids()
        if not is_async and self._pending:
            self._process(self._pending.popleft())
        for group in outputs.ignored_seq_groups:
            self._done[group.request_id] = 0
        return Step(metadata, outputs, list(outputs.scheduled_seq_groups), is_async)

    def complete(self, step: Step) -> dict[str, int]:
        """Second half: the forward pass has returned and its output is applied.

        Returns:
            Tokens of each request that finished in this step, handed to whoever makes this call.
        """
        if self._pending:
            self._process(
                self._pending.popleft()
            )  # while the forward pass runs, or because there was nothing to run
        if not step.outputs.is_empty():
            self._pending.append(step)
            if step.is_async:
                self._advance(step)
            else:
                self._process(self._pending.popleft())
        if not self.unfinished:
            while self._pending:
                self._process(self._pending.popleft())
        done, self._done = self._done, {}
        return done

    def step(self) -> dict[str, int]:
        """As `LLMEngine.step`."""
        return self.complete(self.schedule())

    def run(self, limit: int = 1000) -> dict[str, int]:
        """As `LLM._run_engine`: steps until nothing is left and collects whatever finishes.

        Raises:
            TimeoutError: There is still work after `limit` steps.
        """
        received: dict[str, int] = {}
        for _ in range(limit):
            if not self.unfinished:
                return received
            received |= self.step()
        raise TimeoutError(f"the engine still had work after {limit} steps")

    def in_flight(self) -> list[str]:
        """Ids of all requests that wait, run or are swapped out."""
        queues = (self.scheduler.waiting, self.scheduler.running, self.scheduler.swapped)
        return [group.request_id for queue in queues for group in queue]

    def abort(self, *request_ids: str) -> None:
        """As `LLMEngine.abort_request`."""
        self.scheduler.abort_seq_group(list(request_ids))

    def _advance(self, step: Step) -> None:
        for metadata, scheduled in zip(step.metadata, step.groups, strict=True):
            if not scheduled.seq_group.is_finished():
                _apply(scheduled.seq_group, metadata)

    def _process(self, step: Step) -> None:
        finished = [self._process_group(step, index) for index in range(len(step.groups))]
        if any(finished):
            self.scheduler.free_finished_seq_groups()

    def _process_group(self, step: Step, index: int) -> bool:
        metadata, group = step.metadata[index], step.groups[index].seq_group
        if group.is_finished():
            return False
        if not step.is_async:
            _apply(group, metadata)
        if not metadata.do_sample:
            return False
        sequence = group.get_seqs()[0]
        self._stop_checker.maybe_stop_sequence(sequence, 0, group.sampling_params)
        if not sequence.is_finished():
            return False
        self.scheduler.free_seq(sequence)
        self._done[group.request_id] = sequence.get_output_len()
        return True

    def _process_early(self, request_id: str) -> None:
        """The scheduler's callback: the output of one request is wanted before it is preempted."""
        if self._pending:
            step = self._pending[0]
            for index, metadata in enumerate(step.metadata):
                if metadata.request_id == request_id:
                    self._process_group(step, index)


def missing_code(*, method: str, statement: str) -> str | None:
    """Says why a failure cannot occur here: the scheduler, or the statement in it, is not in this release."""
    try:
        from vllm.core.scheduler import Scheduler
    except ModuleNotFoundError as error:
        if error.name and not error.name.startswith("vllm"):
            raise
        return f"the installed vLLM has no V0 scheduler ({error.name} is not there)"
    if statement in inspect.getsource(getattr(Scheduler, method)):
        return None
    return f"Scheduler.{method} of the installed vLLM has no `{statement}`"


def _apply(group: Any, metadata: Any) -> None:
    from vllm.sequence import Logprob

    group.update_num_computed_tokens(metadata.token_chunk_size or 0)
    if metadata.do_sample:
        group.get_seqs()[0].append_token_id(TOKEN, {TOKEN: Logprob(0.0)})


def _configs(setup: Setup) -> tuple[Any, Any]:
    from vllm.config import CacheConfig, SchedulerConfig

    scheduler = _build(
        SchedulerConfig,
        runner_type="generate",
        max_num_batched_tokens=setup.token_budget,
        max_num_seqs=setup.max_num_seqs,
        max_model_len=setup.max_model_len,
        enable_chunked_prefill=setup.chunked,
    )
    cache = _build(
        CacheConfig, block_size=setup.block_size, gpu_memory_utilization=0.5, swap_space=0, cache_dtype="auto"
    )
    cache.num_gpu_blocks, cache.num_cpu_blocks = setup.blocks, 0
    return scheduler, cache


def _build(cls: type, **options: Any) -> Any:
    known = inspect.signature(cls).parameters  # not cls.__init__: from 0.9 on these are pydantic dataclasses
    return cls(**{name: value for name, value in options.items() if name in known})
