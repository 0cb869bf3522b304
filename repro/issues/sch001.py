"""SCH001: a prefill that was scheduled is still among the running when the next step is scheduled.

`schedule()` marks a new request as running, and the request leaves the prefill stage only when the *output* of that
step is applied. A second `schedule()` in between finds a prefill among the running and asserts. The scheduler's own
comment says why nobody thought of it: "the engine assumes that a failure in model execution will crash the vLLM
instance / will not retry". So the failure always means a scheduled step whose output was not applied: it was lost, or
somebody else stepped the same engine meanwhile.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence

from repro import upstream
from repro.base import InapplicableError, Trigger, Work, repro
from repro.drivers.engines_v0 import cancelled, interrupted, moments, swift, two_owners
from repro.drivers.engines_v0.engine import needed
from repro.drivers.schedulers import owners, v0
from repro.drivers.schedulers.v0_setup import Delivered, ForwardPassError, SchedulerRequest, Setup

ASSERTION = "assert len(running_scheduled.prefill_seq_groups) == 0"
TRAINING = [SchedulerRequest(f"train-{index}", prompt=10 + 3 * index, max_tokens=6) for index in range(4)]
EVALUATION = [SchedulerRequest(f"eval-{index}", prompt=8 + 5 * index, max_tokens=4) for index in range(2)]
_LOCKS = {"lock_around_generate": owners.generate_locked, "lock_around_step": owners.generate_step_locked}


class _Caller:
    """Calls generate() the way a mitigation has it done."""

    def __init__(self, mitigation: str | None) -> None:
        self.mitigation = mitigation
        self.engine = _engine(mitigation)
        self._lock = threading.Lock()

    def generate(self, requests: Sequence[SchedulerRequest]) -> owners.Owner:
        """Makes one call, not yet begun."""
        locked = _LOCKS.get(self.mitigation or "")
        return locked(self.engine, requests, self._lock) if locked else owners.generate(self.engine, requests)

    def before_reuse(self) -> None:
        """Does what the mitigation asks for before the engine is used again."""
        if self.mitigation == "abort_in_flight":
            self.engine.abort(*self.engine.in_flight())
        if self.mitigation == "fresh_engine":
            self.engine = _engine(self.mitigation)


def _engine(mitigation: str | None) -> v0.V0Engine:
    # The budget takes all prompts in one step, as that of a real engine mostly does.
    setup = Setup(
        chunked=mitigation == "chunked_prefill_on",
        async_output=mitigation != "async_output_off",
        token_budget=128,
    )
    return v0.V0Engine(setup)


def _lost_step(mitigation: str | None) -> Work:
    """Training's first forward pass fails; its caller catches that, keeps the engine, and evaluates."""
    if mitigation == "server_mode":
        raise InapplicableError(
            "a server ends with a failed forward pass (AsyncEngineDeadError); it isn't reused"
        )
    caller = _Caller(mitigation)
    training = caller.generate(TRAINING)
    next(training)
    with contextlib.suppress(ForwardPassError):
        training.throw(ForwardPassError("out of memory"))
    return _evaluate_after(caller)


def _cancelled_step(mitigation: str | None) -> Work:
    """The coroutine that awaits training's first step is cancelled; evaluation then uses the engine."""
    if mitigation == "server_mode":
        return _cancelled_client()
    caller = _Caller(mitigation)
    training = caller.generate(TRAINING)
    next(training)
    training.close()
    return _evaluate_after(caller)


def _evaluate_after(caller: _Caller) -> Work:
    """Training's requests are given up; what counts is that evaluation gets its own answers, and no others."""
    caller.before_reuse()
    [received] = owners.take_turns([caller.generate(EVALUATION)])
    return _work([caller.engine], [(EVALUATION, received)])


def _cancelled_client() -> Work:
    """The same moment with a server: the client's requests are aborted, and the step comes to its end."""
    server = owners.ServingLoop(_engine(None))
    server.submit(TRAINING)
    loop = server.loop()
    next(loop)
    server.cancel(TRAINING)
    server.submit(EVALUATION)
    owners.take_turns([loop])
    return _work([server.engine], [(EVALUATION, server.answers(EVALUATION))])


