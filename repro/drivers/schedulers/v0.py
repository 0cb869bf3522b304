"""Drive vLLM's unmodified V0 scheduler like `LLMEngine`, with a simulated forward pass.

- Unmodified: `vllm.core.scheduler.Scheduler` with its block manager; `Sequence` and `SequenceGroup`; the output
  processor (`SingleStepOutputProcessor`) with its `StopChecker`; `LLMEngine`'s check of a new prompt (imitated for its
  length if llm_engine.py cannot be imported).
- Simulated: the forward pass; every sampled token is `TOKEN`.
- Mirrored, so that all releases can be driven alike without a device: the control flow of `LLMEngine.step`,
  `_process_model_outputs`, `_advance_to_next_step` and `_add_processed_request` (in 0.7.3
  vllm/engine/llm_engine.py:1262, 983, 1218 and 550). Their effect on the scheduler is the same from 0.6.6 to 0.10.2 for
  requests with one completion and one step per schedule. tests/repro/test_driver_against_engine.py compares this
  driver with the whole engine on random requests.

A step is a generator that is suspended where the forward pass runs. While it is suspended, another thread may call the
engine, the device may raise an exception (`throw`), or a coroutine may be cancelled (`close`). So a race is a fixed
order of calls. `count_answers` makes the tally of an attempt.
"""

import inspect
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from repro import registry, upstream
from repro.registry import InapplicableError, Tally

TOKEN = 7
SIMULATED = (
    f"the forward pass (every sampled token is {TOKEN})",
    "the loop of LLMEngine around the scheduler (mirrored)",
)
MODULES = ("vllm.config", "vllm.inputs", "vllm.core.scheduler", "vllm.engine.output_processor.single_step")


def repro(code: str, assertion: str, **parts: Any) -> None:
    """Register the repro of an assertion in vLLM's V0 scheduler; `parts` are other arguments of `registry.repro`."""
    registry.repro(
        code,
        assertion=assertion,
        distributions=upstream.VLLM,
        modules=MODULES,
        # It has the engine's check of a prompt. In 0.10.2 it needs openai_harmony, which the scheduler does not need.
        helpful_modules=("vllm.engine.llm_engine",),
        simulated=SIMULATED,
        inapplicable_reason=lambda: upstream.explain_missing_code("vllm/core/scheduler.py", assertion),
        **parts,
    )


@dataclass(frozen=True)
class V0Setup:
    """Engine configuration; lengths are in tokens.

    Args:
        chunked: Whether chunked prefill is on.
        async_output: Whether a step's output is processed during the next step (asynchronous output processing).
        max_model_len: Maximum length of prompt and completion together.
        token_budget: Maximum number of tokens in a step (`max_num_batched_tokens`).
        max_num_seqs: Maximum number of requests that run at once.
        blocks: Number of KV cache blocks.
        block_size: Number of tokens in a block.
    """

    chunked: bool = False
    async_output: bool = True
    max_model_len: int = 64
    token_budget: int = 64
    max_num_seqs: int = 8
    blocks: int = 64
    block_size: int = 16


@dataclass(frozen=True)
class SchedulerRequest:
    """A request of a caller; lengths are in tokens."""

    id: str
    prompt: int
    max_tokens: int
    min_tokens: int = 0


@dataclass(frozen=True)
class FinishedRequest:
    """A finished request that a step returned, with its number of tokens."""

    id: str
    tokens: int


class ForwardPassError(Exception):
    """Raised where a simulated forward pass fails, for example because memory ran out."""


class RefusedRequestError(InapplicableError):
    """Raised if `LLMEngine`'s own check refuses a prompt, so that it does not reach the scheduler."""


def prompt_inputs(length: int) -> Any:
    """Return a prompt of `length` tokens as vLLM's own input object; `token_inputs` exists since vLLM 0.6.4."""
    import vllm.inputs

    ids = [1] * length
    if hasattr(vllm.inputs, "token_inputs"):
        return vllm.inputs.token_inputs(ids)
    return vllm.inputs.LLMInputs(prompt_token_ids=ids)


