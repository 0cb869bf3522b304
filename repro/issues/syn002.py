"""SYN002: pause vLLM's `AsyncLLM` with mode "wait" and load weights, which then sample the rest of a preempted request.

The pause waits for running requests, but not for a request that is preempted meanwhile. `repro fuzz` found this on the
V1 scheduler (docs/search.md). This repro runs the whole unmodified engine, with its EngineCore process and CPU worker.
The failure is silent: the first log-probs of a completion are those of the old weights, the rest those of the new.
"""

import asyncio
import itertools
import os
from collections.abc import Mapping
from typing import Any

from repro import upstream
from repro.drivers import whole_engine
from repro.registry import InapplicableError, Tally, Trigger, UpstreamFailureError, repro

PROMPTS = {"first": (5, 9, 17, 33, 65), "second": (7, 3, 11, 12)}
# A block of vLLM's CPU build has 128 tokens, so each sequence needs a second block half-way.
TOKENS = 200


def _generate_with_preemption(mitigation: str | None) -> Tally:
    """Load weights during a pause, and count the completions whose tokens all come from the same weights."""
    # The engine has an EngineCore process, like in a server.
    os.environ.update(whole_engine.environment() | {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"})
    if reason := whole_engine.inapplicable_reason():
        raise InapplicableError(reason)
    old, new = whole_engine.model(0), whole_engine.model(1)
    try:
        rollout = _rollout(mitigation, whole_engine.save(old), whole_engine.save(new))
        completions, at_pause = asyncio.run(rollout)
    except Exception as error:
        raise UpstreamFailureError.from_exception(error) from error
    policies = {}
    for name, (ids, logprobs) in completions.items():
        sampled = whole_engine.SampledCompletion(PROMPTS[name], tuple(ids), ())
        by_model = (whole_engine.trainer_logprobs(model, sampled) for model in (old, new))
        policies[name] = list(map(_name_policy, logprobs, *by_model))
    return count_unmixed(policies, at_pause)


def count_unmixed(completions: Mapping[str, list[str]], at_pause: Mapping[str, int]) -> Tally:
    """Count the completions whose tokens all come from the same weights.

    Args:
        completions: For each completion, the weights that sampled each token.
        at_pause: Number of tokens of each completion when the pause was over.

    Raises:
        RuntimeError: A log-prob fits neither the old nor the new weights, or it fits both.
    """
    if any("?" in policies for policies in completions.values()):
        raise RuntimeError(f"log-probs that are of neither weights: {_describe_runs(completions)}")
    unmixed = [(name, len(policies)) for name, policies in completions.items() if len(set(policies)) == 1]
    counts = ", ".join(f"{count} of {name}" for name, count in at_pause.items())
    return Tally(
        dict.fromkeys(PROMPTS, TOKENS),
        unmixed,
        note=f"tokens when the pause was over: {counts}; {_describe_runs(completions)}",
        counted="completions are of one policy",
    )


def _describe_runs(completions: Mapping[str, list[str]]) -> str:
    """Return a text that says how many tokens of each completion the old and the new weights sampled, in order."""
    parts = []
    for name, policies in completions.items():
        runs = [f"{len(list(run))} by the {policy} weights" for policy, run in itertools.groupby(policies)]
        parts.append(f"{name}: {', then '.join(runs)}")
    return "; ".join(parts)


def _name_policy(engine: float, old: float, new: float) -> str:
    """Return which weights explain the engine's log-prob of a token: `old`, `new`, or `?` if not exactly one."""
    is_old, is_new = (abs(engine - value) <= whole_engine.TOLERANCE for value in (old, new))
    return {(True, False): "old", (False, True): "new"}.get((is_old, is_new), "?")


async def _rollout(mitigation: str | None, old: str, new: str) -> tuple[dict[str, Any], dict[str, int]]:
    """Start an engine with the old weights, and return the result of `_generate_across_pause`."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    # Three blocks are those of one sequence, and one that is vLLM's own placeholder.
    options = whole_engine.OPTIONS | {"num_gpu_blocks_override": 9 if mitigation == "enough_cache" else 3}
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(old, **options))
    try:
        return await _generate_across_pause(engine, mitigation, new)
    finally:
        engine.shutdown()


async def _generate_across_pause(
    engine: Any, mitigation: str | None, new: str
) -> tuple[dict[str, Any], dict[str, int]]:
    """Pause while both requests run, load the new weights, and resume; then repeat a request that was aborted.

    Returns:
        Ids and log-probs of each completion, and the number of tokens of each completion when the pause was over.
    """
    from vllm import SamplingParams

    params = SamplingParams(max_tokens=TOKENS, temperature=0.0, logprobs=0, ignore_eos=True, detokenize=False)
    started = {name: asyncio.Event() for name in PROMPTS}
    completions: dict[str, tuple[list[int], tuple[float, ...]]] = {}

    async def complete(name: str, request_id: str) -> None:
        prompt = {"prompt_token_ids": list(PROMPTS[name])}
        async for answer in engine.generate(prompt, params, request_id):
            [done] = answer.outputs
            completions[name] = list(done.token_ids), whole_engine.reported_logprobs(done)
            started[name].set()

    tasks = [asyncio.create_task(complete(name, name)) for name in PROMPTS]
    for event in started.values():
        await event.wait()
    if mitigation == "await_requests":
        await asyncio.gather(*tasks)
    await engine.pause_generation(mode="abort" if mitigation == "abort" else "wait")
    at_pause = {name: len(completions[name][0]) for name in PROMPTS}
    await engine.collective_rpc("reload_weights", kwargs={"weights_path": new})
    await engine.resume_generation()
    await asyncio.gather(*tasks)
    for name in PROMPTS:
        if len(completions[name][0]) < TOKENS:
            await complete(name, f"{name} again")
    return {name: completions[name] for name in PROMPTS}, at_pause


def inapplicable_reason() -> str | None:
    """Return why the failure cannot occur with the installed vLLM; None if it can."""
    return upstream.explain_missing_code(
        "vllm/v1/engine/async_llm.py", "mode: PauseMode"
    ) or upstream.explain_missing_code("vllm/v1/core/sched/scheduler.py", "PauseState.PAUSED_NEW")


repro(
    "SYN002",
    distributions=upstream.VLLM,
    triggers=[Trigger("preempted", _generate_with_preemption, silent=True)],
    inapplicable_reason=inapplicable_reason,
)
