"""SCH001: schedule a step of vLLM's unmodified V0 scheduler before the output of the previous prefill was applied.

`schedule()` marks a new request as running, and the request leaves the prefill stage only when the *output* of that
step is applied. A second `schedule()` in between finds a prefill among the running requests and asserts. The
scheduler's comment gives the assumption: "the engine assumes that a failure in model execution will crash the vLLM
instance / will not retry". If the assertion fails, the output of a scheduled step was lost, or another caller stepped
the same engine before it was applied. The forward pass is simulated. The callers are generators that take turns,
instead of threads and coroutines.
"""

import contextlib
import threading
from collections.abc import Sequence

from repro.drivers.schedulers import callers, v0
from repro.drivers.schedulers.v0 import ForwardPassError, SchedulerRequest, V0Setup
from repro.registry import Tally, Trigger

TRAINING = [SchedulerRequest(f"train-{index}", prompt=10 + 3 * index, max_tokens=6) for index in range(4)]
EVALUATION = [SchedulerRequest(f"eval-{index}", prompt=8 + 5 * index, max_tokens=4) for index in range(2)]


class _Rollouts:
    """An engine whose callers apply a mitigation, or none."""

    def __init__(self, mitigation: str | None) -> None:
        self.mitigation = mitigation
        self.engine = _new_engine(mitigation)
        self._lock = threading.Lock()

    def generate(self, requests: Sequence[SchedulerRequest]) -> callers.Caller:
        """Return a caller that generates with the lock of the mitigation, if any; it has not begun."""
        if self.mitigation == "lock_around_generate":
            return callers.generate_locked(self.engine, requests, self._lock)
        step_lock = self._lock if self.mitigation == "lock_around_step" else None
        return callers.generate(self.engine, requests, step_lock)

    def prepare_reuse(self) -> None:
        """Apply the mitigation, if it is one between two uses of the engine."""
        if self.mitigation == "abort_in_flight":
            self.engine.abort(*self.engine.in_flight())
        if self.mitigation == "fresh_engine":
            self.engine = _new_engine(self.mitigation)


def _new_engine(mitigation: str | None = None) -> v0.V0Engine:
    """Return a V0 engine, configured by the mitigation."""
    # The token budget is enough for all prompts in one step, like in most real engines.
    setup = V0Setup(
        chunked=mitigation == "chunked_prefill_on",
        async_output=mitigation != "async_output_off",
        token_budget=128,
    )
    return v0.V0Engine(setup)


def _lost_step(mitigation: str | None) -> Tally:
    """Training's first forward pass fails; the caller catches the exception, keeps the engine, and evaluates."""
    rollouts = _Rollouts(mitigation)
    training = rollouts.generate(TRAINING)
    next(training)
    with contextlib.suppress(ForwardPassError):
        training.throw(ForwardPassError("out of memory"))
    return _evaluate(rollouts)


def _cancelled_step(mitigation: str | None) -> Tally:
    """The coroutine that awaits training's first step is cancelled; evaluation then uses the engine."""
    if mitigation == "server_mode":
        return _serve_both(cancel_training=True)
    rollouts = _Rollouts(mitigation)
    training = rollouts.generate(TRAINING)
    next(training)
    training.close()
    return _evaluate(rollouts)


def _evaluate(rollouts: _Rollouts) -> Tally:
    """Generate for evaluation after training gave up its requests; only evaluation's answers are due."""
    rollouts.prepare_reuse()
    [received] = callers.take_turns([rollouts.generate(EVALUATION)])
    return v0.count_answers([rollouts.engine], [(EVALUATION, received)])


def _two_owners(mitigation: str | None) -> Tally:
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
    return v0.count_answers(engines, [(TRAINING, trained), (EVALUATION, evaluated)])


def _serve_both(*, cancel_training: bool = False) -> Tally:
    """Submit evaluation's requests to a server loop, and possibly cancel training's, while training's step runs."""
    server = callers.ServingLoop(_new_engine())
    server.submit(TRAINING)
    loop = server.loop()
    next(loop)
    if cancel_training:
        server.cancel(TRAINING)
    server.submit(EVALUATION)
    callers.take_turns([loop])
    clients = [EVALUATION] if cancel_training else [TRAINING, EVALUATION]
    return v0.count_answers([server.engine], [(sent, server.completions_of(sent)) for sent in clients])


v0.repro(
    "SCH001",
    "assert len(running_scheduled.prefill_seq_groups) == 0",
    triggers=[
        Trigger("lost_step", _lost_step),
        Trigger("cancelled_step", _cancelled_step),
        Trigger("two_owners", _two_owners),
    ],
)
