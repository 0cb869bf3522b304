"""SCH002: let a sequence outgrow `max_model_len` in vLLM's unmodified V0 scheduler with asynchronous output.

With asynchronous output processing, a running sequence longer than `max_model_len` is put into `_async_stopped`: its
pending output should finish it, and the list is emptied as soon as anything finishes. If that output does *not* finish
it, and nothing else finishes in the same step, the next `schedule()` asserts that the list is empty. If something else
does finish, the sequence is forgotten: no error, no completion, and its KV cache blocks leak.

Two causes: chunked prefill admits a prompt longer than `max_model_len`, because it compares only the chunk with the
limit, and the stop checker does not run for a chunk that samples nothing. And below `min_tokens` the stop checker does
not check the length. The first five triggers simulate the forward pass; the others run the whole engine.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from repro import upstream
from repro.base import Trigger, Work, repro
from repro.drivers import engines_v0, subprocess_worker, whole_engine
from repro.drivers.engines_v0 import EngineRequest, Offline, count_answers
from repro.drivers.schedulers import callers, v0
from repro.drivers.schedulers.v0 import Delivered, SchedulerRequest, Setup, check_prompt

ASSERTION = "assert len(self._async_stopped) == 0"
LIMIT = Setup.max_model_len
OVERLONG = SchedulerRequest("overlong", prompt=LIMIT + 16, max_tokens=5)
# The prompt alone is short enough; together with its minimum of new tokens it is not.
WITH_MINIMUM = (
    SchedulerRequest("neighbour", prompt=5, max_tokens=40),
    SchedulerRequest("minimum", prompt=LIMIT - 4, max_tokens=30, min_tokens=16),
)
# Applied after the first call of generate(): they only make the next one work.
_BETWEEN_CALLS = {"abort_leftovers", "drain", "fresh_engine"}


def _new_engine(mitigation: str | None, *, chunked: bool) -> v0.V0Engine:
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


def _generate_once(mitigation: str | None, requests: Sequence[SchedulerRequest], *, chunked: bool) -> Work:
    """Call generate() once with all requests; the failure falls within the call."""
    engine = _new_engine(mitigation, chunked=chunked)
    prepared = _prepare(requests, mitigation)
    [received] = callers.take_turns([callers.generate(engine, prepared)])
    return _count_answers(engine, prepared, received)


def _overlong_prompt(mitigation: str | None) -> Work:
    """Its neighbour goes on: nothing finishes in the step in which the over-long one is set aside."""
    return _generate_overlong(mitigation, neighbour_tokens=30)


def _overlong_dropped(mitigation: str | None) -> Work:
    """Its neighbour ends in that very step, which empties the list."""
    return _generate_overlong(mitigation, neighbour_tokens=1)


def _generate_overlong(mitigation: str | None, neighbour_tokens: int) -> Work:
    check_prompt(OVERLONG.prompt, LIMIT)
    neighbour = SchedulerRequest("neighbour", prompt=1, max_tokens=neighbour_tokens)
    return _generate_once(mitigation, [neighbour, OVERLONG], chunked=True)


def _overlong_poisons_next(mitigation: str | None) -> Work:
    """Alone, it makes generate() return nothing; the next call, with a legal prompt, asserts."""
    check_prompt(OVERLONG.prompt, LIMIT)
    engine = _new_engine(mitigation, chunked=True)
    first = _prepare([OVERLONG], mitigation)
    [received] = callers.take_turns([callers.generate(engine, first)])
    if mitigation == "abort_leftovers":
        engine.abort(OVERLONG.id, *engine.in_flight())
    elif mitigation == "drain":
        engine.scheduler.free_finished_seq_groups()
    elif mitigation == "fresh_engine":
        engine = _new_engine(mitigation, chunked=True)
    legal = SchedulerRequest("legal", prompt=8, max_tokens=5)
    received += callers.take_turns([callers.generate(engine, [legal])])[0]
    return _count_answers(engine, [legal] if mitigation in _BETWEEN_CALLS else [*first, legal], received)


def _min_tokens(mitigation: str | None) -> Work:
    return _generate_once(mitigation, WITH_MINIMUM, chunked=False)


def _min_tokens_chunked(mitigation: str | None) -> Work:
    return _generate_once(mitigation, WITH_MINIMUM, chunked=True)


def _count_answers(
    engine: v0.V0Engine, requests: Sequence[SchedulerRequest], received: Sequence[Delivered]
) -> Work:
    """Count the answers, and note empty ones and sequences that grew past the limit."""
    by_id = {request.id: request for request in requests}
    notes = [f"{done.id} came back empty" for done in received if not done.tokens]
    for done in received:
        length = by_id[done.id].prompt + done.tokens if done.id in by_id and done.tokens else 0
        if length > LIMIT + 1:
            note = (
                f"{done.id} reached {length} of {LIMIT} tokens: what a device makes of that is not shown here"
            )
            notes.append(note)
    return Work(
        # A request that can't have all its tokens may get any number.
        due={
            request.id: request.max_tokens if request.prompt + request.max_tokens <= LIMIT else None
            for request in requests
        },
        received=[(done.id, done.tokens) for done in received if done.id in by_id],
        stray=sum(done.id not in by_id for done in received),
        leaked_blocks=engine.leaked_blocks(),
        parked=engine.parked(),
        note="; ".join(notes),
    )


# The whole engine of vLLM's CPU build. Its async output is off, so the assertion can't fire here.
_ROWS = (
    EngineRequest("row-0", 31, 8, 5),
    EngineRequest("row-1", 32, 11, 5),
    EngineRequest("overlong", 30, LIMIT + 16, 5),
    EngineRequest("row-3", 33, 9, 5),
)
_NEXT = (EngineRequest("next-0", 34, 8, 5), EngineRequest("next-1", 35, 12, 5))


def _reuse(engine: Offline, mitigation: str | None, renew: Callable[[], Offline]) -> Offline:
    """Apply the mitigation between two calls, and return the engine to use next."""
    if mitigation == "abort_leftovers":
        engine.abort_in_flight()
    elif mitigation == "drain":
        engine.scheduler.free_finished_seq_groups()
    return renew() if mitigation == "fresh_engine" else engine


def llm_refused_poisons_next(mitigation: str | None) -> Work:
    """`LLM.generate` refuses a batch because of one row; the rows before that one stay in the engine."""
    engine, first, calls = Offline(mitigation), list(_ROWS), []
    if mitigation == "filter_overlong":
        first = [row for row in _ROWS if row.length <= LIMIT]
    if mitigation == "truncate_overlong":
        first = [replace(row, length=min(row.length, LIMIT)) for row in _ROWS]
    try:
        calls = [(first, engine.generate(first))]
    except ValueError:
        engine = _reuse(engine, mitigation, partial(Offline, mitigation))
    outputs = engine.generate(_NEXT)
    # Wrong pairs of a caller that matches answers by position, like `zip(prompts, outputs)`.
    pairs = zip(_NEXT, outputs, strict=False)
    wrong = [item.name for item, output in pairs if list(output.prompt_token_ids) != item.prompt]
    note = f"taken by their place, the answers to {', '.join(wrong)} are those to other prompts"
    return count_answers([*calls, (_NEXT, outputs)], [engine], note if wrong else "")


def llm_past_limit(mitigation: str | None) -> Work:
    """With async output off a sequence goes on to `min_tokens`, past `max_model_len`, here the model's own limit."""
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


