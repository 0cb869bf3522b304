"""SCH001: schedule a step of vLLM's unmodified V0 scheduler before the output of the previous prefill was applied.

`schedule()` marks a new request as running, and the request leaves the prefill stage only when the *output* of that
step is applied. A second `schedule()` in between finds a prefill among the running requests and asserts. The
scheduler's comment gives the assumption: "the engine assumes that a failure in model execution will crash the vLLM
instance / will not retry". So the failure always means a scheduled step whose output was not applied: it was lost, or
another caller stepped the same engine meanwhile. The first three triggers simulate the forward pass; the others run
the whole engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from repro import upstream
from repro.base import Trigger, Work, repro
from repro.drivers import engines_v0, subprocess_worker
from repro.drivers.engines_v0 import EngineRequest, Hold, Offline, Once, ServedEngine
from repro.drivers.schedulers import callers, v0
from repro.drivers.schedulers.v0 import Delivered, ForwardPassError, SchedulerRequest, Setup

ASSERTION = "assert len(running_scheduled.prefill_seq_groups) == 0"
TRAINING = [SchedulerRequest(f"train-{index}", prompt=10 + 3 * index, max_tokens=6) for index in range(4)]
EVALUATION = [SchedulerRequest(f"eval-{index}", prompt=8 + 5 * index, max_tokens=4) for index in range(2)]


class _Rollouts:
    """An engine, and calls of generate() as a mitigation makes them."""

    def __init__(self, mitigation: str | None) -> None:
        self.mitigation = mitigation
        self.engine = _new_engine(mitigation)
        self._lock = threading.Lock()

    def generate(self, requests: Sequence[SchedulerRequest]) -> callers.Caller:
        """Return a call that has not begun."""
        if self.mitigation == "lock_around_generate":
            return callers.generate_locked(self.engine, requests, self._lock)
        if self.mitigation == "lock_around_step":
            return callers.generate_step_locked(self.engine, requests, self._lock)
        return callers.generate(self.engine, requests)

    def prepare_reuse(self) -> None:
        """Apply the mitigation before the engine is used again."""
        if self.mitigation == "abort_in_flight":
            self.engine.abort(*self.engine.in_flight())
        if self.mitigation == "fresh_engine":
            self.engine = _new_engine(self.mitigation)


def _new_engine(mitigation: str | None = None) -> v0.V0Engine:
    # The budget takes all prompts in one step, as that of a real engine mostly does.
    setup = Setup(
        chunked=mitigation == "chunked_prefill_on",
        async_output=mitigation != "async_output_off",
        token_budget=128,
    )
    return v0.V0Engine(setup)


def _lost_step(mitigation: str | None) -> Work:
    """Training's first forward pass fails; its caller catches that, keeps the engine, and evaluates."""
    rollouts = _Rollouts(mitigation)
    training = rollouts.generate(TRAINING)
    next(training)
    with contextlib.suppress(ForwardPassError):
        training.throw(ForwardPassError("out of memory"))
    return _evaluate(rollouts)


def _cancelled_step(mitigation: str | None) -> Work:
    """The coroutine that awaits training's first step is cancelled; evaluation then uses the engine."""
    if mitigation == "server_mode":
        return _serve_both(cancel_training=True)
    rollouts = _Rollouts(mitigation)
    training = rollouts.generate(TRAINING)
    next(training)
    training.close()
    return _evaluate(rollouts)


def _evaluate(rollouts: _Rollouts) -> Work:
    """Generate for evaluation after training's requests were given up; only evaluation's answers are due."""
    rollouts.prepare_reuse()
    [received] = callers.take_turns([rollouts.generate(EVALUATION)])
    return _count_answers([rollouts.engine], [(EVALUATION, received)])


def _two_owners(mitigation: str | None) -> Work:
    """Training is in its forward pass when evaluation's thread calls generate() on the same engine."""
    if mitigation == "server_mode":
        return _serve_both()
    rollouts = _Rollouts(mitigation)
    engines = [rollouts.engine]
    training = rollouts.generate(TRAINING)
    if mitigation == "one_owner":
        [trained] = callers.take_turns([training])
        [evaluated] = callers.take_turns([rollouts.generate(EVALUATION)])
    else:
        next(training)
        rollouts.prepare_reuse()
        engines += [rollouts.engine] if rollouts.engine not in engines else []
        evaluated, trained = callers.take_turns([rollouts.generate(EVALUATION), training])
    return _count_answers(engines, [(TRAINING, trained), (EVALUATION, evaluated)])


