"""Actions on vLLM's unmodified V0 scheduler for the fuzzer: valid use, and misuse that real programs contain.

Valid: requests of any length arrive, the engine is stepped, requests are aborted. Misuse: a step is lost because its
forward pass fails and the caller goes on, and a second caller steps while the first is in its forward pass.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Generator, Iterable, Mapping
from typing import Any, ClassVar

from repro.base import BrokenInvariantError
from repro.drivers.schedulers.v0 import (
    Delivered,
    ForwardPassError,
    RefusedRequestError,
    SanityCheckError,
    SchedulerRequest,
    Setup,
    V0Engine,
)
from repro.fuzz.stories import EngineActions, Step, StepKind

Running = Generator[None, None, list[Delivered]]
LIMIT = 16  # tokens of a sequence
_MOST_STEPS = 300  # to drain: far more than these requests can need


class V0Actions(EngineActions):
    """An engine with the V0 scheduler, its requests, and what came back. Everything is small.

    With `tiny_cache` the KV cache has room for two sequences only. An empty engine is not stepped, and one forward pass
    is suspended at a time.
    """

    about = f"at most {LIMIT} tokens in a sequence and in a step, KV blocks of 8"
    settings = ("chunked", "async_output", "tiny_cache")
    length = 7
    steps: ClassVar[Mapping[str, StepKind]] = {
        # After misuse requests may be lost: only upstream's own assertions count then.
        "drain": StepKind(lambda self: self.busy and self.valid),
        "step": StepKind(lambda self: self.busy),
        # Also one whose prompt is over the limit; the engine may refuse it.
        "add": StepKind(
            lambda _: True, prompt=(1, LIMIT + 4), max_tokens=(1, 8), min_tokens=(0, 8), stop=[False, True]
        ),
        "lose": StepKind(lambda self: self.busy and not self.held),
        "begin": StepKind(lambda self: self.busy and not self.held),
        "finish": StepKind(lambda self: self.held),
        "abort": StepKind(lambda self: self.engine.in_flight(), which=(0, 3)),
    }

    def __init__(self, chunked: bool = False, async_output: bool = False, tiny_cache: bool = False) -> None:
        super().__init__()
        setup = Setup(
            chunked=chunked,
            async_output=async_output,
            max_model_len=LIMIT,
            token_budget=LIMIT,
            max_num_seqs=4,
            blocks=5 if tiny_cache else 64,
            block_size=8,
        )
        self.engine = V0Engine(setup)
        self.held: Running | None = None
        self.valid = True
        self._due: set[str] = set()  # accepted, and not aborted
        self._served: Counter[str] = Counter()

    @property
    def busy(self) -> bool:
        """Whether the engine has work."""
        return self.engine.unfinished

    def queues(self) -> Mapping[str, Iterable[Any]]:
        """Return which requests run, wait and are set aside."""
        scheduler = self.engine.scheduler
        return {
            "running": scheduler.running,
            "waiting": scheduler.waiting,
            "swapped": scheduler.swapped,
            "set aside as stopped": scheduler._async_stopped,  # noqa: SLF001 - this list is what SCH002 is about
        }

    def do(self, step: Step) -> None:
        """Do a step, and report a failed check of the mirrored loop as what it is."""
        try:
            super().do(step)
        except SanityCheckError as error:
            raise BrokenInvariantError("LLMEngine's sanity check (mirrored)", str(error)) from error

    def do_add(self, prompt: int, max_tokens: int, min_tokens: int = 0, stop: bool = False) -> None:
        """A request arrives.

        With `stop` every sampled token is a stop token, so that it ends as soon as it may.
        """
        self.count += 1
        request = SchedulerRequest(f"r{self.count}", prompt, max_tokens, min(min_tokens, max_tokens), stop)
        with contextlib.suppress(RefusedRequestError):  # by the engine's own check, from 0.8.4 on
            self.engine.add(request)
            self._due.add(request.id)

    def do_step(self) -> None:
        """The engine takes a step; while a forward pass is held, a second caller does that."""
        if self.held:
            self.valid = False
        self._finish_step(self.engine.step())

    def do_lose(self) -> None:
        """A step is scheduled, its forward pass fails, and the caller keeps the engine."""
        step = self.engine.step()
        if self._enter_forward_pass(step):
            self.valid = False
            with contextlib.suppress(ForwardPassError):
                step.throw(ForwardPassError("out of memory"))

    def do_begin(self) -> None:
        """A caller begins a step: it is scheduled, and the forward pass runs."""
        step = self.engine.step()
        if self._enter_forward_pass(step):
            self.held = step

    def do_finish(self) -> None:
        """That forward pass ends, and so does its step."""
        step, self.held = self.held, None
        assert step is not None
        self._finish_step(step)

    def do_abort(self, which: int) -> None:
        """A request in flight is aborted."""
        names = self.engine.in_flight()
        name = names[which % len(names)]
        self._due.discard(name)
        self.engine.abort(name)

    def do_drain(self) -> None:
        """The engine is stepped until it has nothing left to do."""
        if self.held:
            self.do_finish()
        for number in range(1, _MOST_STEPS + 1):
            if not self.engine.unfinished:
                self.progress = ""
                return self._check_empty()
            self.progress = f"in its step {number}"
            self._finish_step(self.engine.step())
        raise BrokenInvariantError("every request ends", f"work is left after {_MOST_STEPS} steps")

    def _check_empty(self) -> None:
        """Check, if all use was valid, that every request was answered once and all blocks were freed."""
        lost = sorted(name for name in self._due if not self._served[name])
        twice = sorted(name for name in self._due if self._served[name] > 1)
        blocks, parked = self.engine.leaked_blocks(), self.engine.parked()
        remaining = f"{blocks} KV blocks taken, {parked} set aside as stopped"
        if lost:
            detail = f"{' '.join(lost)} never came back; in the empty engine: {remaining}"
            raise BrokenInvariantError("no request is lost", detail)
        if twice:
            raise BrokenInvariantError("no request ends twice", " ".join(twice))
        if blocks or parked:
            raise BrokenInvariantError("an empty engine holds nothing", remaining)

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