def _count_model_logprobs(model: Any, prompt: Sequence[int], minimum: int, completion: Any) -> Work:
    """Count the tokens whose log-prob is the model's own; vLLM masks the end of sequence up to the minimum."""
    import torch

    with torch.no_grad():
        logits = (
            model(torch.tensor([[*prompt, *completion.token_ids]])).logits[0, len(prompt) - 1 : -1].double()
        )
    logits[:minimum, model.config.eos_token_id] = -math.inf
    expected = logits.log_softmax(-1)
    passed = {
        # Never true of nan.
        f"token {len(prompt) + index}": abs(entry[token].logprob - float(row[token]))
        <= whole_engine.TOLERANCE
        for index, (token, entry, row) in enumerate(
            zip(completion.token_ids, completion.logprobs, expected, strict=True)
        )
    }
    length = len(prompt) + len(passed)
    past = max(0, length - LIMIT - 1)
    note = f"{length} tokens of {LIMIT}, {past} computed past the model's last place"
    return Work.of_checks(passed, "log-probs are the model's", note)


# The whole engine with async output, through two interfaces that vLLM offers: a platform plugin reports that async
# output is supported, and an executor class calls the engine's callback during a forward pass, as CUDA's model runner
# does. vLLM chooses its platform when it is imported, so each attempt imports it in a new process.
_ASYNC_SIMULATED = (
    "the CPU platform's answer that it supports async output (a platform plugin)",
    "the call of the engine's async callback before each forward pass (an executor class)",
)
_NEIGHBOUR = EngineRequest("neighbour", 40, 5, 40)
_LEGAL = EngineRequest("legal", 42, 8, 5)


