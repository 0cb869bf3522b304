"""SCH001: a prefill that was scheduled is still among the running when the next step is scheduled.

`schedule()` marks a new request as running, and the request leaves the prefill stage only when the *output* of that
step is applied. A second `schedule()` in between finds a prefill among the running and asserts. The scheduler's own
comment says why nobody thought of it: "the engine assumes that a failure in model execution will crash the vLLM
instance / will not retry". So the failure always means a scheduled step whose output was not applied: it was lost, or
another caller stepped the same engine meanwhile.
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
from repro.base import InapplicableError, Trigger, Work, repro
from repro.drivers import elsewhere, engines_v0
from repro.drivers.engines_v0 import (
    EngineRequest,
    FaultyProcessorError,
    Hold,
    Offline,
    Once,
    ServedEngine,
    Stepped,
    Swift,
    Turns,
    count_answers,
)
from repro.drivers.schedulers import owners, v0
from repro.drivers.schedulers.v0 import Delivered, ForwardPassError, SchedulerRequest, Setup

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
        """Make one call, not yet begun."""
        locked = _LOCKS.get(self.mitigation or "")
        return locked(self.engine, requests, self._lock) if locked else owners.generate(self.engine, requests)

    def before_reuse(self) -> None:
        """Apply the mitigation before the engine is used again."""
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
    """Abort the client's requests at the same moment in a server; the running step completes."""
    server = owners.ServingLoop(_engine(None))
    server.submit(TRAINING)
    loop = server.loop()
    next(loop)
    server.cancel(TRAINING)
    server.submit(EVALUATION)
    owners.take_turns([loop])
    return _work([server.engine], [(EVALUATION, server.completions_of(EVALUATION))])


def _two_owners(mitigation: str | None) -> Work:
    """Training is in its forward pass when evaluation's thread calls generate() on the same engine."""
    if mitigation == "server_mode":
        return _two_clients()
    caller = _Caller(mitigation)
    engines = [caller.engine]
    training = caller.generate(TRAINING)
    if mitigation == "one_owner":
        trained, evaluated = owners.run_sequentially(training, caller.generate(EVALUATION))
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
    return _work(
        [server.engine], [(requests, server.completions_of(requests)) for requests in (TRAINING, EVALUATION)]
    )


def _work(
    engines: Sequence[v0.V0Engine], callers: Sequence[tuple[Sequence[SchedulerRequest], Sequence[Delivered]]]
) -> Work:
    """Counts, for each caller's requests, what came back to that caller."""
    received, stray = [], 0
    for requests, completions in callers:
        arguments = {request.id for request in requests}
        received += [(done.id, done.tokens) for done in completions if done.id in arguments]
        stray += sum(done.id not in arguments for done in completions)
    return Work(
        due={request.id: request.max_tokens for requests, _ in callers for request in requests},
        received=received,
        stray=stray,
        leaked_blocks=sum(engine.leaked_blocks() for engine in engines),
        parked=sum(engine.parked() for engine in engines),
    )


def llm_two_threads(mitigation: str | None) -> Work:
    """Two threads call `LLM.generate`."""
    if mitigation == "lock_around_step":
        raise InapplicableError("LLM.generate steps by itself: its caller has no step to lock")
    return _two_threads(mitigation, Offline)


def engine_two_threads(mitigation: str | None) -> Work:
    """Two threads step one `LLMEngine`."""
    return _two_threads(mitigation, Stepped)


def swift_two_threads(mitigation: str | None) -> Work:
    """Rollout and evaluation call `GRPOVllmEngine.infer`."""
    if mitigation == "lock_around_step":
        raise InapplicableError("infer() steps by itself: its caller has no step to lock")
    if mitigation == "server_mode":
        raise InapplicableError("ms-swift's own server is not driven here; vLLM's is, by llm_two_threads")
    return _two_threads(mitigation, Swift, engines_v0.SWIFT_EVALUATION)