def _two_owners(mitigation: str | None) -> Work:
    """Training is in its forward pass when evaluation's thread calls generate() on the same engine."""
    if mitigation == "server_mode":
        return _two_clients()
    caller = _Caller(mitigation)
    engines = [caller.engine]
    training = caller.generate(TRAINING)
    if mitigation == "one_owner":
        trained, evaluated = owners.one_after_the_other(training, caller.generate(EVALUATION))
    else:
        next(training)
        caller.before_reuse()
        engines += [caller.engine] if caller.engine not in engines else []
        evaluated, trained = owners.take_turns([caller.generate(EVALUATION), training])
    return _work(engines, [(TRAINING, trained), (EVALUATION, evaluated)])


def _two_clients() -> Work:
    """Evaluation submits while training's step is in its forward pass; one loop steps for both."""
    server = owners.ServingLoop(_engine(None))
    server.submit(TRAINING)
    loop = server.loop()
    next(loop)
    server.submit(EVALUATION)
    owners.take_turns([loop])
    return _work([server.engine], [(asked, server.answers(asked)) for asked in (TRAINING, EVALUATION)])


def _work(
    engines: Sequence[v0.V0Engine], callers: Sequence[tuple[Sequence[SchedulerRequest], Sequence[Delivered]]]
) -> Work:
    """Counts, for each caller's requests, what came back to that caller."""
    received, stray = [], 0
    for requests, completions in callers:
        asked = {request.id for request in requests}
        received += [(done.id, done.tokens) for done in completions if done.id in asked]
        stray += sum(done.id not in asked for done in completions)
    return Work(
        due={request.id: request.max_tokens for requests, _ in callers for request in requests},
        received=received,
        stray=stray,
        leaked_blocks=sum(engine.leaked_blocks() for engine in engines),
        parked=sum(engine.parked() for engine in engines),
    )


_WHOLE_ENGINE = (
    Trigger("llm_two_threads", two_owners.llm_two_threads, simulated=moments.HOLDS, lacks=needed),
    Trigger("engine_two_threads", two_owners.engine_two_threads, simulated=moments.HOLDS, lacks=needed),
    Trigger("swift_two_threads", swift.two_threads, simulated=swift.SIMULATED, lacks=swift.lacks),
    Trigger(
        "async_two_clients",
        two_owners.async_two_clients,
        about="whole engine: two tasks ask one AsyncLLMEngine; safe",
        occurs=False,
        simulated=moments.HOLDS,
        lacks=needed,
    ),
    Trigger("llm_interrupted", interrupted.llm_interrupted, simulated=moments.INTERRUPTS, lacks=needed),
    Trigger("engine_step_raised", interrupted.engine_step_raised, simulated=moments.FAILS, lacks=needed),
    Trigger(
        "async_step_raised",
        interrupted.async_step_raised,
        about="whole engine: the same within AsyncLLMEngine, which refuses to be used again",
        occurs=False,
        simulated=moments.FAILS,
        lacks=needed,
    ),
    Trigger(
        "async_client_cancelled",
        cancelled.async_client_cancelled,
        about="whole engine: a client's coroutine is cancelled, AsyncLLMEngine's loop lives on; safe",
        occurs=False,
        simulated=moments.HOLDS,
        lacks=needed,
    ),
    Trigger("async_loop_ended", cancelled.async_loop_ended, simulated=moments.HOLDS, lacks=needed),
)

repro(
    "SCH001",
    assertion=ASSERTION,
    distributions=upstream.VLLM,
    modules=v0.MODULES,
    helpful_modules=v0.HELPFUL_MODULES,
    simulated=v0.SIMULATED,
    triggers=[
        Trigger("lost_step", _lost_step),
        Trigger("cancelled_step", _cancelled_step),
        Trigger("two_owners", _two_owners),
        *_WHOLE_ENGINE,
    ],
    mitigations={
        "one_owner": (
            "one worker owns the engine; evaluation's call waits for training's to return",
            "ms-swift 3.5.0, modelscope/ms-swift#4234",
        ),
        "lock_around_generate": "one lock held around the whole of each generate()",
        "server_mode": "one loop steps the engine; training and evaluation are its clients",
        "abort_in_flight": "abort everything in flight before the engine is used again",
        "fresh_engine": "a new engine after the failure, or one for each owner",
        "chunked_prefill_on": "enable_chunked_prefill=True: another path through the scheduler, without this assertion",
        "lock_around_step": "one lock held around each step() alone",
        "async_output_off": "disable_async_output_proc=True",
    },
    inapplicable=lambda: upstream.lacks("vllm/core/scheduler.py", "Scheduler._schedule_default", ASSERTION),
)
