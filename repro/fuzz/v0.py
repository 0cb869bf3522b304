"""What can be done to an engine with the V0 scheduler: lawful use, and the misuse that people's code got into.

Lawful: requests of any length arrive, the engine is stepped, requests are aborted. Misuse: a step is lost because its
forward pass fails and the caller goes on, and a second caller steps while the first is in its forward pass.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, ClassVar

from repro.base import BrokenInvariantError
from repro.drivers.schedulers.v0 import SanityCheckError, V0Engine
from repro.drivers.schedulers.v0_setup import (
    Delivered,
    ForwardPassError,
    RefusedRequestError,
    SchedulerRequest,
    Setup,
)
from repro.fuzz.stories import EngineActions, Step

Running = Generator[None, None, list[Delivered]]
LIMIT = 16  # tokens of a sequence
_MOST_STEPS = 300  # to drain: far more than these requests can need


class V0Actions(EngineActions):
    """An engine with the V0 scheduler, its requests, and what came back. Everything is small.

    With `tiny_cache` the KV cache has room for two sequences, instead of for all.
    """

    about = f"at most {LIMIT} tokens in a sequence and in a step, KV blocks of 8"
    settings = ("chunked", "async_output", "tiny_cache")
    draws: ClassVar[Mapping[str, Mapping[str, Sequence[Any]]]] = {
        "drain": {},
        "step": {},
        # Also one whose prompt is over the limit; the engine may refuse it.
        "add": {"prompt": (1, LIMIT + 4), "max_tokens": (1, 8), "min_tokens": (0, 8), "stop": [False, True]},
        "lose": {},
        "begin": {},
        "finish": {},
        "abort": {"which": (0, 3)},
    }

    def __init__(self, chunked: bool = False, async_output: bool = False, tiny_cache: bool = False) -> None:
        super().__init__()
        self.engine = V0Engine(
            Setup(
                chunked=chunked,
                async_output=async_output,
                max_model_len=LIMIT,
                token_budget=LIMIT,
                max_num_seqs=4,
                blocks=5 if tiny_cache else 64,
                block_size=8,
            )
        )
        self.count = 0
        self._due: set[str] = set()  # accepted, and not aborted
        self._served: Counter[str] = Counter()
        self.held: Running | None = None
        self._lawful = True

    def can(self, name: str) -> bool:
        """Whether the step makes sense: nobody steps an empty engine, and one forward pass is held at a time."""
        busy = self.engine.unfinished
        return {
            "add": True,
            "step": busy,
            "abort": bool(self.engine.in_flight()),
            "lose": busy and self.held is None,
            "begin": busy and self.held is None,
            "finish": self.held is not None,
            # After misuse nobody promises that all are served: only upstream's own assertions count then.
            "drain": busy and self._lawful,
        }.get(name, False)

    def do(self, step: Step) -> None:
        """Do a step, and report a failed check of the mirrored loop as what it is."""
        try:
            super().do(step)
        except SanityCheckError as error:
            raise BrokenInvariantError("LLMEngine's sanity check (mirrored)", str(error)) from error

    def state(self) -> str:
        """Describe which requests run, wait and are set aside."""
        scheduler = self.engine.scheduler
        groups = {
            "running": scheduler.running,
            "waiting": scheduler.waiting,
            "swapped": scheduler.swapped,
            "set aside as stopped": scheduler._async_stopped,  # noqa: SLF001 - this list is what SCH002 is about
        }
        parts = [
            f"{name}: {' '.join(g.request_id for g in queue)}" for name, queue in groups.items() if queue
        ]
        return "; ".join(parts) or "nothing in flight"

    def target(self, which: int) -> str:
        """Return the request in flight that a number stands for."""
        names = self.engine.in_flight()
        return names[which % len(names)]

    def _add(self, prompt: int, max_tokens: int, min_tokens: int = 0, stop: bool = False) -> None:
        self.count += 1
        request = SchedulerRequest(f"r{self.count}", prompt, max_tokens, min(min_tokens, max_tokens), stop)
        with contextlib.suppress(RefusedRequestError):  # by the engine's own check, from 0.8.4 on
            self.engine.add(request)
            self._due.add(request.id)

    def _step(self) -> None:
        if self.held:
            self._lawful = False
        self._finish_step(self.engine.step())

    def _lose(self) -> None:
        step = self.engine.step()
        if self._enter_forward_pass(step):
            self._lawful = False
            with contextlib.suppress(ForwardPassError):
                step.throw(ForwardPassError("out of memory"))

    def _begin(self) -> None:
        step = self.engine.step()
        if self._enter_forward_pass(step):
            self.held = step

    def _finish(self) -> None:
        step, self.held = self.held, None
        assert step is not None
        self._finish_step(step)

    def _abort(self, which: int) -> None:
        name = self.target(which)
        self._due.discard(name)
        self.engine.abort(name)

    def _drain(self) -> None:
        if self.held:
            self._finish()
        for number in range(1, _MOST_STEPS + 1):
            if not self.engine.unfinished:
                break
            self.progress = f"in its step {number}"
            self._finish_step(self.engine.step())
        else:
            raise BrokenInvariantError("every request ends", f"work is left after {_MOST_STEPS} steps")
        self.progress = ""
        self._check_empty()

    def _check_empty(self) -> None:
        """Check, after lawful use alone, that everything was answered once and given back."""
        lost = sorted(name for name in self._due if not self._served[name])
        twice = sorted(name for name in self._due if self._served[name] > 1)
        left = f"{self.engine.leaked_blocks()} KV blocks taken, {self.engine.parked()} set aside as stopped"
        if lost:
            detail = f"{' '.join(lost)} never came back; in the empty engine: {left}"
            raise BrokenInvariantError("no request is lost", detail)
        if twice:
            raise BrokenInvariantError("no request ends twice", " ".join(twice))
        if self.engine.leaked_blocks() or self.engine.parked():
            raise BrokenInvariantError("an empty engine holds nothing", left)

    def _enter_forward_pass(self, step: Running) -> bool:
        """Let a step run to its forward pass; False if there was nothing to run, and the step ended."""
        try:
            next(step)
        except StopIteration as done:
            self._served.update(completion.id for completion in done.value)
            return False
        return True

    def _finish_step(self, step: Running) -> None:
        while self._enter_forward_pass(step):
            pass

    def describe_add(self, step: Step) -> str:
        """Describe a request."""
        text = f"Request r{self.count + 1} arrives: {_tokens(step['prompt'])} of prompt, "
        text += f"{_tokens(step['max_tokens'])} to generate"
        least = min(step.get("min_tokens", 0), step["max_tokens"])
        text += f", at least {least}" if least else ""
        return text + (", a stop token as soon as one is allowed." if step.get("stop") else ".")

    sentences: ClassVar[Mapping[str, Callable[[Any, Step], str]]] = {
        "add": describe_add,
        "step": lambda self, _: (
            "A second caller steps the same engine." if self.held else "The engine takes a step."
        ),
        "abort": lambda self, step: f"Request {self.target(step['which'])} is aborted.",
        "lose": lambda *_: "A step is scheduled, its forward pass fails, and the caller keeps the engine.",
        "begin": lambda *_: "A caller begins a step: it is scheduled, and the forward pass runs.",
        "finish": lambda *_: "That forward pass ends, and so does its step.",
        "drain": lambda *_: "The engine is stepped until it has nothing left to do.",
    }


def _tokens(count: int) -> str:
    return f"{count} token{'' if count == 1 else 's'}"
