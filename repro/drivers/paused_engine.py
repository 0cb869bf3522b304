"""A process that runs vLLM's `AsyncLLM` through a pause that lets what runs end; a program for `elsewhere`.

Nothing is simulated: the engine and its EngineCore process are vLLM's, on a CPU; the model is tiny and its weights are
random. The KV cache holds one whole sequence, so that of two one is preempted when both get long. Which weights a token
was sampled from is told by its log-prob: the engine's is compared with that of the old model and of the new one.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

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


def run(plan: dict[str, Any]) -> dict[str, Any]:
    """Generates, pauses, loads new weights, resumes, and says of which weights each token is.

    Args:
        plan: `mode` of the pause; `room`, a key of `BLOCKS`; `first_await`: the pause is asked for when all is done.
    """
    os.environ.update(_ENVIRONMENT)
    reason = whole_engine.inapplicable()
    if reason:
        return {"inapplicable": reason}
    old, new = whole_engine.model(0), whole_engine.model(1)
    try:
        found = asyncio.run(_rollout(plan, whole_engine.save(old), whole_engine.save(new)))
    except BaseException as error:  # noqa: BLE001 - every end is a result
        return {"failure": elsewhere.told(error)}
    return {
        "completions": {
            name: [_policy(token, engine) for token, engine in zip(sides, logprobs, strict=True)]
            for name, (ids, logprobs) in found["completions"].items()
            for sides in [_both(old, new, PROMPTS[name], ids)]
        },
        "at_pause": found["at_pause"],
    }


def _both(old: Any, new: Any, prompt: tuple[int, ...], ids: list[int]) -> list[tuple[float, float]]:
    """Returns each token's log-prob by the old weights and by the new."""
    sampled = whole_engine.Sampled(prompt, tuple(ids), ())
    return list(zip(whole_engine.trainers(old, sampled), whole_engine.trainers(new, sampled), strict=True))


def _policy(sides: tuple[float, float], engine: float) -> str:
    """Names the weights whose log-prob is the engine's."""
    near = [abs(engine - side) <= whole_engine.TOLERANCE for side in sides]
    return {(True, False): "old", (False, True): "new"}.get((near[0], near[1]), "?")


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
    """Both requests run when the pause is asked for; what it cut off is asked for again after it."""
    begun = {name: asyncio.Event() for name in PROMPTS}
    counts = dict.fromkeys(PROMPTS, 0)

    def seen(name: str, tokens: int) -> None:
        counts[name] = tokens
        begun[name].set()

    tasks = {name: asyncio.create_task(_complete(engine, name, seen)) for name in PROMPTS}
    for event in begun.values():
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
            completions[name] = await _complete(engine, name, seen, again=True)
    return {"completions": completions, "at_pause": at_pause}


async def _complete(
    engine: Any, name: str, seen: Callable[[str, int], None], *, again: bool = False
) -> tuple[list[int], list[float]]:
    """Returns a completion's ids, and the log-prob that the engine reported for each."""
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
        seen(name, len(ids))
    return ids, logprobs


if __name__ == "__main__":
    elsewhere.answer(run)