def check_prompt(length: int, max_model_len: int) -> None:
    """Check a prompt of `length` tokens with `LLMEngine`'s own method, on an object with the attributes that it reads.

    If the method cannot be imported, its check of the length is imitated, if its source contains one.

    Raises:
        RefusedRequestError: The prompt is refused.
    """
    try:
        from vllm.engine.llm_engine import LLMEngine
    except ImportError as error:
        source = upstream.source("vllm/engine/llm_engine.py") or ""
        if length > max_model_len and "longer than the maximum model length of" in source:
            message = f"LLMEngine refuses the prompt by its source; importing it failed: {error}"
            raise RefusedRequestError(message) from error
        return
    model = SimpleNamespace(max_model_len=max_model_len, is_multimodal_model=False)
    # `is_encoder_decoder_model` is needed up to 0.6.3.
    engine = SimpleNamespace(model_config=model, tokenizer=None, is_encoder_decoder_model=lambda: False)
    for name in ("_validate_model_input", "_validate_model_inputs"):
        if hasattr(LLMEngine, name):
            setattr(engine, name, getattr(LLMEngine, name).__get__(engine))
    try:
        check = engine._validate_model_inputs  # noqa: SLF001 - upstream's own check
        lora = [None] * (len(inspect.signature(check).parameters) - 1)  # a second argument since 0.6.4
        check(prompt_inputs(length), *lora)
    except ValueError as error:
        raise RefusedRequestError(f"LLMEngine refuses the prompt, before the scheduler: {error}") from error


