"""SYN002: a pause that waits for what runs forgets a request that is preempted meanwhile, and new weights finish it.

The search over the real V1 scheduler found it (docs/search.md); here it happens on the whole engine: `AsyncLLM`, its
EngineCore process, its CPU worker. Nothing is raised. What shows it is the log-probs of one completion, of which the
first are those of the old weights and the rest those of the new.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable, Mapping
from typing import Any

from repro import upstream
from repro.base import InapplicableError, Trigger, Work, repro
from repro.drivers import elsewhere, whole_engine

PROMPTS = {"first": (5, 9, 17, 33, 65), "second": (7, 3, 11, 12)}
# A block of vLLM's CPU build has 128 tokens, so each sequence needs its second one half-way.
TOKENS = 200
BLOCKS = {"one sequence": 3, "all sequences": 9}  # one of them is vLLM's own placeholder
_ENVIRONMENT = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "HF_HUB_OFFLINE": "1",
}
_ENGINE = "vllm/v1/engine/async_llm.py"
_SCHEDULER = "vllm/v1/core/sched/scheduler.py"
PLANS: dict[str | None, dict[str, Any]] = {
    None: {},
    "abort": {"mode": "abort"},
    "await_requests": {"first_await": True},
    "enough_cache": {"room": "all sequences"},
}


def make_plan(mitigation: str | None) -> dict[str, Any]:
    """Return the plan of the other process."""
    return {"mode": "wait", "room": "one sequence", "first_await": False} | PLANS[mitigation]


def work(report: Mapping[str, Any]) -> Work:
    """Count the completions that are of one policy from their first token to their last.

    Raises:
        ElsewhereError: upstream's code ended the other process.
        InapplicableError: no engine can be run there.
    """
    if "inapplicable" in report:
        raise InapplicableError(report["inapplicable"])
    if "failure" in report:
        raise elsewhere.failed(report["failure"])
    completions: Mapping[str, list[str]] = report["completions"]
    if any("?" in policies for policies in completions.values()):
        raise RuntimeError(f"log-probs that are of neither weights: {_describe_runs(completions)}")
    expected = [(name, len(policies)) for name, policies in completions.items() if len(set(policies)) == 1]
    at_pause = ", ".join(f"{count} of {name}" for name, count in report["at_pause"].items())
    return Work(
        dict.fromkeys(PROMPTS, TOKENS),
        expected,
        note=f"tokens when the pause was over: {at_pause}; {_describe_runs(completions)}",
        counted="completions are of one policy",
    )


def _describe_runs(completions: Mapping[str, list[str]]) -> str:
    return "; ".join(
        f"{name}: "
        + ", then ".join(
            f"{len(list(run))} by the {policy} weights" for policy, run in itertools.groupby(kinds)
        )
        for name, kinds in completions.items()
    )


def _carry_out(mitigation: str | None) -> Work:
    return work(elsewhere.run_program("repro.issues.syn002", make_plan(mitigation), os.environ))


# The other process runs vLLM's `AsyncLLM` and its EngineCore process on a CPU, with a tiny model of random weights.
def generate_as_planned(plan: dict[str, Any]) -> dict[str, Any]:
    """Generate, pause, load new weights and resume; return the weights that sampled each token.

    Args:
        plan: `mode` of the pause; `room`, a key of `BLOCKS`; `first_await`: the pause is asked for when all is done.
    """
    os.environ.update(_ENVIRONMENT)
    reason = whole_engine.inapplicable()
    if reason:
        return {"inapplicable": reason}
    old, new = whole_engine.model(0), whole_engine.model(1)
    try:
        result = asyncio.run(_rollout(plan, whole_engine.save(old), whole_engine.save(new)))
    except BaseException as error:  # noqa: BLE001 - every end is a result
        return {"failure": elsewhere.describe_error(error)}
    return {
        "completions": {
            name: [_policy(token, engine) for token, engine in zip(sides, logprobs, strict=True)]
            for name, (ids, logprobs) in result["completions"].items()
            for sides in [_both(old, new, PROMPTS[name], ids)]
        },
        "at_pause": result["at_pause"],
    }


def _both(old: Any, new: Any, prompt: tuple[int, ...], ids: list[int]) -> list[tuple[float, float]]:
    """Return each token's log-prob by the old weights and by the new."""
    sampled = whole_engine.Sampled(prompt, tuple(ids), ())
    return list(zip(whole_engine.trainers(old, sampled), whole_engine.trainers(new, sampled), strict=True))


