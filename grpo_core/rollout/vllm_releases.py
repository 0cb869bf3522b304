"""What differs between vLLM's releases, as far as the in-process engine is concerned: found out, not assumed.

0.8.5 and 0.9.2 run their older engine, V0, whose log-probs are those of the sampling distribution: V1's are those
before temperature until 0.10, and V1 of 0.8.5 takes neither float32 nor a CPU. From 0.11 on there is nothing but V1.
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

RAN = ("0.8.5", "0.9.2", "0.10.2", "0.11.0", "0.27.1", "0.28.0", "0.30.0", "0.31.0", "0.32.0")

# Read by vLLM when it is imported or started, so they are set before that. The first is what "in this process"
# means; the others are defaults that the user's own environment overrides.
_FORCED = {
    # V1 would put the engine into a child process: weights could no longer be handed over as tensors.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}
_DEFAULTS = {
    "VLLM_LOGGING_LEVEL": "ERROR",  # without a tokenizer it warns with whole tracebacks about chat templates
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",  # stdout belongs to the program's one JSON document
    "VLLM_NO_USAGE_STATS": "1",
}


def prepare_import() -> None:
    """Sets what vLLM reads from the environment when it is imported."""
    import torch

    os.environ.update(_FORCED)
    for key, value in _DEFAULTS.items():
        os.environ.setdefault(key, value)
    # Unset, vLLM would take the trainer's torch threads down to one "for serving".
    os.environ.setdefault("OMP_NUM_THREADS", str(torch.get_num_threads()))


def release(version: str) -> str:
    """The release that a build is of.

    >>> release("0.10.2.post2+cpu")
    '0.10.2'
    """
    found = re.match(r"\d+(\.\d+){0,2}", version)
    return found[0] if found else version


def older(version: str, than: str) -> bool:
    """Whether a build is of an older release than that one; a version nobody can read counts as new.

    >>> older("0.9.2.post2", "0.10.0"), older("0.10.0+cpu", "0.10.0"), older("dev", "0.10.0")
    (True, False, False)
    """
    if not re.match(r"\d+\.\d+", version):
        return False
    parts = ([int(part) for part in release(name).split(".")] for name in (version, than))
    return next(parts) < next(parts)


def prepare_start(version: str, kv_cache_gib: float) -> None:
    """Sets what vLLM reads from the environment when an engine is started, which depends on the release."""
    # The CPU worker would pin this process, and so the trainer, to cores of its choice. "all" was the word for
    # leaving that up to 0.11.0, and is another word's synonym from 0.12.0 on.
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "all" if older(version, "0.12") else "nobind"
    if older(version, "0.10"):
        os.environ.setdefault("VLLM_USE_V1", "0")
    elif older(version, "0.11"):
        os.environ["VLLM_USE_V1"] = "1"  # 0.10 still has V0, but not on every platform
    if older(version, "0.27"):  # whole GiB: what old releases' CPU workers take instead of an argument
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", str(math.ceil(kv_cache_gib)))


def engine_arguments(version: str, *, max_model_len: int, kv_cache_gib: float) -> dict[str, Any]:
    """Arguments of `vllm.LLM` that pin what it would choose by itself, as far as this release has them."""
    from vllm.engine.arg_utils import EngineArgs

    known = {entry.name for entry in dataclasses.fields(EngineArgs)}
    v0 = older(version, "0.10") and os.environ["VLLM_USE_V1"] == "0"
    arguments: dict[str, Any] = {
        "max_model_len": max_model_len,
        "enforce_eager": True,  # a compiled graph costs minutes here and gains nothing
        "generation_config": "vllm",  # not the model's generation_config.json
        # On a CPU, a seeded request whose prefill is split over steps kills the engine with "CPU Generator does
        # not use offset" (0.31.0: v1/worker/gpu_model_runner.py:3701). V1 of 0.10 splits in spite of this
        # argument, so `Stepper` never gives it more prompts than fit.
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": max(max_model_len, 4096),  # so that a whole prompt always fits
        # A group shares its prompt; dropped at every update. V0 on a CPU would need another package for it.
        "enable_prefix_caching": not v0,
        "disable_log_stats": True,
    }
    where_known: dict[str, Any] = {
        "logprobs_mode": _processed(),
        "kv_cache_memory_bytes": int(kv_cache_gib * 2**30),
        # Otherwise results lag a step behind, and an abort leaves a step under way.
        "async_scheduling": False,
    }
    if v0:  # the same in V0, where it is how SCH002 happens; V1 takes the argument for a wish to have V0
        where_known["disable_async_output_proc"] = True
    return arguments | {name: value for name, value in where_known.items() if name in known}


def _processed() -> Any:
    """Log-probs after temperature, what was really sampled from: a word, in 0.10.2 a member of an enum."""
    from vllm import config

    mode = getattr(config, "LogprobsMode", None)
    return mode("processed_logprobs") if inspect.isclass(mode) else "processed_logprobs"


def engine_version(llm: Any) -> str:
    """`V0` or `V1`: which of vLLM's engines has started."""
    return "V1" if type(llm.llm_engine).__module__.startswith("vllm.v1.") else "V0"


