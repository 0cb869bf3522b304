"""SCH002: a sequence that was set aside as stopped is still there when the next step is scheduled.

With asynchronous output processing, a running sequence longer than `max_model_len` is put into `_async_stopped`: its
pending output is taken to finish it, and as soon as anything finishes the list is emptied. If that output does *not*
finish it, and nothing else finishes in the same step, the next `schedule()` asserts that the list is empty. If
something else does finish, the sequence is forgotten: no error, no completion, and its KV cache blocks are gone.

Two ways lead there. A prompt longer than `max_model_len`: chunked prefill admits it because it compares the chunk, cut
to the step's budget, with the limit, and a chunk that samples nothing is never looked at by the stop checker. And
`min_tokens`: below it the stop checker doesn't look at the length at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from repro import upstream
from repro.base import InapplicableError, Trigger, Work, repro
from repro.drivers.engines_v0 import async_output, leftovers
from repro.drivers.engines_v0.engine import needed
from repro.drivers.schedulers import owners, v0
from repro.drivers.schedulers.v0_setup import Delivered, SchedulerRequest, Setup, check_prompt

ASSERTION = "assert len(self._async_stopped) == 0"
LIMIT = Setup.max_model_len
OVERLONG = SchedulerRequest("overlong", prompt=LIMIT + 16, max_tokens=5)
# By itself the prompt is short enough; with the tokens it must produce it is not.
MINIMUM = SchedulerRequest("minimum", prompt=LIMIT - 4, max_tokens=30, min_tokens=16)
_BETWEEN_CALLS = {"abort_leftovers", "drain", "fresh_engine"}


def _engine(mitigation: str | None, *, chunked: bool) -> v0.V0Engine:
    setup = Setup(
        chunked=chunked and mitigation != "chunked_prefill_off", async_output=mitigation != "async_output_off"
    )
    return v0.V0Engine(setup)


def _prepared(requests: Sequence[SchedulerRequest], mitigation: str | None) -> list[SchedulerRequest]:
    """Returns what is submitted of these requests under a mitigation that prepares the data."""
    if mitigation == "filter_overlong":
        return [request for request in requests if request.prompt <= LIMIT]
    if mitigation == "truncate_overlong":
        return [replace(request, prompt=min(request.prompt, LIMIT)) for request in requests]
    if mitigation == "cap_min_tokens":
        return [
            replace(request, min_tokens=min(request.min_tokens, max(0, LIMIT - request.prompt)))
            for request in requests
        ]
    return list(requests)


def _in_one_call(mitigation: str | None, requests: Sequence[SchedulerRequest], *, chunked: bool) -> Work:
    """One generate() with all of them; the failure falls within it."""
    if mitigation in _BETWEEN_CALLS:
        raise InapplicableError("it acts between two calls of generate(); this failure falls within one")
    engine = _engine(mitigation, chunked=chunked)
    prepared = _prepared(requests, mitigation)
    [received] = owners.take_turns([owners.generate(engine, prepared)])
    return _work(engine, prepared, received)


def _overlong(mitigation: str | None, neighbour: SchedulerRequest) -> Work:
    check_prompt(OVERLONG.prompt, LIMIT)
    return _in_one_call(mitigation, [neighbour, OVERLONG], chunked=True)


def _overlong_prompt(mitigation: str | None) -> Work:
    """Its neighbour goes on: nothing finishes in the step in which the over-long one is set aside."""
    return _overlong(mitigation, SchedulerRequest("neighbour", prompt=1, max_tokens=30))


def _overlong_dropped(mitigation: str | None) -> Work:
    """Its neighbour ends in that very step, which empties the list."""
    return _overlong(mitigation, SchedulerRequest("neighbour", prompt=1, max_tokens=1))


def _overlong_poisons_next(mitigation: str | None) -> Work:
    """Alone, it makes generate() return nothing; the next call, with a legal prompt, meets what it left."""
    check_prompt(OVERLONG.prompt, LIMIT)
    engine = _engine(mitigation, chunked=True)
    first = _prepared([OVERLONG], mitigation)
    [received] = owners.take_turns([owners.generate(engine, first)])
    if mitigation == "abort_leftovers":
        engine.abort(OVERLONG.id, *engine.in_flight())
    elif mitigation == "drain":
        engine.scheduler.free_finished_seq_groups()
    elif mitigation == "fresh_engine":
        engine = _engine(mitigation, chunked=True)
    legal = SchedulerRequest("legal", prompt=8, max_tokens=5)
    received += owners.take_turns([owners.generate(engine, [legal])])[0]
    if mitigation in _BETWEEN_CALLS:
        first = []  # they come too late for the first call: what they promise is a second one that works
    return _work(engine, [*first, legal], received)


def _min_tokens(mitigation: str | None) -> Work:
    return _in_one_call(
        mitigation, [SchedulerRequest("neighbour", prompt=5, max_tokens=40), MINIMUM], chunked=False
    )


def _min_tokens_chunked(mitigation: str | None) -> Work:
    return _in_one_call(
        mitigation, [SchedulerRequest("neighbour", prompt=5, max_tokens=40), MINIMUM], chunked=True
    )


def _work(engine: v0.V0Engine, requests: Sequence[SchedulerRequest], received: Sequence[Delivered]) -> Work:
    """Counts what came back; says so where a sequence grew past the limit, which only a device would punish."""
    tokens = {done.id: done.tokens for done in received}
    asked = {request.id: request for request in requests}
    past = [
        f"{name} reached {length} of {LIMIT} tokens: what a device makes of that is not shown here"
        for name, length in (
            (name, asked[name].prompt + count) for name, count in tokens.items() if count and name in asked
        )
        if length > LIMIT + 1
    ]
    empty = [f"{name} came back empty" for name, count in tokens.items() if not count]
    return Work(
        due={request.id: _due(request) for request in requests},
        received=[(done.id, done.tokens) for done in received if done.id in asked],
        stray=sum(done.id not in asked for done in received),
        leaked_blocks=engine.leaked_blocks(),
        parked=engine.parked(),
        note="; ".join(empty + past),
    )


def _due(request: SchedulerRequest) -> int | None:
    """Tokens due; of one that can't have them all, any answer that comes back is one."""
    fits = request.prompt + request.max_tokens <= LIMIT
    return request.max_tokens if fits else None