def _serve_both(*, cancel_training: bool = False) -> Work:
    """Submit evaluation's requests to a server loop, or cancel training's, while training's step runs."""
    server = callers.ServingLoop(_new_engine())
    server.submit(TRAINING)
    loop = server.loop()
    next(loop)
    if cancel_training:
        server.cancel(TRAINING)
    server.submit(EVALUATION)
    callers.take_turns([loop])
    clients = [EVALUATION] if cancel_training else [TRAINING, EVALUATION]
    return _count_answers(
        [server.engine], [(requests, server.completions_of(requests)) for requests in clients]
    )


def _count_answers(
    engines: Sequence[v0.V0Engine], calls: Sequence[tuple[Sequence[SchedulerRequest], Sequence[Delivered]]]
) -> Work:
    """Count, for each call's requests, the completions that came back to that call."""
    received, stray = [], 0
    for requests, completions in calls:
        ids = {request.id for request in requests}
        received += [(done.id, done.tokens) for done in completions if done.id in ids]
        stray += sum(done.id not in ids for done in completions)
    return Work(
        due={request.id: request.max_tokens for requests, _ in calls for request in requests},
        received=received,
        stray=stray,
        leaked_blocks=sum(engine.leaked_blocks() for engine in engines),
        parked=sum(engine.parked() for engine in engines),
    )


# The whole engine, from here on.
def llm_two_threads(mitigation: str | None) -> Work:
    """Suspend training's prefill in `LLM.generate` while evaluation generates in another thread.

    Raises:
        ElsewhereError: the exception of one of the two threads.
    """
    if mitigation == "server_mode":
        return async_two_clients()
    engine = Offline(mitigation)
    evaluations_engine = Offline(mitigation) if mitigation == "fresh_engine" else engine
    hold = Hold()
    lock: Any = threading.Lock() if mitigation == "lock_around_generate" else contextlib.nullcontext()

    def generate(owned: Offline, requests: Sequence[EngineRequest], processor: Any) -> Any:
        with lock:
            return owned.generate(requests, processor)

    with ThreadPoolExecutor(1) as first, ThreadPoolExecutor(1) as second:
        trained = first.submit(generate, engine, engines_v0.TRAINING, hold)
        trained.add_done_callback(lambda _: hold.inside.set())
        hold.inside.wait()  # training's step is suspended, or has failed before
        if mitigation == "abort_in_flight":
            engine.abort_in_flight()
        thread = first if mitigation == "one_owner" else second
        evaluated = thread.submit(generate, evaluations_engine, engines_v0.EVALUATION, None)
        if mitigation not in {"one_owner", "lock_around_generate"}:
            evaluated.exception()  # waits, so that all of evaluation happens during training's step
        hold.go.set()
        _raise_failure(evaluated, trained, "training", engines_v0.TRAINING)
        _raise_failure(trained, evaluated, "evaluation", engines_v0.EVALUATION)
        calls = [(engines_v0.TRAINING, trained.result()), (engines_v0.EVALUATION, evaluated.result())]
        return engines_v0.count_answers(calls, {engine, evaluations_engine})


def _raise_failure(
    failed: Future[list[Any]], other: Future[list[Any]], name: str, requests: Sequence[EngineRequest]
) -> None:
    """Raise the exception of one caller, if any, and report the other's result."""
    failure, error = failed.exception(), other.exception()
    if failure is None:
        return
    if error:
        note = f"{name} got {type(error).__name__}: {error}"
    else:
        done = engines_v0.count_answers([(requests, other.result())])
        strays = f" and {done.stray} that it had not asked for" if done.stray else ""
        note = f"{name} got {done.finished} of its {len(requests)} completions{strays}, without an error"
    raise subprocess_worker.make_error(subprocess_worker.describe_error(failure), note) from failure


