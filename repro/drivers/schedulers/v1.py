"""Drives the real V1 scheduler of the installed vLLM as `EngineCore` does, the model runner aside.

Real, as released: `vllm.v1.core.sched.scheduler.Scheduler` or, with asynchronous scheduling, `AsyncScheduler`; the
`KVCacheManager` with its block pool; `Request`; `VllmConfig`.

Simulated: the model runner and what it returns (`runner_v1`). Mirrored: `EngineCore.step` and
`step_with_batch_queue`, `add_request`, `abort_requests`, `reset_prefix_cache`, `pause_scheduler`, `resume_scheduler`
(vLLM 0.31.0, vllm/v1/engine/core.py:630, 670, 486, 532, 831, 881, 911). A step is two calls here, schedule and
update, so that what other callers do falls where it may fall: aborts at any time, everything else while the engine
does not wait for a result.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from repro.drivers.schedulers.runner_v1 import Runner
from repro.drivers.schedulers.v1_setup import STOP, V1Request, V1Setup, config, kv_cache_config

SIMULATED = (
    "the model runner and its output (made-up tokens)",
    "the loop of EngineCore around the scheduler (mirrored)",
    "asynchronous scheduling is set after the CPU's platform has cleared it",
)
MODULES = ("vllm.config", "vllm.v1.core.sched.scheduler", "vllm.v1.core.sched.async_scheduler")
PAUSES = ("keep", "wait", "abort")


class V1Engine:
    """One engine: the real scheduler, and the loop around it."""

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
        self.runner = Runner(setup.block_size)
        self.most_in_flight = int(vllm_config.max_concurrent_batches)
        self.in_flight: deque[tuple[Any, Any]] = deque()  # (what was scheduled, what the runner made of it)
        self.requests: dict[str, V1Request] = {}
        self.tokens: dict[str, list[int]] = {}  # by request, as delivered
        self.ends: dict[str, list[str]] = {}  # by request, the reasons for which it ended, as delivered
        self.aborted: set[str] = set()
        self.pause_mode = ""
        self.waited_for: set[str] = set()  # ran when a pause began that waits for them
        self._hasher = _hasher(setup) if setup.prefix_caching else None

    def add(self, request: V1Request) -> None:
        """As `EngineCore.add_request`."""
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
        """As `EngineCore.abort_requests`; who aborts gets nothing more."""
        from vllm.v1.request import RequestStatus

        names = list(names)
        self.aborted.update(names)
        self.scheduler.finish_requests(names, RequestStatus.FINISHED_ABORTED)

    def schedule(self) -> Any:
        """The first half of a step: it is scheduled, and handed to the runner."""
        scheduled = self.scheduler.schedule()
        self.in_flight.append((scheduled, self.runner.execute(scheduled)))
        return scheduled

    def update(self) -> None:
        """The second half: the oldest result comes back, and goes to whom it is due."""
        scheduled, output = self.in_flight.popleft()
        self.deliver(self.scheduler.update_from_output(scheduled, output))

    def deliver(self, outputs: Any) -> None:
        """Keeps what the clients get."""
        for client in outputs.values():
            for output in client.outputs:
                self.tokens[output.request_id] += output.new_token_ids
                if output.finish_reason is not None:
                    self.ends[output.request_id].append(str(output.finish_reason))

    def reset(self, *, running: bool) -> bool:
        """As `EngineCore.reset_prefix_cache` after new weights: where it succeeds, nothing old may be read again."""
        if running:
            self.waited_for.clear()  # whoever takes a request's cache away during a pause asked for what follows
        done = bool(self.scheduler.reset_prefix_cache(running, True))
        if done:
            self.runner.weights += 1
        return done

    def pause(self, mode: str) -> None:
        """As `EngineCore.pause_scheduler` without clearing the cache, which is a call of its own here."""
        from vllm.v1.core.sched.interface import PauseState

        self.pause_mode = mode
        if mode == "wait":
            self.waited_for = {request.request_id for request in self.scheduler.running}
        if mode == "abort":
            self.abort(self.unfinished())
        self.scheduler.set_pause_state(PauseState.PAUSED_ALL if mode == "keep" else PauseState.PAUSED_NEW)

    def resume(self) -> None:
        """As `EngineCore.resume_scheduler`."""
        from vllm.v1.core.sched.interface import PauseState

        self.pause_mode = ""
        self.waited_for.clear()
        self.scheduler.set_pause_state(PauseState.UNPAUSED)

    @property
    def has_work(self) -> bool:
        """Whether there is anything to schedule."""
        return bool(self.scheduler.has_requests())

    def unfinished(self) -> list[str]:
        """Returns the requests that were neither finished nor aborted."""
        return [name for name in self.requests if not self.ends[name] and name not in self.aborted]

    def due(self) -> str:
        """Returns the half of a step that `EngineCore`'s loop comes to now, "" if it has nothing to do.

        It fills its pipeline before it waits for the oldest result.
        """
        if self.has_work and len(self.in_flight) < self.most_in_flight:
            return "schedule"
        return "update" if self.in_flight else ""


def _hasher(setup: V1Setup) -> Any:
    """Returns vLLM's own block hasher, as `EngineCore.__init__` makes it."""
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash

    hash_function = get_hash_fn_by_name("sha256")
    init_none_hash(hash_function)
    return get_request_block_hasher(setup.block_size, hash_function)
