"""SCH001: a prefill that was scheduled is still in the running queue when the next step is scheduled.

`schedule()` marks a new request as running; it leaves the prefill stage only when that step's *output* is applied.
A second `schedule()` in between finds a prefill among the running and asserts. So the failure is a step whose output
was not applied: because it was lost, or because somebody else steps the same engine meanwhile.
"""

from __future__ import annotations

from repro.base import Mitigation, NotApplicableError, Repro, Trigger, Work
from repro.schedulers import v0

ASSERTION = "assert len(running_scheduled.prefill_seq_groups) == 0"
TRAINING = {f"train-{index}": 6 for index in range(4)}
EVALUATION = {f"eval-{index}": 4 for index in range(2)}


def _setup(mitigation: str | None) -> v0.Setup:
    return v0.Setup(
        chunked=mitigation == "chunked_prefill_on",
        async_output=mitigation != "async_output_off",
        token_budget=128,
    )


def _submit(engine: v0.V0Engine, requests: dict[str, int]) -> None:
    for index, (name, tokens) in enumerate(requests.items()):
        engine.add(name, prompt=10 + 3 * index, max_tokens=tokens)


def _generate(engine: v0.V0Engine, requests: dict[str, int]) -> dict[str, int]:
    """As `LLM.generate`: submit, step until the engine is empty, return whatever finished."""
    _submit(engine, requests)
    return engine.run()


def _lost_step(mitigation: str | None) -> Work:
    """The forward pass of the first step fails; the caller keeps the engine and generates again."""
    if mitigation == "server_mode":
        raise NotApplicableError("a server stops for good when its forward pass fails (AsyncEngineDeadError)")
    engine = v0.V0Engine(_setup(mitigation))
    _submit(engine, TRAINING)
    engine.schedule()  # its output is lost: the forward pass raised
    expected = dict(EVALUATION)
    received: dict[str, int] = {}
    if mitigation == "abort_in_flight":
        engine.abort(*engine.in_flight())
    elif mitigation == "fresh_engine":
        engine = v0.V0Engine(_setup(mitigation))
        received |= _generate(engine, TRAINING)
        expected |= TRAINING
    received |= _generate(engine, EVALUATION)
    return Work(expected, received, engine.leaked_blocks)


def _cancelled_step(mitigation: str | None) -> Work:
    """A step is cancelled between schedule and output (a time-out around it); the engine is stepped again."""
    if mitigation == "server_mode":
        raise NotApplicableError("nobody but the server's own loop awaits a step, so nobody can cancel it")
    engine = v0.V0Engine(_setup(mitigation))
    _submit(engine, TRAINING)
    engine.schedule()  # cancelled while the forward pass ran
    if mitigation == "abort_in_flight":
        engine.abort(*engine.in_flight())
        return Work(EVALUATION, _generate(engine, EVALUATION), engine.leaked_blocks)
    if mitigation == "fresh_engine":
        engine = v0.V0Engine(_setup(mitigation))
        _submit(engine, TRAINING)
    return Work(TRAINING, engine.run(), engine.leaked_blocks)


def _two_owners(mitigation: str | None) -> Work:
    """Training's step is in the forward pass when evaluation starts to generate on the same engine."""
    engine = v0.V0Engine(_setup(mitigation))
    if mitigation in {"one_owner", "lock_around_generate"}:
        train = _generate(engine, TRAINING)  # evaluation waits for its return
        return _delivered(train, _generate(engine, EVALUATION), engine.leaked_blocks)
    if mitigation == "server_mode":
        _submit(engine, TRAINING)
        by_id = engine.step()
        _submit(
            engine, EVALUATION
        )  # joins the queue of the one loop that steps; answers go out by request id
        by_id |= engine.run()
        train = {name: tokens for name, tokens in by_id.items() if name in TRAINING}
        return _delivered(train, {n: t for n, t in by_id.items() if n in EVALUATION}, engine.leaked_blocks)
    if mitigation == "lock_around_step":
        return _alternating(engine)
    _submit(engine, TRAINING)
    step = (
        engine.schedule()
    )  # training's thread is in the forward pass, the GIL is free: evaluation's thread runs
    if mitigation == "fresh_engine":
        other = v0.V0Engine(_setup(mitigation))
        evaluation = _generate(other, EVALUATION)
        train = engine.complete(step) | engine.run()
        return _delivered(train, evaluation, engine.leaked_blocks + other.leaked_blocks)
    if mitigation == "abort_in_flight":
        engine.abort(*engine.in_flight())
    _submit(engine, EVALUATION)
    evaluation = engine.step() | engine.step()
    train = engine.complete(step)  # training's forward pass returns
    evaluation |= engine.run()
    return _delivered(train | engine.run(), evaluation, engine.leaked_blocks)


def _alternating(engine: v0.V0Engine) -> Work:
    """Whole steps alternate under a lock: each caller keeps what finished in the steps it made itself."""
    _submit(engine, TRAINING)
    _submit(engine, EVALUATION)
    train: dict[str, int] = {}
    evaluation: dict[str, int] = {}
    while engine.unfinished:
        train |= engine.step()
        if engine.unfinished:
            evaluation |= engine.step()
    return _delivered(train, evaluation, engine.leaked_blocks)


def _delivered(train: dict[str, int], evaluation: dict[str, int], leaked_blocks: int) -> Work:
    """A completion counts for its request only where the caller who asked for it received it."""
    right = {n: t for n, t in train.items() if n in TRAINING} | {
        n: t for n, t in evaluation.items() if n in EVALUATION
    }
    wrong = len(train) + len(evaluation) - len(right)
    note = f"no error, but {wrong} completions went to the wrong caller" if wrong else ""
    return Work(TRAINING | EVALUATION, right, leaked_blocks, note)


_BOTH_LOST = frozenset({"lost_step", "cancelled_step"})
_OWNERS = frozenset({"two_owners"})

SCH001 = Repro(
    code="SCH001",
    title="A prefill is still in the running queue when the next step is scheduled",
    assertion=ASSERTION,
    modules=v0.MODULES,
    simulated=v0.SIMULATED,
    triggers=(
        Trigger(
            "lost_step", "the forward pass of a step fails; the engine is kept and used again", _lost_step
        ),
        Trigger(
            "cancelled_step",
            "a step is cancelled between schedule and output; stepping goes on",
            _cancelled_step,
        ),
        Trigger(
            "two_owners", "evaluation generates while training's step is in the forward pass", _two_owners
        ),
    ),
    mitigations=(
        Mitigation(
            "one_owner", "one caller owns the engine; the other waits until its rollout is done", _OWNERS
        ),
        Mitigation("lock_around_generate", "one lock around the whole of generate()", _OWNERS),
        Mitigation(
            "server_mode", "one process owns the engine; training and evaluation submit to it", _OWNERS
        ),
        Mitigation(
            "abort_in_flight", "abort everything in flight before the engine is used again", _BOTH_LOST
        ),
        Mitigation(
            "fresh_engine",
            "a new engine instead of the broken one, or one for each owner",
            _BOTH_LOST | _OWNERS,
        ),
        Mitigation("chunked_prefill_on", "enable_chunked_prefill=True, which takes another path", _BOTH_LOST),
        Mitigation("lock_around_step", "a lock around each step() only", frozenset()),
        Mitigation("async_output_off", "disable_async_output_proc=True", frozenset()),
    ),
    inapplicable=lambda: v0.missing_code(method="_schedule_default", statement=ASSERTION),
)