def llm_interrupted(mitigation: str | None) -> Work:
    """Ctrl-C within `LLM.generate`, as in a notebook; the next cell generates again.

    There is only one caller: it gets any lock at once.
    """
    if mitigation == "server_mode":
        return async_client_cancelled()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    engine, evaluation = Offline(mitigation), engines_v0.EVALUATION
    with contextlib.suppress(KeyboardInterrupt):
        engine.generate(engines_v0.TRAINING, Once(partial(signal.raise_signal, signal.SIGINT)))
    if mitigation == "abort_in_flight":
        engine.abort_in_flight()
    if mitigation == "fresh_engine":
        engine = Offline(mitigation)
    try:
        outputs = engine.generate(evaluation)
    except AssertionError as error:
        engine.abort_in_flight()
        done = engines_v0.count_answers([(evaluation, engine.generate(evaluation))], [engine])
        note = f"caught, everything aborted, asked once more: {done.describe()}"
        raise subprocess_worker.make_error(subprocess_worker.describe_error(error), note) from error
    return engines_v0.count_answers([(evaluation, outputs)], [engine])


async def _start_and_hold(engine: ServedEngine) -> tuple[asyncio.Task[list[Any]], Hold]:
    """Start training's requests, and wait until their prefill is suspended."""
    hold = Hold()
    training = asyncio.create_task(engine.request(engines_v0.TRAINING, hold))
    await asyncio.to_thread(hold.inside.wait)
    return training, hold


def async_two_clients() -> Work:
    """Let two tasks call one `AsyncLLMEngine`, as the mitigation `server_mode`: its background loop alone steps."""
    engine = ServedEngine()

    async def request_both() -> Work:
        training, hold = await _start_and_hold(engine)
        evaluation = asyncio.create_task(engine.request(engines_v0.EVALUATION))
        await asyncio.sleep(0)  # evaluation's requests are queued; the step is still suspended
        hold.go.set()
        calls = [(engines_v0.TRAINING, await training), (engines_v0.EVALUATION, await evaluation)]
        note = "AsyncLLMEngine's background loop alone steps; both only wait for it"
        return engines_v0.count_answers(calls, [engine], note)

    return asyncio.run(request_both())


def async_client_cancelled() -> Work:
    """Cancel a client's coroutine, as `server_mode`: the loop lives on, ends the step and aborts the requests."""
    engine = ServedEngine()

    async def cancel_client() -> list[Any]:
        training, hold = await _start_and_hold(engine)
        training.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await training
        hold.go.set()
        return await engine.request(engines_v0.EVALUATION)

    answers = asyncio.run(cancel_client())
    note = "the background loop ended the step, then aborted"
    return engines_v0.count_answers([(engines_v0.EVALUATION, answers)], [engine], note)


class RolloutTimeoutError(Exception):
    """The caller gave a rollout up."""


def async_loop_ended(mitigation: str | None) -> Work:
    """`asyncio.run` ends while a prefill runs, and with it the background loop; the next `asyncio.run` starts one."""
    if mitigation == "server_mode":  # one loop for as long as the engine lives
        return async_client_cancelled()
    engine = ServedEngine(mitigation)
    with contextlib.suppress(RolloutTimeoutError):
        asyncio.run(_give_up(engine))
    if mitigation == "abort_in_flight":
        engine.abort_in_flight()
    if mitigation == "fresh_engine":
        engine = ServedEngine(mitigation)
    answers = asyncio.run(engine.request(engines_v0.EVALUATION))
    return engines_v0.count_answers([(engines_v0.EVALUATION, answers)], [engine])


async def _give_up(engine: ServedEngine) -> None:
    hold = Hold()

    async def request() -> None:
        try:
            await engine.request(engines_v0.TRAINING, hold)
        finally:  # lets the step end after everything was cancelled: asyncio.run waits for its thread
            hold.go.set()

    training = asyncio.create_task(request())
    inside = asyncio.create_task(asyncio.to_thread(hold.inside.wait))
    await asyncio.wait([training, inside], return_when=asyncio.FIRST_COMPLETED)
    raise RolloutTimeoutError  # asyncio.run cancels all tasks, the engine's step among them


def _whole(run: Callable[[str | None], Work], simulated: tuple[str, ...]) -> Trigger:
    """Return a trigger on the whole engine."""
    return Trigger(run.__name__, run, simulated=simulated, lacks=engines_v0.missing_engine)


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
        _whole(llm_two_threads, engines_v0.HOLDS),
        _whole(llm_interrupted, engines_v0.INTERRUPTS),
        _whole(async_loop_ended, engines_v0.HOLDS),
    ],
    recommended={"one_owner": "ms-swift 3.5.0, modelscope/ms-swift#4234"},
    inapplicable=lambda: upstream.lacks("vllm/core/scheduler.py", ASSERTION, "Scheduler._schedule_default"),
)