def configs(setup: V0Setup) -> tuple[Any, Any]:
    """Return vLLM's own `SchedulerConfig` and `CacheConfig` for a setup."""
    from vllm.config import CacheConfig, SchedulerConfig

    scheduler = _build(
        SchedulerConfig,
        task="generate",  # the option's name in 0.6.4; the next line has the name since 0.6.5
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


def _build(cls: Any, **options: Any) -> Any:
    """Create an object with those of the options that its class has."""
    known = inspect.signature(cls).parameters  # not cls.__init__: from 0.9 on these are pydantic dataclasses
    return cls(**{name: value for name, value in options.items() if name in known})


@dataclass
class _Pending:
    """Unprocessed output of a step, like an entry of `SchedulerContext.output_queue`."""

    metadata: list[Any]
    scheduled: Any
    is_async: bool
    done: set[int] = field(default_factory=set)


class V0Engine:
    """A V0 engine: the real scheduler, and a mirror of the engine's loop around the scheduler."""

    def __init__(self, setup: V0Setup) -> None:
        from vllm.core.scheduler import Scheduler
        from vllm.engine.output_processor.single_step import SingleStepOutputProcessor
        from vllm.engine.output_processor.stop_checker import StopChecker

        scheduler_config, cache_config = configs(setup)
        self.setup = setup
        self._queue: deque[_Pending] = deque()
        # As in upstream's engine, all callers share one list, which each step clears.
        self._outputs: list[FinishedRequest] = []
        self._count = 0
        callback = self._process if setup.async_output else None
        self.scheduler = Scheduler(scheduler_config, cache_config, None, 1, callback)
        checker = StopChecker(setup.max_model_len, lambda _sequence: None)
        self._processor = SingleStepOutputProcessor(scheduler_config, None, [self.scheduler], None, checker)

    def add(self, request: SchedulerRequest) -> None:
        """Add a request like `LLMEngine.add_request`.

        Raises:
            RefusedRequestError: The engine's own check refuses the prompt.
        """
        from vllm import SamplingParams
        from vllm.sequence import Sequence, SequenceGroup

        params = SamplingParams(max_tokens=request.max_tokens, min_tokens=request.min_tokens, ignore_eos=True)
        check_prompt(request.prompt, self.setup.max_model_len)
        sequence = Sequence(self._count, prompt_inputs(request.prompt), self.setup.block_size, 0)
        self._count += 1
        group = SequenceGroup(request.id, [sequence], arrival_time=0.0, sampling_params=params)
        self.scheduler.add_seq_group(group)

    @property
    def unfinished(self) -> bool:
        """Whether there are unfinished requests, like `LLMEngine.has_unfinished_requests`."""
        return bool(self.scheduler.has_unfinished_seqs())

    def in_flight(self) -> list[str]:
        """Return the ids of all requests that wait, run or are swapped out."""
        queues = (self.scheduler.waiting, self.scheduler.running, self.scheduler.swapped)
        return [group.request_id for queue in queues for group in queue]

    def abort(self, *request_ids: str) -> None:
        """Abort requests like `LLMEngine.abort_request`."""
        self.scheduler.abort_seq_group(list(request_ids))

    def step(self) -> Generator[None, None, list[FinishedRequest]]:
        """Step like `LLMEngine.step`; the generator is suspended where the forward pass runs.

        Returns:
            The finished requests; the list is the engine's own, and the next step clears it.
        """
        self._outputs.clear()
        metadata, scheduled, is_async = self.scheduler.schedule()
        self.scheduler.get_and_reset_finished_requests_ids()
        if not is_async:
            self._process()
        runs = not scheduled.is_empty()
        if runs:
            yield
        if is_async or not runs:
            self._process()  # the model runner's callback while the device works, or there was nothing to run
        self._queue.append(_Pending(metadata, scheduled, is_async))
        if is_async and runs:
            self._advance(self._queue[-1])
        if not is_async:
            self._process()
        if not self.unfinished:
            self._process()
        return self._outputs

    def leaked_blocks(self) -> int:
        """Return the number of KV cache blocks that are taken: 0 once all requests are drained, unless some leaked."""
        return self.setup.blocks - int(self.scheduler.block_manager.get_num_free_gpu_blocks())

    def parked_sequences(self) -> int:
        """Return the number of sequences listed as stopped: 0 once all requests are drained, unless it is a leak."""
        return len(self.scheduler._async_stopped)  # noqa: SLF001 - this list is what SCH002 is about

    def _advance(self, pending: _Pending) -> None:
        """Append tokens before the output is processed, like `LLMEngine._advance_to_next_step`."""
        for metadata, item in zip(pending.metadata, pending.scheduled.scheduled_seq_groups, strict=False):
            group = item.seq_group
            if not group.is_finished():
                group.update_num_computed_tokens(metadata.token_chunk_size or 0)
                if metadata.do_sample:
                    group.seqs[0].append_token_id(TOKEN, _logprobs())

    def _process(self, request_id: str | None = None) -> None:
        """Process outputs like `LLMEngine._process_model_outputs`.

        With a `request_id`, process only this request's output, because the request is about to be preempted.
        """
        if not self._queue:
            return
        pending = self._queue[0] if request_id else self._queue.popleft()
        if len(pending.metadata) != len(pending.scheduled.scheduled_seq_groups):
            raise RuntimeError("LLMEngine's sanity check: metadata and scheduled groups differ in number")
        finished = False
        for index, metadata in enumerate(pending.metadata):
            if index not in pending.done and request_id in {None, metadata.request_id}:
                finished |= self._process_group(pending, index)
                pending.done.add(index)
        if request_id:
            return
        if finished:
            self.scheduler.free_finished_seq_groups()
        # Mostly empty; a request that was preempted after it exceeded the limit returns with its tokens.
        self._outputs += [_completion(group) for group in pending.scheduled.ignored_seq_groups]

    def _process_group(self, pending: _Pending, index: int) -> bool:
        """Process the output of the request at an index; return whether the request finished now."""
        from vllm.sequence import CompletionSequenceGroupOutput, SequenceOutput

        metadata, group = pending.metadata[index], pending.scheduled.scheduled_seq_groups[index].seq_group
        if group.is_finished():
            return False
        if not pending.is_async:
            group.update_num_computed_tokens(metadata.token_chunk_size or 0)
        if metadata.do_sample:
            sample = SequenceOutput(group.seqs[0].seq_id, TOKEN, _logprobs())
            output = CompletionSequenceGroupOutput([sample], None)
            self._processor.process_outputs(group, [output], pending.is_async)
        if group.is_finished():
            self._outputs.append(_completion(group))
            return True
        return False


def count_answers(
    engines: Sequence[V0Engine], calls: Sequence[tuple[Sequence[SchedulerRequest], Sequence[FinishedRequest]]]
) -> Tally:
    """Return the tally of calls, each given as its requests and the completions that were returned to it.

    The tally's note names empty completions, and sequences that grew past `max_model_len` of the default `V0Setup`
    by more than one token.
    """
    limit, stray = V0Setup.max_model_len, 0
    due: dict[str, int | None] = {}
    received, notes = [], []
    for requests, completions in calls:
        by_id = {request.id: request for request in requests}
        # A request that can't have all its tokens may get any number.
        due |= {
            item.id: item.max_tokens if item.prompt + item.max_tokens <= limit else None for item in requests
        }
        for done in completions:
            if done.id not in by_id:
                stray += 1
                continue
            received.append((done.id, done.tokens))
            length = by_id[done.id].prompt + done.tokens
            if not done.tokens:
                notes.append(f"{done.id} came back empty")
            elif length > limit + 1:
                notes.append(f"{done.id} reached {length} of {limit} tokens, where a device may fail")
    blocks = sum(engine.leaked_blocks() for engine in engines)
    parked = sum(engine.parked_sequences() for engine in engines)
    return Tally(due, received, stray, blocks, parked, note="; ".join(notes))


def _completion(group: Any) -> FinishedRequest:
    return FinishedRequest(group.request_id, int(group.seqs[0].get_output_len()))


def _logprobs() -> dict[int, Any]:
    from vllm.sequence import Logprob

    return {TOKEN: Logprob(0.0)}