_WHOLE_ENGINE = (
    Trigger(
        "llm_overlong",
        leftovers.llm_overlong,
        about="whole engine: a prompt over max_model_len in LLM.generate",
        simulated=(),
        lacks=needed,
    ),
    Trigger(
        "llm_refused_poisons_next",
        leftovers.llm_refused_poisons_next,
        silent=True,
        simulated=(),
        lacks=needed,
    ),
    Trigger("llm_past_limit", leftovers.llm_past_limit, silent=True, simulated=(), lacks=needed),
    Trigger("llm_min_tokens", async_output.llm_min_tokens, simulated=async_output.SIMULATED, lacks=needed),
    Trigger(
        "llm_min_tokens_poisons_next",
        async_output.llm_min_tokens_poisons_next,
        simulated=async_output.SIMULATED,
        lacks=needed,
    ),
)

repro(
    "SCH002",
    assertion=ASSERTION,
    distributions=upstream.VLLM,
    modules=v0.MODULES,
    helpful_modules=v0.HELPFUL_MODULES,
    simulated=v0.SIMULATED,
    triggers=[
        Trigger("overlong_prompt", _overlong_prompt),
        Trigger("overlong_dropped", _overlong_dropped, silent=True),
        Trigger("overlong_poisons_next", _overlong_poisons_next),
        Trigger("min_tokens", _min_tokens),
        Trigger("min_tokens_chunked", _min_tokens_chunked),
        *_WHOLE_ENGINE,
    ],
    mitigations={
        "chunked_prefill_off": ("enable_chunked_prefill=False", "vllm-project/vllm#8881"),
        "async_output_off": "disable_async_output_proc=True",
        "filter_overlong": ("leave out prompts over max_model_len", "hiyouga/EasyR1#210, #215"),
        "truncate_overlong": "cut prompts to max_model_len",
        "cap_min_tokens": "keep prompt + min_tokens within max_model_len",
        "abort_leftovers": "abort_request() of everything before the next generate()",
        "drain": "free_finished_seq_groups() before the next generate()",
        "fresh_engine": "a new engine before the next generate()",
    },
    inapplicable=lambda: upstream.lacks("vllm/core/scheduler.py", "Scheduler._schedule_running", ASSERTION),
)
