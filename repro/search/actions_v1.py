"""What can be done to an engine with the V1 scheduler, all of it lawful; each step is followed by every check."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from repro.base import BrokenInvariantError
from repro.drivers.schedulers.v1 import V1Engine
from repro.drivers.schedulers.v1_setup import V1Request, V1Setup
from repro.search import invariants_v1
from repro.search.actions import EngineActions
from repro.search.stories import Step

LIMIT = 24  # tokens of a sequence
_BLOCK = 4
_MOST_STEPS = 1000  # to drain: far more than these requests can need


def small(
    asynchronous: bool = False,
    prefix_caching: bool = False,
    chunked: bool = False,
    priority: bool = False,
    tiny_cache: bool = False,
) -> V1Setup:
    """Returns the settings of a story: everything is small, so that the story stays short.

    Args:
        asynchronous: asynchronous scheduling.
        prefix_caching: as it says.
        chunked: chunked prefill; a step then holds a third of the longest prompt.
        priority: scheduling by priority.
        tiny_cache: the KV cache has room for one whole sequence, instead of for all.
    """
    return V1Setup(
        asynchronous=asynchronous,
        prefix_caching=prefix_caching,
        chunked=chunked,
        priority=priority,
        max_model_len=LIMIT,
        token_budget=LIMIT // 3 if chunked else LIMIT,
        max_num_seqs=3,
        blocks=LIMIT // _BLOCK + 1 if tiny_cache else 32,
        block_size=_BLOCK,
    )


class V1Actions(EngineActions):
    """An engine with the V1 scheduler, what was asked of it, and what came back."""

    about: ClassVar[str] = (
        f"at most {LIMIT} tokens in a sequence and in a step, {LIMIT // 3} in a step of chunked prefill, "
        f"KV blocks of {_BLOCK}"
    )
    make_engine: Callable[[V1Setup], V1Engine] = V1Engine

    def __init__(self, **flags: bool) -> None:
        super().__init__()
        self.engine = type(self).make_engine(small(**flags))

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
        """Does it, and checks."""
        super().do(step)
        invariants_v1.check(self.engine)

    def state(self) -> str:
        """Tells which requests run and wait, and how many steps are in flight."""
        scheduler = self.engine.scheduler
        queues = {
            "running": scheduler.running,
            "waiting": scheduler.waiting,
            "waiting with blocks": scheduler.kv_holding_waiting,
        }
        parts = [
            f"{name}: {' '.join(request.request_id for request in queue)}"
            for name, queue in queues.items()
            if queue
        ]
        parts += [f"steps in flight: {len(self.engine.in_flight)}"] if self.engine.in_flight else []
        return "; ".join(parts) or "nothing in flight"

    @staticmethod
    def rewrites(steps: list[Step]) -> list[list[Step]]:
        """Returns the story with fewer halves of steps told apart: one that goes on in place of two neighbours."""
        halves = [1 if step["do"] in {"schedule", "update"} else int(step.get("steps", 0)) for step in steps]
        return [
            [*steps[:index], {"do": "go", "steps": halves[index] + halves[index + 1]}, *steps[index + 2 :]]
            for index in range(len(steps) - 1)
            if halves[index] and halves[index + 1]
        ]

    def _add(self, **request: int) -> None:
        name = f"r{len(self.engine.requests) + 1}"
        self.engine.add(V1Request(name, **request))

    def _schedule(self) -> None:
        scheduled = self.engine.schedule()
        invariants_v1.check_step(self.engine, scheduled)
        self.tally["steps of the engine"] += 1
        self.tally["tokens scheduled"] += scheduled.total_num_scheduled_tokens
        self.tally["requests preempted"] += len(scheduled.preempted_req_ids or ())

    def _update(self) -> None:
        self.engine.update()

    def _go(self, steps: int) -> bool:
        """Returns whether there was nothing left to do before that many halves of steps."""
        for number in range(1, steps + 1):
            half = self.engine.due()
            if not half:
                return True
            self.progress = f"at number {number}, {half}"
            getattr(self, f"_{half}")()
            invariants_v1.check(self.engine)
        return False

    def _abort(self, which: int) -> None:
        self.engine.abort([self.target(self.engine.unfinished(), which)])

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
        invariants_v1.check_end(self.engine)

    def _say_add(self, step: Step) -> str:
        text = f"Request r{len(self.engine.requests) + 1} arrives: {step['prompt']} tokens of prompt"
        text += f", {step['max_tokens']} to generate"
        text += f", at least {step['min_tokens']}" if step.get("min_tokens") else ""
        text += f", a stop token in place {step['stop_at']}" if step.get("stop_at") else ""
        text += ", with another beginning" if step.get("family") else ""
        return text + (f", priority {step['priority']}." if step.get("priority") else ".")


V1Actions.sentences = {
    "add": V1Actions._say_add,  # noqa: SLF001
    "schedule": lambda *_: "A step is scheduled, and goes to the model runner.",
    "update": lambda *_: "The oldest step's output comes back, and the scheduler is updated from it.",
    "go": lambda _, step: (
        f"The engine takes {step['steps']} half-steps: schedules, or updates from an output."
    ),
    "abort": lambda self, step: f"Request {self.target(self.engine.unfinished(), step['which'])} is aborted.",
    "reset": lambda _, step: (
        "The prefix cache is reset, running requests are preempted for it."
        if step["running"]
        else "The prefix cache is reset, if no request holds a block."
    ),
    "pause": lambda _, step: f"The engine is paused, mode '{step['mode']}'.",
    "resume": lambda *_: "The engine is resumed.",
    "drain": lambda *_: "The engine is resumed, and stepped until it has nothing left to do.",
}
