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

import math
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from repro import upstream
from repro.base import InapplicableError, Trigger, Work, repro
from repro.drivers import elsewhere, engines_v0, whole_engine
from repro.drivers.engines_v0 import EngineRequest, Offline, count_answers
from repro.drivers.schedulers import owners, v0
from repro.drivers.schedulers.v0 import Delivered, SchedulerRequest, Setup, check_prompt

ASSERTION = "assert len(self._async_stopped) == 0"
LIMIT = Setup.max_model_len
OVERLONG = SchedulerRequest("overlong", prompt=LIMIT + 16, max_tokens=5)
# The prompt alone is short enough; together with its minimum of new tokens it is not.
MINIMUM = SchedulerRequest("minimum", prompt=LIMIT - 4, max_tokens=30, min_tokens=16)
_BETWEEN_CALLS = {"abort_leftovers", "drain", "fresh_engine"}


def _engine(mitigation: str | None, *, chunked: bool) -> v0.V0Engine:
    setup = Setup(
        chunked=chunked and mitigation != "chunked_prefill_off", async_output=mitigation != "async_output_off"
    )
    return v0.V0Engine(setup)


def _prepare(requests: Sequence[SchedulerRequest], mitigation: str | None) -> list[SchedulerRequest]:
    """Return the requests after a mitigation that prepares the data."""
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
    prepared = _prepare(requests, mitigation)
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
    first = _prepare([OVERLONG], mitigation)
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
    """Count the answers, and report a sequence that grew past the limit, which only a device would punish."""
    tokens = {done.id: done.tokens for done in received}
    arguments = {request.id: request for request in requests}
    past = [
        f"{name} reached {length} of {LIMIT} tokens: what a device makes of that is not shown here"
        for name, length in (
            (name, arguments[name].prompt + count)
            for name, count in tokens.items()
            if count and name in arguments
        )
        if length > LIMIT + 1
    ]
    empty = [f"{name} came back empty" for name, count in tokens.items() if not count]
    return Work(
        due={request.id: _due_tokens(request) for request in requests},
        received=[(done.id, done.tokens) for done in received if done.id in arguments],
        stray=sum(done.id not in arguments for done in received),
        leaked_blocks=engine.leaked_blocks(),
        parked=engine.parked(),
        note="; ".join(empty + past),
    )


def _due_tokens(request: SchedulerRequest) -> int | None:
    """Tokens due; of one that can't have them all, any answer that comes back is one."""
    fits = request.prompt + request.max_tokens <= LIMIT
    return request.max_tokens if fits else None


# On the whole engine of vLLM's CPU build async output is off, and the assertion can't fire; below it is given one.
_OVERLONG = EngineRequest("overlong", 30, LIMIT + 16, 5)
_ROWS = (
    EngineRequest("row-0", 31, 8, 5),
    EngineRequest("row-1", 32, 11, 5),
    _OVERLONG,
    EngineRequest("row-3", 33, 9, 5),
)
_NEXT = (EngineRequest("next-0", 34, 8, 5), EngineRequest("next-1", 35, 12, 5))
_OFF_ALREADY = {
    "chunked_prefill_off": "chunked prefill is off already in this engine",
    "async_output_off": "async output is off already in this engine",
}
_NOTHING_TO_CHANGE = "there is nothing in this for it to change"


def _reused(engine: Offline, mitigation: str | None, renew: Callable[[], Offline]) -> Offline:
    """Return the engine to use next, after what the mitigation does between two calls."""
    if mitigation == "abort_leftovers":
        engine.abort_in_flight()
    elif mitigation == "drain":
        engine.scheduler.free_finished_seq_groups()
    return renew() if mitigation == "fresh_engine" else engine


def llm_overlong(mitigation: str | None) -> Work:
    """An over-long prompt, as it is: reported in upstream's words where it gets no further."""
    if mitigation:
        raise InapplicableError("the failure does not get that far here, so there is nothing to mitigate")
    engine = Offline()
    platform = _line_number("vllm/platforms/cpu.py", "def is_async_output_supported")
    config = _line_number("vllm/config.py", "current_platform.is_async_output_supported")
    reason = (
        f"vLLM's CPU platform has no async output (vllm/platforms/cpu.py:{platform} returns False, and "
        f"vllm/config.py:{config} turns it off)"
    )
    try:
        engine.generate([_OVERLONG])
    except ValueError as error:
        raise InapplicableError(f"{reason}; and LLMEngine refuses the prompt: {error}") from error
    raise InapplicableError(reason)


def _line_number(path: str, text: str) -> int:
    lines = (upstream.source(path) or "").splitlines()
    return next((number for number, line in enumerate(lines, 1) if text in line), 0)


