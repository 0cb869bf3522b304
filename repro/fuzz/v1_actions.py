"""Define the fuzzer's actions on vLLM's unmodified V1 scheduler: valid calls, with a check of invariants after each.

`V1Actions.steps` lists the calls with the condition under which each is valid and the ranges of its arguments.
"""

from collections.abc import Callable, Mapping
from typing import ClassVar

from repro.drivers.schedulers.v1 import PAUSES, V1Engine, V1Request, V1Setup
from repro.fuzz import v1_invariants
from repro.fuzz.stories import EngineActions, Step, StepKind
from repro.registry import BrokenInvariantError

# The longest sequence of the engine, in tokens, and the tokens of a KV cache block.
LIMIT, _BLOCK = V1Setup.max_model_len, V1Setup.block_size
_MOST_HALF_STEPS = 1000  # to drain the engine: far more than these requests can need


class V1Actions(EngineActions):
    """Actions on a small V1 engine.

    With `chunked` a step computes at most LIMIT / 3 tokens. With `tiny_cache` the KV cache has room for one sequence of
    maximum length, otherwise for all. A half-step is one `schedule` or one `update` of the engine.
    """

    settings = ("asynchronous", "prefix_caching", "chunked", "priority", "tiny_cache")
    length = 14
    steps: ClassVar[Mapping[str, StepKind]] = {
        "drain": StepKind(lambda self: self.accepts_calls and self.busy),
        "go": StepKind(lambda self: self.engine.next_half(), steps=(1, 40)),
        # These are the engine's limits for a request.
        "add": StepKind(
            lambda self: self.accepts_calls,
            prompt=(1, LIMIT - 1),
            max_tokens=(1, LIMIT),
            min_tokens=(0, 6),
            stop_at=(0, 6),
            family=(0, 1),
            priority=(0, 2),
        ),
        "schedule": StepKind(lambda self: self.engine.next_half() == "schedule"),
        "update": StepKind(lambda self: self.engine.next_half() == "update"),
        "abort": StepKind(lambda self: self.engine.unfinished(), which=(0, 3)),
        "reset": StepKind(lambda self: self.accepts_calls and self.busy, running=[False, True]),
        "pause": StepKind(
            lambda self: self.accepts_calls and self.busy and not self.engine.pause_mode, mode=list(PAUSES)
        ),
        "resume": StepKind(lambda self: self.accepts_calls and self.engine.pause_mode),
    }
    make_engine: Callable[[V1Setup], V1Engine] = V1Engine

    def __init__(self, *, chunked: bool = False, tiny_cache: bool = False, **flags: bool) -> None:
        super().__init__()
        budget = LIMIT // 3 if chunked else LIMIT
        blocks = LIMIT // _BLOCK + 1 if tiny_cache else V1Setup.blocks
        setup = V1Setup(chunked=chunked, token_budget=budget, blocks=blocks, **flags)
        self.engine = type(self).make_engine(setup)

    @property
    def accepts_calls(self) -> bool:
        """Whether the engine's loop accepts calls now: fewer steps than its limit are in flight."""
        return len(self.engine.in_flight) < self.engine.most_in_flight

    @property
    def busy(self) -> bool:
        """Whether the engine has work, or waits for a result."""
        return bool(self.engine.unfinished() or self.engine.in_flight)

    def state(self) -> str:
        """Return a line with the requests that run and wait, and the number of steps in flight."""
        scheduler, flying = self.engine.scheduler, len(self.engine.in_flight)
        queues = {"running": scheduler.running, "waiting": scheduler.waiting}
        queues["waiting with blocks"] = scheduler.kv_holding_waiting
        names = {name: " ".join(request.request_id for request in queue) for name, queue in queues.items()}
        parts = [f"{name}: {listed}" for name, listed in names.items() if listed]
        return "; ".join([*parts, *([f"steps in flight: {flying}"] if flying else [])]) or "nothing in flight"

    def do(self, step: Step) -> None:
        """Do a step, then check the invariants that hold between two calls."""
        super().do(step)
        v1_invariants.check(self.engine)

    def do_add(self, max_tokens: int, min_tokens: int = 0, **request: int) -> None:
        """Add a request.

        Prompts of one `family` share a prefix. The sampled token with the number `stop_at` is a stop token.
        """
        self.count += 1
        least = min(min_tokens, max_tokens)
        self.engine.add(V1Request(f"r{self.count}", max_tokens=max_tokens, min_tokens=least, **request))

    def do_schedule(self) -> None:
        """Schedule an engine step, pass it to the model runner, and check its limits."""
        scheduled = self.engine.schedule()
        v1_invariants.check_step(self.engine, scheduled)
        self.tally["steps of the engine"] += 1
        self.tally["tokens scheduled"] += scheduled.total_num_scheduled_tokens
        self.tally["requests preempted"] += len(scheduled.preempted_req_ids or ())

    def do_update(self) -> None:
        """Update the scheduler from the output of the oldest step in flight."""
        self.engine.update()

    def do_go(self, steps: int) -> bool:
        """Run at most `steps` half-steps: one `schedule` or one `update` each.

        Returns:
            Whether the engine had nothing left to do before it had done all of them.
        """
        for _ in range(steps):
            half = self.engine.next_half()
            if not half:
                return True
            getattr(self, f"do_{half}")()
            v1_invariants.check(self.engine)
        return False

    def do_abort(self, which: int) -> None:
        """Abort an unfinished request."""
        names = self.engine.unfinished()
        self.engine.abort([names[which % len(names)]])

    def do_reset(self, running: bool) -> None:
        """Reset the prefix cache if no request holds a block; with `running`, requests are preempted first."""
        if self.engine.reset(running=running):
            self.tally["caches reset"] += 1

    def do_pause(self, mode: str) -> None:
        """Pause the engine."""
        self.engine.pause(mode)

    def do_resume(self) -> None:
        """Resume the engine."""
        self.engine.resume()

    def do_drain(self) -> None:
        """Resume the engine, step it until it has nothing to do, and check that no request or block is left."""
        self.engine.resume()
        if not self.do_go(_MOST_HALF_STEPS):
            remaining = " ".join(self.engine.unfinished())
            raise BrokenInvariantError(
                "every request ends", f"{remaining}: still there after {_MOST_HALF_STEPS} half-steps"
            )
        self.tally["requests ended"] += sum(bool(ends) for ends in self.engine.ends.values())
        v1_invariants.check_end(self.engine)