def takes_no_temperature(llm: Any, version: str) -> str:
    """Why only temperature 1 can be sampled at; empty where any can.

    V1 had no `logprobs_mode` at first: its log-probs are those before temperature, of another distribution.
    """
    if engine_version(llm) == "V0" or hasattr(llm.llm_engine.model_config, "logprobs_mode"):
        return ""
    return (
        f"V1 of vLLM {version} gives log-probs as they were before temperature; sample at temperature 1, "
        "or set VLLM_USE_V1=0"
    )


def prompt(ids: Sequence[int]) -> Any:
    """Token ids as the engine's `add_request` takes them."""
    from vllm import inputs

    tokens_input = getattr(inputs, "tokens_input", None)  # old releases take a dictionary without a type
    return {"prompt_token_ids": list(ids)} if tokens_input is None else tokens_input(list(ids))


def takes_no_weights(llm: Any, version: str) -> str:
    """Why this build can't be given new weights as tensors; empty where it can."""
    packed = llm.collective_rpc(_packed)[0]
    if not packed:
        return ""
    return (
        f"vLLM {version} packed {packed} for its kernels, and its reload_weights takes no tensors; "
        "use a release whose does (0.27.1 and later were tried)"
    )


def load_weights(llm: Any, tensors: Mapping[str, torch.Tensor]) -> None:
    """Hands over all parameters, by the way this release has for it.

    Where `reload_weights` takes tensors it must be used: `load_weights`, which most trainers call, fails on the
    CPU build's packed parameters and leaves the model half old, half new. Older builds pack nothing.

    Raises:
        EngineError: vLLM did not load some of its own parameters.
    """
    if llm.collective_rpc(_reloads)[0]:
        llm.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(tensors.items())})
        return
    stale = llm.collective_rpc(_load, args=(tensors,))[0]
    if stale:
        raise EngineError(f"vllm engine, update_weights: vLLM did not load {', '.join(stale[:3])}")


def reset_prefix_cache(llm: Any) -> None:
    """Forgets all cached keys and values.

    Raises:
        EngineError: vLLM said that it did not. V1 of 0.10 answers nothing, whatever it did.
    """
    if llm.reset_prefix_cache() is False:
        raise EngineError("vllm engine: the prefix cache was not dropped, some of it was in use")


def shut_down(llm: Any) -> None:
    """Ends the engine and its worker."""
    core = getattr(llm.llm_engine, "engine_core", None)
    (llm.llm_engine.model_executor if core is None else core).shutdown()


# The following run on vLLM's worker, which is in this process.


def _reloads(worker: Any) -> bool:
    reload = getattr(worker.model_runner, "reload_weights", None)
    return reload is not None and "weights_iterator" in inspect.signature(reload).parameters


def _packed(worker: Any) -> str:
    if _reloads(worker):
        return ""
    return next(
        (name for name, value in worker.model_runner.model.named_parameters() if not value.numel()), ""
    )


def _load(worker: Any, tensors: Mapping[str, torch.Tensor]) -> list[str]:
    model = worker.model_runner.model
    loaded = model.load_weights(iter(tensors.items()))
    return sorted({name for name, _ in model.named_parameters()} - loaded) if loaded is not None else []