def llm_refused_poisons_next(mitigation: str | None) -> Work:
    """`LLM.generate` refuses a batch because of one row; the rows before that one stay in the engine."""
    reason = (_OFF_ALREADY | {"cap_min_tokens": _NOTHING_TO_CHANGE}).get(mitigation or "")
    if reason:
        raise InapplicableError(reason)
    engine, first, callers = Offline(mitigation), list(_ROWS), []
    if mitigation == "filter_overlong":
        first = [row for row in _ROWS if row.length <= LIMIT]
    if mitigation == "truncate_overlong":
        first = [replace(row, length=min(row.length, LIMIT)) for row in _ROWS]
    try:
        callers = [(first, engine.generate(first))]
    except ValueError:
        engine = _reused(engine, mitigation, lambda: Offline(mitigation))
    outputs = engine.generate(_NEXT)
    # Count wrong pairs of a caller that matches answers by position, like `zip(prompts, outputs)`.
    pairs = zip(_NEXT, outputs, strict=False)
    wrong = [item.name for item, output in pairs if list(output.prompt_token_ids) != item.prompt]
    note = f"taken by their place, the answers to {', '.join(wrong)} are those to other prompts"
    return count_answers([*callers, (_NEXT, outputs)], [engine], note if wrong else "")


def llm_past_limit(mitigation: str | None) -> Work:
    """With async output off a sequence goes on to `min_tokens`, past `max_model_len`, here the model's own limit."""
    # async_output_off is what it shows: the option is given, and it happens.
    if mitigation == "chunked_prefill_off":
        raise InapplicableError(_OFF_ALREADY[mitigation])
    if mitigation not in {None, "async_output_off", "cap_min_tokens"}:
        raise InapplicableError(_NOTHING_TO_CHANGE)
    policy = whole_engine.model(0)
    policy.config.max_position_embeddings = LIMIT
    engines_v0.save_model()
    engine = Offline(mitigation, whole_engine.save(policy))
    request = replace(_ROWS[0], length=LIMIT - 4, max_tokens=30, min_tokens=16)
    params = request.params()
    params.logprobs = 0
    if mitigation == "cap_min_tokens":
        params.min_tokens = LIMIT - request.length
    [answer] = engine.outer.generate([{"prompt_token_ids": request.prompt}], [params], use_tqdm=False)
    return _count_model_logprobs(policy, request.prompt, params.min_tokens, answer.outputs[0])


def _count_model_logprobs(held: Any, prompt: Sequence[int], minimum: int, answer: Any) -> Work:
    """Count the tokens whose log-prob is the model's own; vLLM masks the end of sequence up to the minimum."""
    import torch

    with torch.no_grad():
        logits = held(torch.tensor([[*prompt, *answer.token_ids]])).logits[0, len(prompt) - 1 : -1].double()
    logits[:minimum, held.config.eos_token_id] = -math.inf
    truth = logits.log_softmax(-1)
    due = {f"token {len(prompt) + place}": 1 for place in range(len(answer.token_ids))}
    right = [
        (name, 1)
        for name, token, entry, row in zip(due, answer.token_ids, answer.logprobs, truth, strict=True)
        if abs(entry[token].logprob - float(row[token])) <= whole_engine.TOLERANCE  # never of nan
    ]
    past = max(0, len(prompt) + len(due) - LIMIT - 1)
    note = f"{len(prompt) + len(due)} tokens of {LIMIT}, {past} computed past the model's last place"
    return Work(due, right, note=note, counted="log-probs are the model's")


# Real: `LLM`, the engine with its asynchronous path, scheduler, worker, model and forward pass. Simulated, through two
# interfaces that vLLM offers: the platform's answer that asynchronous output is supported (a platform plugin), and the
# call of the engine's callback that CUDA's model runner makes during a forward pass and the CPU's does not (an executor
# class). vLLM picks its platform when it is imported, so each attempt has a process of its own, which imports it again.
_ASYNC_SIMULATED = (
    "the CPU platform's answer that it supports async output (a platform plugin)",
    "the call of the engine's async callback before each forward pass (an executor class)",
)
_MODULE = "repro.issues.sch002"
_NEIGHBOUR = EngineRequest("neighbour", 40, 5, 40)
_LEGAL = EngineRequest("legal", 42, 8, 5)


def llm_min_tokens(mitigation: str | None) -> Work:
    """One `LLM.generate` with a row whose minimum does not fit, and a neighbour that goes on."""
    if mitigation in _BETWEEN_CALLS:
        raise InapplicableError("it acts between two calls of generate(); this failure falls within one")
    return _with_async_output(mitigation, calls=1)


