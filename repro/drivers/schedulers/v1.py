"""Drive vLLM's unmodified V1 scheduler like `EngineCore`, with a simulated model runner.

- Unmodified: `vllm.v1.core.sched.scheduler.Scheduler` or, with asynchronous scheduling, `AsyncScheduler`; the
  `KVCacheManager` with its block pool; `Request`; `VllmConfig`.
- Simulated: the model runner and its output (`SimulatedRunner`).
- Mirrored: `step`, `step_with_batch_queue`, `add_request`, `abort_requests`, `reset_prefix_cache`, `pause_scheduler`
  and `resume_scheduler` of `EngineCore` (vLLM 0.31.0, vllm/v1/engine/core.py:630, 670, 486, 532, 831, 881, 911).

A step consists of two calls, `schedule` and `update`. As in vLLM, an abort is possible at any time; other calls are
possible only while the engine does not wait for a result. The caller of this module has to respect that.
"""

import functools
import tempfile
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from repro.drivers import stub_model
from repro.registry import BrokenInvariantError

SIMULATED = (
    "the model runner and its output (made-up tokens)",
    "the loop of EngineCore around the scheduler (mirrored)",
    "asynchronous scheduling is set after the CPU's platform has cleared it",
)
MODULES = ("vllm.config", "vllm.v1.core.sched.scheduler", "vllm.v1.core.sched.async_scheduler")
PAUSES = ("keep", "wait", "abort")
STOP = 99  # the stop token of requests that have one


@dataclass(frozen=True)
class V1Setup:
    """Engine configuration; lengths are in tokens.

    Args:
        asynchronous: Whether a step is scheduled while the previous step still runs (asynchronous scheduling).
        prefix_caching: Whether prompts share the KV cache blocks of equal prefixes.
        chunked: Whether chunked prefill is on.
        priority: Whether requests are scheduled by priority instead of by arrival.
        max_model_len: Maximum length of prompt and completion together.
        token_budget: Maximum number of tokens in a step (`max_num_batched_tokens`).
        max_num_seqs: Maximum number of requests that run at once.
        blocks: Number of KV cache blocks, one of which vLLM keeps for itself.
        block_size: Number of tokens in a block.
    """

    asynchronous: bool = False
    prefix_caching: bool = False
    chunked: bool = False
    priority: bool = False
    max_model_len: int = 24
    token_budget: int = 24
    max_num_seqs: int = 3
    blocks: int = 32
    block_size: int = 4


@dataclass(frozen=True)
class V1Request:
    """A request of a caller; lengths are in tokens.

    Args:
        id: Name of the request.
        prompt: Length of the prompt.
        max_tokens: Maximum number of tokens to generate.
        min_tokens: Minimum number of tokens to generate.
        stop_at: Number of the sampled token that is a stop token, at least `min_tokens` + 1; 0 for none.
        family: The prompt repeats token 1 + `family`; prompts of a family share a prefix.
        priority: Priority; with scheduling by priority, lower values are served first.
    """

    id: str
    prompt: int
    max_tokens: int
    min_tokens: int = 0
    stop_at: int = 0
    family: int = 0
    priority: int = 0


@functools.cache
def config(setup: V1Setup) -> Any:
    """Return vLLM's own `VllmConfig` for a setup.

    The model is a stub that is neither loaded nor called. vLLM's CPU platform turns asynchronous scheduling off; this
    function turns it on again, as on a GPU.
    """
    from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig

    with tempfile.TemporaryDirectory() as folder:
        stub_model.write_and_register(folder)
        model = ModelConfig(
            model=folder,
            tokenizer=folder,
            skip_tokenizer_init=True,
            dtype="float32",
            max_model_len=setup.max_model_len,
        )
    scheduler = SchedulerConfig(
        max_num_batched_tokens=setup.token_budget,
        max_num_seqs=setup.max_num_seqs,
        max_model_len=setup.max_model_len,
        is_encoder_decoder=False,
        enable_chunked_prefill=setup.chunked,
        policy="priority" if setup.priority else "fcfs",
        async_scheduling=False,
    )
    cache = CacheConfig(block_size=setup.block_size, enable_prefix_caching=setup.prefix_caching)
    built = VllmConfig(model_config=model, scheduler_config=scheduler, cache_config=cache)
    built.scheduler_config.async_scheduling = setup.asynchronous
    built.cache_config.num_gpu_blocks = setup.blocks
    _check_unchanged(built, setup)
    return built


