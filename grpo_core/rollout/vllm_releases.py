"""Handle differences between vLLM releases for the in-process engine: environment, arguments, weights, cache, shutdown.

- 0.8 and 0.9: V0, the older engine. Its log-probs are those of the sampling distribution. V1 of these releases returns
  log-probs before temperature, and in 0.8.5 supports neither float32 nor a CPU.
- 0.10: V1, with `logprobs_mode` for log-probs after temperature.
- From 0.11 on: there is only V1.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import os
import re
from typing import TYPE_CHECKING, Any

from grpo_core.rollout.engine import EngineError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

TESTED = ("0.8.5", "0.9.2", "0.10.2", "0.11.0", "0.27.1", "0.28.0", "0.30.0", "0.31.0", "0.32.0")

# The user's own environment overrides these.
_DEFAULTS = {
    "VLLM_LOGGING_LEVEL": "ERROR",  # without a tokenizer it warns with whole tracebacks about chat templates
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",  # stdout belongs to the program's one JSON document
    "VLLM_NO_USAGE_STATS": "1",
}


def prepare_import() -> None:
    """Set the environment variables that vLLM reads when it is imported."""
    import torch

    # V1 would put the engine into a child process, which can't be given tensors.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    # Unset, vLLM would reduce the trainer's torch threads to one "for serving".
    for key, value in {**_DEFAULTS, "OMP_NUM_THREADS": str(torch.get_num_threads())}.items():
        os.environ.setdefault(key, value)


def base_release(version: str) -> str:
    """Return the release number of a build, without local and post parts.

    >>> base_release("0.10.2.post2+cpu")
    '0.10.2'
    """
    match = re.match(r"\d+(\.\d+){0,2}", version)
    return match[0] if match else version


def is_older(version: str, than: str) -> bool:
    """Return whether a build's release is older than `than`; a version that can't be parsed counts as new.

    >>> is_older("0.9.2.post2", "0.10.0"), is_older("0.10.0+cpu", "0.10.0"), is_older("dev", "0.10.0")
    (True, False, False)
    """
    if not re.match(r"\d+\.\d+", version):
        return False
    parts = ([int(part) for part in base_release(name).split(".")] for name in (version, than))
    return next(parts) < next(parts)


def prepare_start(version: str, kv_cache_gib: float) -> None:
    """Set the environment variables that vLLM reads when an engine is started; they depend on the release."""
    # The CPU worker would pin this process, and so the trainer, to cores of its choice. "all" prevents that up to
    # 0.11.0, and has another meaning from 0.12.0 on.
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "all" if is_older(version, "0.12") else "nobind"
    if is_older(version, "0.11"):  # 0.10 has both, and V0 not on every platform
        os.environ["VLLM_USE_V1"] = "0" if is_older(version, "0.10") else "1"
    if is_older(version, "0.27"):  # whole GiB: the CPU workers of old releases have no argument for it
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", str(math.ceil(kv_cache_gib)))


def engine_arguments(version: str, *, max_model_len: int, kv_cache_gib: float) -> dict[str, Any]:
    """Return arguments of `vllm.LLM` that replace its automatic choices; optional ones only if the release has them."""
    from vllm import config
    from vllm.engine.arg_utils import EngineArgs

    mode = getattr(config, "LogprobsMode", None)  # for log-probs after temperature; in 0.10.2 an enum
    names = {entry.name for entry in dataclasses.fields(EngineArgs)}
    v0 = is_older(version, "0.10")
    arguments: dict[str, Any] = {
        "max_model_len": max_model_len,
        "enforce_eager": True,  # a compiled graph costs minutes here and gains nothing
        "generation_config": "vllm",  # not the model's generation_config.json
        # On a CPU, a seeded request whose prefill is split over steps kills the engine with "CPU Generator does
        # not use offset" (0.31.0: v1/worker/gpu_model_runner.py:3701). V1 of 0.10 splits in spite of this
        # argument, so `Stepper` never gives it more prompts than fit.
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": max(max_model_len, 4096),  # so that a whole prompt always fits
        # A group shares its prompt. The cache is dropped at every update. V0 on a CPU would need another package.
        "enable_prefix_caching": not v0,
        "disable_log_stats": True,
    }
    optional: dict[str, Any] = {
        "logprobs_mode": mode("processed_logprobs") if inspect.isclass(mode) else "processed_logprobs",
        "kv_cache_memory_bytes": int(kv_cache_gib * 2**30),
        # Otherwise results lag a step behind, and an abort leaves a step unfinished.
        "async_scheduling": False,
    }
    # V0's name for it; asynchronous output causes SCH002 there. V1 would switch to V0 for this argument.
    if v0:
        optional["disable_async_output_proc"] = True
    return arguments | {name: value for name, value in optional.items() if name in names}


def engine_version(llm: Any) -> str:
    """Return the engine that vLLM has started, `V0` or `V1`."""
    return "V1" if type(llm.llm_engine).__module__.startswith("vllm.v1.") else "V0"


def engine_prompt(ids: Sequence[int]) -> Any:
    """Return token ids in the prompt format of the engine's `add_request`."""
    from vllm import inputs

    tokens_input = getattr(inputs, "tokens_input", None)  # old releases take a dictionary without a type
    return {"prompt_token_ids": list(ids)} if tokens_input is None else tokens_input(list(ids))


def load_weights(llm: Any, tensors: Mapping[str, torch.Tensor]) -> None:
    """Load all parameters with `reload_weights` or `load_weights`, whichever this release supports.

    Where `reload_weights` takes tensors it must be used: `load_weights`, which most trainers call, fails on the
    CPU build's packed parameters and leaves the model half old, half new. Builds up to 0.11.0 pack nothing.

    Raises:
        EngineError: vLLM did not load some of its own parameters.
    """
    if llm.collective_rpc(_reload_takes_tensors)[0]:
        llm.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(tensors.items())})
        return
    stale = llm.collective_rpc(_load, args=(tensors,))[0]
    if stale:
        raise EngineError(
            f"vllm engine, update_weights: vLLM did not load {', '.join(stale[:3])}; use a release whose "
            "reload_weights takes tensors (0.27.1 and later were tried)"
        )


def reset_prefix_cache(llm: Any) -> None:
    """Drop all cached keys and values.

    Raises:
        EngineError: vLLM reports that it did not drop them. V1 of 0.10 never reports this.
    """
    if llm.reset_prefix_cache() is False:
        raise EngineError("vllm engine: the prefix cache was not dropped, some of it was in use")


def shut_down(llm: Any) -> None:
    """End the engine and its worker."""
    core = getattr(llm.llm_engine, "engine_core", None)
    (llm.llm_engine.model_executor if core is None else core).shutdown()


# The following functions run on vLLM's worker, which is in this process.


def _reload_takes_tensors(worker: Any) -> bool:
    """Return whether the worker's `reload_weights` takes tensors."""
    reload = getattr(worker.model_runner, "reload_weights", None)
    return reload is not None and "weights_iterator" in inspect.signature(reload).parameters


def _load(worker: Any, tensors: Mapping[str, torch.Tensor]) -> list[str]:
    """Load the tensors by `load_weights` unless parameters are packed; return those that were not loaded."""
    model = worker.model_runner.model
    if packed := [name for name, value in model.named_parameters() if not value.numel()]:
        return packed
    loaded = model.load_weights(iter(tensors.items()))
    return sorted({name for name, _ in model.named_parameters()} - loaded) if loaded is not None else []