def llm_min_tokens(mitigation: str | None) -> Work:
    """One `LLM.generate` with a row whose minimum does not fit, and a neighbour that goes on."""
    return _run_with_async_output(mitigation, calls=1)


def llm_min_tokens_poisons_next(mitigation: str | None) -> Work:
    """The row alone: `LLM.generate` returns nothing for it, and the next call, with a legal prompt, asserts."""
    return _run_with_async_output(mitigation, calls=2)


def _run_with_async_output(mitigation: str | None, calls: int) -> Work:
    """Run in another process, whose path has a folder that declares the platform plugin."""
    engines_v0.engine_options(None)
    plugins = Path(tempfile.mkdtemp(), "site")
    info = plugins / "grpo_doctor_async_output-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: grpo-doctor-async-output\nVersion: 1\n")
    entry_point = f"async_output = {__name__}:name_platform"
    (info / "entry_points.txt").write_text(f"[vllm.platform_plugins]\n{entry_point}\n")
    paths = [str(plugins), str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    report = subprocess_worker.run_program(__name__, {"calls": calls, "mitigation": mitigation}, environment)
    if report["failure"]:
        raise subprocess_worker.make_error(report["failure"], report["note"])
    return Work(**report["work"])


def name_platform() -> str:
    """Return the platform class to vLLM: the plugin's entry point."""
    return "repro.drivers.async_platform.Platform"


def _executor() -> type[Any]:
    """Return vLLM's CPU executor that calls the engine back before a forward pass, as CUDA's model runner does."""
    from vllm.executor.mp_distributed_executor import MultiprocessingDistributedExecutor

    class Executor(MultiprocessingDistributedExecutor):  # type: ignore[misc]
        def execute_model(self, execute_model_req: Any) -> Any:
            if execute_model_req.async_callback:
                execute_model_req.async_callback()
                # The worker would pass it to a runner that does not take it.
                execute_model_req.async_callback = None
            return super().execute_model(execute_model_req)

    return Executor


def _generate_as_planned(plan: dict[str, Any]) -> Mapping[str, Any]:
    """Generate in the other process, and report the work done or the failure."""
    mitigation = plan["mitigation"]
    start = partial(Offline, mitigation, distributed_executor_backend=_executor())
    engine = start()
    if engine.core.model_config.use_async_output_proc == (mitigation == "async_output_off"):
        raise RuntimeError("the engine's async output is not what was asked for")
    # The prompt alone is short enough; together with its minimum of new tokens it is not.
    least = 4 if mitigation == "cap_min_tokens" else 16
    minimum = EngineRequest("minimum", 41, LIMIT - 4, 30, min_tokens=least)
    first = [_NEIGHBOUR, minimum] if plan["calls"] == 1 else [minimum]
    try:
        calls = [(first, engine.generate(first))]
        if plan["calls"] == 2:
            engine = _reuse(engine, mitigation, start)
            calls = [] if mitigation in _BETWEEN_CALLS else calls
            calls.append(([_LEGAL], engine.generate([_LEGAL])))
        return {"failure": None, "work": asdict(count_answers(calls, [engine])), "note": ""}
    except AssertionError as error:
        failure = subprocess_worker.describe_error(error)
    note = "caught, everything aborted, a legal prompt asked for: "
    engine.abort_in_flight()
    try:
        note += count_answers([([_LEGAL], engine.generate([_LEGAL]))], [engine]).describe()
    except AssertionError:
        note += f"the same again, {engine.parked()} parked"
    return {"failure": failure, "work": None, "note": note}


def _whole(run: Callable[[str | None], Work], *, simulated: tuple[str, ...] = ()) -> Trigger:
    silent = not simulated
    return Trigger(run.__name__, run, silent=silent, simulated=simulated, lacks=engines_v0.missing_engine)


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
        _whole(llm_refused_poisons_next),
        _whole(llm_past_limit),
        _whole(llm_min_tokens, simulated=_ASYNC_SIMULATED),
        _whole(llm_min_tokens_poisons_next, simulated=_ASYNC_SIMULATED),
    ],
    recommended={
        "chunked_prefill_off": "vllm-project/vllm#8881",
        "filter_overlong": "hiyouga/EasyR1#210, #215",
    },
    inapplicable=lambda: upstream.lacks("vllm/core/scheduler.py", ASSERTION, "Scheduler._schedule_running"),
)

if __name__ == "__main__":
    subprocess_worker.answer_plan(_generate_as_planned)