def _check_unchanged(built: Any, setup: V1Setup) -> None:
    """Raise RuntimeError if vLLM changed a setting, because results are reported with the settings of `setup`."""
    scheduler, cache = built.scheduler_config, built.cache_config
    actual = {
        "chunked": scheduler.enable_chunked_prefill,
        "token_budget": scheduler.max_num_batched_tokens,
        "max_num_seqs": scheduler.max_num_seqs,
        "max_model_len": built.model_config.max_model_len,
        "block_size": cache.block_size,
        "prefix_caching": cache.enable_prefix_caching,
    }
    wrong = {name: value for name, value in actual.items() if value != getattr(setup, name)}
    if wrong:
        raise RuntimeError(f"vLLM changed what it was configured with: {wrong}, asked for {setup}")


def kv_cache_config(setup: V1Setup) -> Any:
    """Return vLLM's own `KVCacheConfig` with one group of full attention and no tensors."""
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

    spec = FullAttentionSpec(block_size=setup.block_size, num_kv_heads=1, head_size=1, dtype=torch.float32)
    return KVCacheConfig(
        num_blocks=setup.blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
    )


FIRST_TOKEN = 100  # sampled token number n is FIRST_TOKEN + n, so equal prompts get equal completions


class SimulatedRunner:
    """Simulated model runner, which samples invented tokens, and records and checks the content of each KV cache slot.

    The handling of a scheduler's output mirrors `GPUModelRunner._update_states` and its bookkeeping of sampled tokens
    (vLLM 0.31.0, vllm/v1/worker/gpu_model_runner.py:1192): new requests come with tokens and blocks, running requests
    get blocks appended, resumed requests get new blocks. A token is sampled for a request when the step reaches the end
    of the request's known tokens.

    Like a device, it runs steps in the order in which they are scheduled. A slot contains a hash of the prefix and of
    the weights' version from which its keys and values were computed. A step that reads a slot with other content is a
    broken invariant; a device would compute garbage without an error.

    Attributes:
        weights: Version of the weights; the caller increments it.
    """

    def __init__(self, block_size: int) -> None:
        self.weights = 0
        self._block_size = block_size
        self._requests: dict[str, V1Request] = {}
        self._tokens: dict[str, list[int]] = {}
        self._blocks: dict[str, list[int]] = {}
        self._last_batch: set[str] = set()
        self._slots: dict[tuple[int, int], int] = {}

    def expect(self, request: V1Request) -> None:
        """Register a request, so that the position of its stop token is known."""
        self._requests[request.id] = request

    def execute(self, scheduled: Any) -> Any:
        """Run a step.

        Args:
            scheduled: vLLM's own `SchedulerOutput`.

        Returns:
            vLLM's own `ModelRunnerOutput`.

        Raises:
            BrokenInvariantError: Data of the step are missing, or a token or slot is not the expected one.
        """
        from vllm.v1.outputs import ModelRunnerOutput

        for name in scheduled.finished_req_ids:
            self._tokens.pop(name, None)
            self._blocks.pop(name, None)
        computed = self._update(scheduled)
        counts: dict[str, int] = scheduled.num_scheduled_tokens
        missing = sorted(set(counts) - set(computed))
        if missing:
            raise BrokenInvariantError("each scheduled request has data", f"no data for {' '.join(missing)}")
        for name, count in counts.items():
            self._write(name, computed[name], computed[name] + count)
        for name, count in counts.items():
            self._check_read(name, computed[name] + count)
        sampled = {name: self._sample(name, computed[name] + count) for name, count in counts.items()}
        self._last_batch = set(counts)
        return ModelRunnerOutput(
            req_ids=list(sampled),
            req_id_to_index={name: index for index, name in enumerate(sampled)},
            sampled_token_ids=list(sampled.values()),
        )

    def _update(self, scheduled: Any) -> dict[str, int]:
        """Store tokens and blocks; return for each request the number of tokens that are computed so far."""
        computed: dict[str, int] = {}
        for new in scheduled.scheduled_new_reqs:
            self._tokens[new.req_id] = list(new.prefill_token_ids or new.prompt_token_ids)
            self._blocks[new.req_id] = list(new.block_ids[0])
            computed[new.req_id] = new.num_computed_tokens
        cached = scheduled.scheduled_cached_reqs
        for index, name in enumerate(cached.req_ids):
            computed[name] = cached.num_computed_tokens[index]
            self._update_tokens(name, cached.num_output_tokens[index], cached.all_token_ids.get(name))
            blocks = cached.new_block_ids[index]
            if name in cached.resumed_req_ids:
                self._blocks[name] = list(blocks[0])
            elif blocks is not None:
                self._blocks[name] += blocks[0]
        return computed

    def _update_tokens(self, name: str, outputs: int, known: Iterable[int] | None) -> None:
        """Store the scheduler's tokens for a request that was not in the last step; cut tokens that it dropped."""
        if known is not None and name not in self._last_batch:
            self._tokens[name] = list(known)
        del self._tokens[name][self._requests[name].prompt + outputs :]

    def _sample(self, name: str, end: int) -> list[int]:
        """Return the token that a step samples for a request; empty if the step ends before the known tokens."""
        tokens, request = self._tokens[name], self._requests[name]
        if end < len(tokens):
            return []
        number = len(tokens) - request.prompt + 1
        # The real sampler never samples a stop token below min_tokens.
        stop_at = max(request.stop_at, request.min_tokens + 1) if request.stop_at else 0
        token = STOP if number == stop_at else FIRST_TOKEN + number
        tokens.append(token)
        return [token]

    def _prefixes(self, name: str, end: int) -> list[int]:
        """Return the expected content of the first `end` slots: a hash of the weights' version and the prefix."""
        prefixes, so_far = [], hash(self.weights)
        for token in self._tokens[name][:end]:
            so_far = hash((so_far, token))
            prefixes.append(so_far)
        return prefixes

    def _slot(self, name: str, position: int) -> tuple[int, int]:
        """Return (block, offset) of a token's KV cache slot; raise BrokenInvariantError if no block covers it."""
        index, offset = divmod(position, self._block_size)
        if index >= len(self._blocks[name]):
            detail = f"{name} computes token {position + 1} and has {len(self._blocks[name])} blocks"
            raise BrokenInvariantError("blocks cover what is computed", detail)
        return self._blocks[name][index], offset

    def _write(self, name: str, start: int, end: int) -> None:
        """Fill the slots of computed tokens; raise BrokenInvariantError beyond the request's tokens."""
        if end > len(self._tokens[name]):
            detail = f"{name} has {len(self._tokens[name])} tokens and is to compute up to {end}"
            raise BrokenInvariantError("computed tokens stay within the request", detail)
        for position, prefix in list(enumerate(self._prefixes(name, end)))[start:]:
            self._slots[self._slot(name, position)] = prefix

    def _check_read(self, name: str, end: int) -> None:
        """Raise BrokenInvariantError if a slot that the step reads has other content than expected."""
        for position, prefix in enumerate(self._prefixes(name, end)):
            if self._slots.get(self._slot(name, position)) != prefix:
                detail = f"slot of token {position + 1} of {name} holds something else"
                raise BrokenInvariantError("a step reads what was computed for it", detail)