def _two_threads(
    mitigation: str | None,
    kind: type[Offline | Stepped],
    evaluation: Sequence[EngineRequest] = engines_v0.EVALUATION,
) -> Work:
    """Hold training's prefill, and have evaluation generate the way the mitigation says.

    Raises:
        ElsewhereError: what one of the two threads ended with.
    """
    if mitigation == "server_mode":
        return _two_clients_of_server()
    engine = kind(mitigation)
    peer = kind(mitigation) if mitigation == "fresh_engine" else engine
    hold, turns = Hold(), Turns("training", "evaluation") if mitigation == "lock_around_step" else None
    lock: Any = threading.Lock() if mitigation == "lock_around_generate" else contextlib.nullcontext()

    def generate(name: str, owned: Offline | Stepped, requests: Sequence[EngineRequest], held: Any) -> Any:
        with lock, contextlib.ExitStack() as stack:
            if turns is None:
                return owned.generate(requests, held)
            stack.callback(turns.leave, name)
            return owned.generate(requests, held, step_lock=partial(turns.step, name))

    with ThreadPoolExecutor(1) as first, ThreadPoolExecutor(1) as second:
        trained = first.submit(generate, "training", engine, engines_v0.TRAINING, hold)
        trained.add_done_callback(lambda _: hold.inside.set())
        hold.inside.wait()  # training's step is suspended, or has failed before
        if mitigation == "abort_in_flight":
            engine.abort_in_flight()
        owner = first if mitigation == "one_owner" else second
        evaluated = owner.submit(generate, "evaluation", peer, evaluation, None)
        if mitigation not in {"one_owner", "lock_around_generate", "lock_around_step"}:
            evaluated.exception()  # waits: all that evaluation does falls within training's step
        hold.go.set()
        _raise_failure(evaluated, trained, "training", engines_v0.TRAINING)
        _raise_failure(trained, evaluated, "evaluation", evaluation)
        callers = [(engines_v0.TRAINING, trained.result()), (evaluation, evaluated.result())]
        return count_answers(callers, {engine, peer})


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
        done = count_answers([(requests, other.result())])
        strays = f" and {done.stray} that it had not asked for" if done.stray else ""
        note = f"{name} got {done.finished} of its {len(requests)} completions{strays}, without an error"
    raise elsewhere.failed(elsewhere.describe_error(failure), note) from failure


def _two_clients_of_server() -> Work:
    """Suspend training's prefill in the server while evaluation sends its requests; both wait for answers."""
    training, evaluation = engines_v0.TRAINING, engines_v0.EVALUATION
    with engines_v0.serving() as server, ThreadPoolExecutor(2) as clients:
        trained = clients.submit(engines_v0.read_answers, server.send(training, holding=True), training)
        server.wait_until_held()
        sent = server.send(evaluation)
        server.let_go()
        evaluated = clients.submit(engines_v0.read_answers, sent, evaluation)
        callers = [(training, trained.result()), (evaluation, evaluated.result())]
        return count_answers(callers, note=engines_v0.SERVER_NOTE)


def _interrupted_client_of_server() -> Work:
    """Disconnect training's client during its suspended prefill; evaluation's client calls the same server."""
    evaluation = engines_v0.EVALUATION
    with engines_v0.serving() as server:
        training = server.send(engines_v0.TRAINING, holding=True)
        server.wait_until_held()
        training.close()
        server.let_go()
        answers = engines_v0.read_answers(server.send(evaluation), evaluation)
        return count_answers([(evaluation, answers)], note=engines_v0.SERVER_NOTE)


def llm_interrupted(mitigation: str | None) -> Work:
    """Ctrl-C within `LLM.generate`, as in a notebook; the next cell generates again."""
    if mitigation == "lock_around_step":
        raise InapplicableError("LLM.generate steps by itself: its caller has no step to lock")
    if mitigation == "server_mode":
        return _interrupted_client_of_server()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return _used_again(mitigation, Offline, lambda: signal.raise_signal(signal.SIGINT), KeyboardInterrupt)


def engine_step_raised(mitigation: str | None) -> Work:
    """A user's logits processor raises within `LLMEngine.step`."""
    if mitigation == "server_mode":
        raise InapplicableError("a server ends with a failed step: see async_step_raised")
    return _used_again(mitigation, Stepped, _fail, FaultyProcessorError)


def _fail() -> None:
    raise FaultyProcessorError("of a shape it did not expect")


def _used_again(
    mitigation: str | None,
    kind: type[Offline | Stepped],
    act: Callable[[], object],
    ends: type[BaseException],
) -> Work:
    """End a prefill's step with an exception, catch it and use the engine again.

    There is one caller: a lock, of whichever extent, is free whenever it takes it.
    """
    engine, evaluation = kind(mitigation), engines_v0.EVALUATION
    with contextlib.suppress(ends):
        engine.generate(engines_v0.TRAINING, Once(act))
    if mitigation == "abort_in_flight":
        engine.abort_in_flight()
    if mitigation == "fresh_engine":
        engine = kind(mitigation)
    try:
        outputs = engine.generate(evaluation)
    except AssertionError as error:
        engine.abort_in_flight()
        done = count_answers([(evaluation, engine.generate(evaluation))], [engine])
        note = f"caught, everything aborted, asked once more: {done.describe()}"
        raise elsewhere.failed(elsewhere.describe_error(error), note) from error
    return count_answers([(evaluation, outputs)], [engine])


def async_step_raised(_: None) -> Work:
    """Raise in a step of `AsyncLLMEngine`'s background loop, which the exception ends."""
    engine = ServedEngine()

    async def both() -> list[str]:
        ends = []
        for requests, processor in ((engines_v0.TRAINING, Once(_fail)), (engines_v0.EVALUATION, None)):
            try:
                await engine.request(requests, processor)
                ends.append("an answer")
            except Exception as error:  # noqa: BLE001 - the exception is the result
                ends.append(f"{type(error).__name__}: {str(error).splitlines()[0]}")
        return ends

    first, then = asyncio.run(both())
    note = f"the step's caller got {first}; whoever asks again gets {then}"
    return count_answers([(engines_v0.EVALUATION, [])], note=note)