def _policy(sides: tuple[float, float], engine: float) -> str:
    """Name the weights whose log-prob is the engine's."""
    close = [abs(engine - side) <= whole_engine.TOLERANCE for side in sides]
    return {(True, False): "old", (False, True): "new"}.get((close[0], close[1]), "?")


async def _rollout(plan: dict[str, Any], old: str, new: str) -> dict[str, Any]:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    engine = AsyncLLM.from_engine_args(
        AsyncEngineArgs(
            old,
            dtype="float32",
            skip_tokenizer_init=True,
            enforce_eager=True,
            max_model_len=whole_engine.LIMIT,
            enable_chunked_prefill=False,
            max_num_batched_tokens=4096,
            num_gpu_blocks_override=BLOCKS[plan["room"]],
        )
    )
    try:
        return await _paused(engine, plan, new)
    finally:
        engine.shutdown()


async def _paused(engine: Any, plan: dict[str, Any], new: str) -> dict[str, Any]:
    """Pause while both requests run; request their aborted rest again afterwards."""
    started_events = {name: asyncio.Event() for name in PROMPTS}
    counts = dict.fromkeys(PROMPTS, 0)

    def note_tokens(name: str, tokens: int) -> None:
        counts[name] = tokens
        started_events[name].set()

    tasks = {name: asyncio.create_task(_complete(engine, name, note_tokens)) for name in PROMPTS}
    for event in started_events.values():
        await event.wait()
    if plan["first_await"]:
        await asyncio.gather(*tasks.values())
    await engine.pause_generation(mode=plan["mode"])
    at_pause = dict(counts)
    await engine.collective_rpc("reload_weights", kwargs={"weights_path": new})
    await engine.resume_generation()
    completions = {name: await task for name, task in tasks.items()}
    for name, (ids, _logprobs) in completions.items():
        if len(ids) < TOKENS:
            completions[name] = await _complete(engine, name, note_tokens, again=True)
    return {"completions": completions, "at_pause": at_pause}


async def _complete(
    engine: Any, name: str, note_tokens: Callable[[str, int], None], *, again: bool = False
) -> tuple[list[int], list[float]]:
    """Return a completion's ids, and the log-prob that the engine reported for each."""
    import vllm

    params = vllm.SamplingParams(
        max_tokens=TOKENS, temperature=0.0, logprobs=0, ignore_eos=True, detokenize=False
    )
    prompt = {"prompt_token_ids": list(PROMPTS[name])}
    ids: list[int] = []
    logprobs: list[float] = []
    async for answer in engine.generate(prompt, params, f"{name} again" if again else name):
        [done] = answer.outputs
        ids = list(done.token_ids)
        logprobs = [float(place[token].logprob) for place, token in zip(done.logprobs, ids, strict=True)]
        note_tokens(name, len(ids))
    return ids, logprobs


def inapplicable() -> str | None:
    """Return which piece of the failure the installed vLLM lacks; None if all are there."""
    distribution = upstream.installed(upstream.VLLM)
    release = f"{distribution.metadata['Name']} {distribution.version}" if distribution else "vLLM"
    if "mode: PauseMode" not in (upstream.source(_ENGINE) or ""):
        return f"pause_generation of {release} has no modes"
    if "PauseState.PAUSED_NEW" not in (upstream.source(_SCHEDULER) or ""):
        return f"the scheduler of {release} does not know of a pause"
    return None


repro(
    "SYN002",
    distributions=upstream.VLLM,
    triggers=[Trigger("preempted", _carry_out, silent=True)],
    mitigations={
        "abort": 'pause_generation(mode="abort"), and ask again for what was cut off',
        "await_requests": "every request is awaited before the pause",
        "enough_cache": "a KV cache that holds all requests whole",
    },
    inapplicable=inapplicable,
)

if __name__ == "__main__":
    elsewhere.answer_plan(generate_as_planned)