def llm_min_tokens_poisons_next(mitigation: str | None) -> Work:
    """The row alone: `LLM.generate` returns nothing for it, and the next call, with a legal prompt, asserts."""
    return _with_async_output(mitigation, calls=2)


def _with_async_output(mitigation: str | None, calls: int) -> Work:
    """Run in another process, whose path has a folder in which the platform plugin is declared."""
    engines_v0.engine_options(None)
    if mitigation == "chunked_prefill_off":
        raise InapplicableError(_OFF_ALREADY[mitigation])
    if mitigation in {"filter_overlong", "truncate_overlong"}:
        raise InapplicableError("no prompt is over max_model_len")
    plugins = Path(tempfile.mkdtemp(), "site")
    info = plugins / "grpo_doctor_async_output-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: grpo-doctor-async-output\nVersion: 1\n")
    entry_point = f"async_output = {_MODULE}:name_platform"
    (info / "entry_points.txt").write_text(f"[vllm.platform_plugins]\n{entry_point}\n")
    paths = [str(plugins), str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    report = elsewhere.run_program(_MODULE, {"calls": calls, "mitigation": mitigation}, environment)
    if report["failure"]:
        raise elsewhere.failed(report["failure"], report["note"])
    return Work(**report["work"])


def name_platform() -> str:
    """Name the platform's class: the plugin."""
    return "repro.drivers.async_platform.Platform"


def _executor() -> type[Any]:
    """Return vLLM's CPU executor that calls the engine back before a forward pass, as CUDA's model runner does."""
    from vllm.executor.mp_distributed_executor import MultiprocessingDistributedExecutor

    class Executor(MultiprocessingDistributedExecutor):  # type: ignore[misc]
        def execute_model(self, execute_model_req: Any) -> Any:
            if execute_model_req.async_callback:
                execute_model_req.async_callback()
                # Or the worker would pass it to a runner without a place for it.
                execute_model_req.async_callback = None
            return super().execute_model(execute_model_req)

    return Executor


def _answer_plan(plan: dict[str, Any]) -> Mapping[str, Any]:
    """Carry a plan out in the other process, and report the work it did or the failure it ended with."""
    mitigation = plan["mitigation"]

    def start() -> Offline:
        return Offline(mitigation, distributed_executor_backend=_executor())

    engine = start()
    if engine.core.model_config.use_async_output_proc == (mitigation == "async_output_off"):
        raise RuntimeError("the engine's async output is not what was asked for")
    # The prompt alone is short enough; together with its minimum of new tokens it is not.
    minimum = EngineRequest(
        "minimum", 41, LIMIT - 4, 30, min_tokens=4 if mitigation == "cap_min_tokens" else 16
    )
    first = [_NEIGHBOUR, minimum] if plan["calls"] == 1 else [minimum]
    try:
        callers = [(first, engine.generate(first))]
        if plan["calls"] == 2:
            engine = _reused(engine, mitigation, start)
            # These apply after the first call: they only make the second one work.
            callers = [] if mitigation in _BETWEEN_CALLS else callers
            callers.append(([_LEGAL], engine.generate([_LEGAL])))
        return {"failure": None, "work": asdict(count_answers(callers, [engine])), "note": ""}
    except AssertionError as error:
        failure = elsewhere.describe_error(error)
    note = "caught, everything aborted, a legal prompt asked for: "
    engine.abort_in_flight()
    try:
        note += count_answers([([_LEGAL], engine.generate([_LEGAL]))], [engine]).describe()
    except AssertionError:
        note += f"the same again, {engine.parked()} parked"
    return {"failure": failure, "work": None, "note": note}


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
        Trigger(
            "llm_overlong",
            llm_overlong,
            "whole engine: a prompt over max_model_len in LLM.generate",
            simulated=(),
            lacks=engines_v0.missing_engine,
        ),
        Trigger(
            "llm_refused_poisons_next",
            llm_refused_poisons_next,
            silent=True,
            simulated=(),
            lacks=engines_v0.missing_engine,
        ),
        Trigger("llm_past_limit", llm_past_limit, silent=True, simulated=(), lacks=engines_v0.missing_engine),
        Trigger(
            "llm_min_tokens", llm_min_tokens, simulated=_ASYNC_SIMULATED, lacks=engines_v0.missing_engine
        ),
        Trigger(
            "llm_min_tokens_poisons_next",
            llm_min_tokens_poisons_next,
            simulated=_ASYNC_SIMULATED,
            lacks=engines_v0.missing_engine,
        ),
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
    inapplicable=lambda: upstream.lacks("vllm/core/scheduler.py", ASSERTION, "Scheduler._schedule_running"),
)

if __name__ == "__main__":
    elsewhere.answer_plan(_answer_plan)
