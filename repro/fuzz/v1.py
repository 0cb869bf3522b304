"""What can be done to an engine with the V1 scheduler, all of it lawful; each step is followed by every check."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from repro.base import BrokenInvariantError
from repro.drivers.schedulers.v1 import PAUSES, V1Engine
from repro.drivers.schedulers.v1_setup import V1Request, V1Setup
from repro.fuzz import v1_invariants
from repro.fuzz.stories import EngineActions, Step

LIMIT = 24  # tokens of a sequence
_BLOCK = 4
_MOST_STEPS = 1000  # to drain: far more than these requests can need


class V1Actions(EngineActions):
    """An engine with the V1 scheduler, its requests, and what came back. Everything is small.

    With `chunked` a step holds a third of the longest prompt; with `tiny_cache` the KV cache has room for one whole
    sequence, instead of for all.
    """

    about = (
        f"at most {LIMIT} tokens in a sequence and in a step, {LIMIT // 3} in a step of chunked prefill, "
        f"KV blocks of {_BLOCK}"
    )
    settings = ("asynchronous", "prefix_caching", "chunked", "priority", "tiny_cache")
    draws: ClassVar[Mapping[str, Mapping[str, Sequence[Any]]]] = {
        "drain": {},
        "go": {"steps": (1, 40)},
        # Within the limits that the engine sets a request.
        "add": {
            "prompt": (1, LIMIT - 1),
            "max_tokens": (1, LIMIT),
            "min_tokens": (0, 6),
            "stop_at": (0, 6),
            "family": (0, 1),
            "priority": (0, 2),
        },
        "schedule": {},
        "update": {},
        "abort": {"which": (0, 3)},
        "reset": {"running": [False, True]},
        "pause": {"mode": list(PAUSES)},
        "resume": {},
    }
    make_engine: Callable[[V1Setup], V1Engine] = V1Engine

    def __init__(self, *, chunked: bool = False, tiny_cache: bool = False, **flags: bool) -> None:
        super().__init__()
        setup = V1Setup(
            chunked=chunked,
            max_model_len=LIMIT,
            token_budget=LIMIT // 3 if chunked else LIMIT,
            max_num_seqs=3,
            blocks=LIMIT // _BLOCK + 1 if tiny_cache else 32,
            block_size=_BLOCK,
            **flags,
        )
        self.engine = type(self).make_engine(setup)

    def can(self, name: str) -> bool:
        """Whether the engine's loop could come to it now. While it waits for a result, it takes nothing but aborts."""
        engine = self.engine
        listens = len(engine.in_flight) < engine.most_in_flight
        busy = bool(engine.unfinished() or engine.in_flight)
        return {
            "add": listens,
            "schedule": engine.due() == "schedule",
            "update": engine.due() == "update",
            "go": bool(engine.due()),
            "abort": bool(engine.unfinished()),
            "reset": listens and busy,
            "pause": listens and busy and not engine.pause_mode,
            "resume": listens and bool(engine.pause_mode),
            "drain": listens and busy,
        }.get(name, False)

    def do(self, step: Step) -> None:
        """Do a step, and check."""
        super().do(step)
        v1_invariants.check(self.engine)

    def state(self) -> str:
        """Describe which requests run and wait, and how many steps are in flight."""
        scheduler = self.engine.scheduler
        queues = {
            "running": scheduler.running,
            "waiting": scheduler.waiting,
            "waiting with blocks": scheduler.kv_holding_waiting,
        }
        parts = [
            f"{name}: {' '.join(r.request_id for r in queue)}" for name, queue in queues.items() if queue
        ]
        parts += [f"steps in flight: {len(self.engine.in_flight)}"] if self.engine.in_flight else []
        return "; ".join(parts) or "nothing in flight"

    def target(self, which: int) -> str:
        """Return the unfinished request that a number stands for."""
        names = self.engine.unfinished()
        return names[which % len(names)]

    def _add(self, max_tokens: int, min_tokens: int = 0, **request: int) -> None:
        name = f"r{len(self.engine.requests) + 1}"
        least = min(min_tokens, max_tokens)
        self.engine.add(V1Request(name, max_tokens=max_tokens, min_tokens=least, **request))

    def _schedule(self) -> None:
        scheduled = self.engine.schedule()
        v1_invariants.check_step(self.engine, scheduled)
        self.tally["steps of the engine"] += 1
        self.tally["tokens scheduled"] += scheduled.total_num_scheduled_tokens
        self.tally["requests preempted"] += len(scheduled.preempted_req_ids or ())

    def _update(self) -> None:
        self.engine.update()

    def _go(self, steps: int) -> bool:
        """Return whether there was nothing left to do before that many halves of steps."""
        for number in range(1, steps + 1):
            half = self.engine.due()
            if not half:
                return True
            self.progress = f"at number {number}, {half}"
            getattr(self, f"_{half}")()
            v1_invariants.check(self.engine)
        return False

    def _abort(self, which: int) -> None:
        self.engine.abort([self.target(which)])

    def _reset(self, running: bool) -> None:
        if self.engine.reset(running=running):
            self.tally["caches reset"] += 1

    def _pause(self, mode: str) -> None:
        self.engine.pause(mode)

    def _resume(self) -> None:
        self.engine.resume()

    def _drain(self) -> None:
        self.engine.resume()
        if not self._go(_MOST_STEPS):
            left = " ".join(self.engine.unfinished())
            raise BrokenInvariantError(
                "every request ends", f"{left}: still there after {_MOST_STEPS} half-steps"
            )
        self.tally["requests ended"] += sum(bool(ends) for ends in self.engine.ends.values())
        v1_invariants.check_end(self.engine)

    def describe_add(self, step: Step) -> str:
        """Describe a request."""
        text = f"Request r{len(self.engine.requests) + 1} arrives: {step['prompt']} tokens of prompt"
        text += f", {step['max_tokens']} to generate"
        least = min(step.get("min_tokens", 0), step["max_tokens"])
        text += f", at least {least}" if least else ""
        text += f", a stop token in place {step['stop_at']}" if step.get("stop_at") else ""
        text += ", with another beginning" if step.get("family") else ""
        return text + (f", priority {step['priority']}." if step.get("priority") else ".")

    sentences: ClassVar[Mapping[str, Callable[[Any, Step], str]]] = {
        "add": describe_add,
        "schedule": lambda *_: "A step is scheduled, and goes to the model runner.",
        "update": lambda *_: "The oldest step's output comes back, and the scheduler is updated from it.",
        "go": lambda _, step: (
            f"The engine takes {step['steps']} half-steps: schedules, or updates from an output."
        ),
        "abort": lambda self, step: f"Request {self.target(step['which'])} is aborted.",
        "reset": lambda _, step: (
            "The prefix cache is reset, running requests are preempted for it."
            if step["running"]
            else "The prefix cache is reset, if no request holds a block."
        ),
        "pause": lambda _, step: f"The engine is paused, mode '{step['mode']}'.",
        "resume": lambda *_: "The engine is resumed.",
        "drain": lambda *_: "The engine is resumed, and stepped until it has nothing left to do.",
    }