async def _start_and_hold(engine: ServedEngine) -> tuple[asyncio.Task[list[Any]], Hold]:
    """Start training's requests, and wait until their prefill is suspended."""
    hold = Hold()
    training = asyncio.create_task(engine.request(engines_v0.TRAINING, hold))
    await asyncio.to_thread(hold.inside.wait)
    return training, hold


def async_two_clients(_: None) -> Work:
    """Two tasks call one `AsyncLLMEngine`; its background loop alone steps."""
    engine = ServedEngine()

    async def both() -> Work:
        training, hold = await _start_and_hold(engine)
        evaluation = asyncio.create_task(engine.request(engines_v0.EVALUATION))
        await asyncio.sleep(0)  # evaluation's requests are queued; the step is still suspended
        hold.go.set()
        callers = [(engines_v0.TRAINING, await training), (engines_v0.EVALUATION, await evaluation)]
        note = "AsyncLLMEngine's background loop alone steps; both only wait for it"
        return count_answers(callers, [engine], note)

    return asyncio.run(both())


def async_client_cancelled(_: None) -> Work:
    """The client's coroutine alone is cancelled; the loop lives on, ends the step and aborts the requests."""
    return asyncio.run(_cancel_client(ServedEngine(), "the background loop ended the step, then aborted"))


async def _cancel_client(engine: ServedEngine, note: str = "") -> Work:
    training, hold = await _start_and_hold(engine)
    training.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await training
    hold.go.set()
    answers = await engine.request(engines_v0.EVALUATION)
    return count_answers([(engines_v0.EVALUATION, answers)], [engine], note)


class RolloutTimeoutError(Exception):
    """The caller gave a rollout up."""


def async_loop_ended(mitigation: str | None) -> Work:
    """`asyncio.run` ends while a prefill runs, and with it the background loop; the next `asyncio.run` starts one."""
    engine = ServedEngine(mitigation)
    if mitigation == "server_mode":  # one loop for as long as the engine lives
        return asyncio.run(_cancel_client(engine))
    with contextlib.suppress(RolloutTimeoutError):
        asyncio.run(_give_up(engine))
    if mitigation == "abort_in_flight":
        engine.abort_in_flight()
    if mitigation == "fresh_engine":
        engine = ServedEngine(mitigation)
    evaluation = engines_v0.EVALUATION
    return count_answers([(evaluation, asyncio.run(engine.request(evaluation)))], [engine])


async def _give_up(engine: ServedEngine) -> None:
    hold = Hold()

    async def request() -> None:
        try:
            await engine.request(engines_v0.TRAINING, hold)
        finally:  # lets the step go on once everything was cancelled: the thread that it runs in is waited for
            hold.go.set()

    training = asyncio.create_task(request())
    inside = asyncio.create_task(asyncio.to_thread(hold.inside.wait))
    await asyncio.wait([training, inside], return_when=asyncio.FIRST_COMPLETED)
    raise RolloutTimeoutError  # what still runs is cancelled by asyncio.run, the engine's step among it


def _safe(run: Callable[[None], Work], mitigation: str | None) -> Work:
    if mitigation:
        raise InapplicableError("the failure does not come of this, so there is nothing to mitigate")
    return run(None)


def _on_whole_engine(
    run: Callable[[str | None], Work],
    simulated: tuple[str, ...],
    lacks: Callable[[], str | None] = engines_v0.missing_engine,
) -> Trigger:
    return Trigger(run.__name__, run, simulated=simulated, lacks=lacks)


def _on_safe_engine(run: Callable[[None], Work], simulated: tuple[str, ...], about: str) -> Trigger:
    return Trigger(
        run.__name__,
        partial(_safe, run),
        f"whole engine: {about}",
        occurs=False,
        simulated=simulated,
        lacks=engines_v0.missing_engine,
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
        _on_whole_engine(llm_two_threads, engines_v0.HOLDS),
        _on_whole_engine(engine_two_threads, engines_v0.HOLDS),
        _on_whole_engine(swift_two_threads, engines_v0.SWIFT_SIMULATED, engines_v0.missing_swift),
        _on_safe_engine(async_two_clients, engines_v0.HOLDS, "two tasks ask one AsyncLLMEngine; safe"),
        _on_whole_engine(llm_interrupted, engines_v0.INTERRUPTS),
        _on_whole_engine(engine_step_raised, engines_v0.FAILS),
        _on_safe_engine(
            async_step_raised,
            engines_v0.FAILS,
            "the same within AsyncLLMEngine, which refuses to be used again",
        ),
        _on_safe_engine(
            async_client_cancelled,
            engines_v0.HOLDS,
            "a client's coroutine is cancelled, AsyncLLMEngine's loop lives on; safe",
        ),
        _on_whole_engine(async_loop_ended, engines_v0.HOLDS),
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
    inapplicable=lambda: upstream.lacks("vllm/core/scheduler.py", ASSERTION, "Scheduler._schedule_default"),
)