class V1Engine:
    """A V1 engine: the real scheduler, a simulated runner, and a mirror of the engine's loop."""

    def __init__(self, setup: V1Setup) -> None:
        from vllm.v1.structured_output import StructuredOutputManager

        vllm_config = config(setup)
        self.setup = setup
        self.scheduler = vllm_config.scheduler_config.get_scheduler_cls()(
            vllm_config=vllm_config,
            kv_cache_config=kv_cache_config(setup),
            structured_output_manager=StructuredOutputManager(vllm_config),
            block_size=setup.block_size,
            hash_block_size=setup.block_size,
        )
        self.runner = SimulatedRunner(setup.block_size)
        self.most_in_flight = int(vllm_config.max_concurrent_batches)
        self.in_flight: deque[tuple[Any, Any]] = deque()  # (the scheduler's output, the runner's output)
        self.requests: dict[str, V1Request] = {}
        self.tokens: dict[str, list[int]] = {}  # by request, as delivered
        self.ends: dict[str, list[str]] = {}  # by request, the reasons for which it ended, as delivered
        self.aborted: set[str] = set()
        self.pause_mode = ""
        self.waited_for: set[str] = set()  # requests that ran when a pause began that waits for them
        self._hasher = _hasher(setup) if setup.prefix_caching else None

    def add(self, request: V1Request) -> None:
        """Add a request like `EngineCore.add_request`."""
        from vllm import SamplingParams
        from vllm.v1.request import Request

        params = SamplingParams(
            max_tokens=request.max_tokens,
            min_tokens=request.min_tokens,
            stop_token_ids=[STOP] if request.stop_at else None,
            ignore_eos=True,
        )
        self.requests[request.id] = request
        self.tokens[request.id], self.ends[request.id] = [], []
        self.runner.expect(request)
        self.scheduler.add_request(
            Request(
                request.id,
                [1 + request.family] * request.prompt,
                params,
                None,
                arrival_time=float(len(self.requests)),
                priority=request.priority,
                block_hasher=self._hasher,
            )
        )

    def abort(self, names: Iterable[str]) -> None:
        """Abort requests like `EngineCore.abort_requests`; the aborting client receives nothing more."""
        from vllm.v1.request import RequestStatus

        names = list(names)
        self.aborted.update(names)
        self.scheduler.finish_requests(names, RequestStatus.FINISHED_ABORTED)

    def schedule(self) -> Any:
        """Run the first half of a step: schedule the step, and pass it to the runner."""
        scheduled = self.scheduler.schedule()
        self.in_flight.append((scheduled, self.runner.execute(scheduled)))
        return scheduled

    def update(self) -> None:
        """Run the second half of a step: deliver the oldest result to its requests."""
        scheduled, output = self.in_flight.popleft()
        self.deliver(self.scheduler.update_from_output(scheduled, output))

    def deliver(self, outputs: Any) -> None:
        """Record the tokens and ends that the clients get."""
        for client in outputs.values():
            for output in client.outputs:
                self.tokens[output.request_id] += output.new_token_ids
                if output.finish_reason is not None:
                    self.ends[output.request_id].append(str(output.finish_reason))

    def reset(self, *, running: bool) -> bool:
        """Reset the prefix cache like `EngineCore.reset_prefix_cache`; return whether it was reset.

        After a reset the weights count as new, so that a step that reads an old block breaks an invariant.

        Args:
            running: Whether running requests are preempted first.
        """
        if running:
            self.waited_for.clear()  # clearing a request's cache during a pause is a caller's fault, not upstream's
        done = bool(self.scheduler.reset_prefix_cache(running, True))
        if done:
            self.runner.weights += 1
        return done

    def pause(self, mode: str) -> None:
        """Pause like `EngineCore.pause_scheduler`, without its reset of the cache; `mode` is one of PAUSES."""
        from vllm.v1.core.sched.interface import PauseState

        self.pause_mode = mode
        if mode == "wait":
            self.waited_for = {request.request_id for request in self.scheduler.running}
        if mode == "abort":
            self.abort(self.unfinished())
        self.scheduler.set_pause_state(PauseState.PAUSED_ALL if mode == "keep" else PauseState.PAUSED_NEW)

    def resume(self) -> None:
        """Resume like `EngineCore.resume_scheduler`."""
        from vllm.v1.core.sched.interface import PauseState

        self.pause_mode = ""
        self.waited_for.clear()
        self.scheduler.set_pause_state(PauseState.UNPAUSED)

    def unfinished(self) -> list[str]:
        """Return the requests that were neither finished nor aborted."""
        return [name for name in self.requests if not self.ends[name] and name not in self.aborted]

    def next_half(self) -> str:
        """Return the next call of `EngineCore`'s loop, "schedule" or "update"; "" if there is nothing to do.

        The loop fills its pipeline before it waits for the oldest result.
        """
        if self.scheduler.has_requests() and len(self.in_flight) < self.most_in_flight:
            return "schedule"
        return "update" if self.in_flight else ""


def _hasher(setup: V1Setup) -> Any:
    """Return vLLM's own block hasher, made like in `EngineCore.__init__`."""
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash

    hash_function = get_hash_fn_by_name("sha256")
    init_none_hash(hash_function)
    return get_request_block_hasher(setup.block_size, hash_function)
