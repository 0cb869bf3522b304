"""The available engines, and how to build one."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from grpo_core.config import Config
from grpo_core.machine.resources import resolve, shared_gpu
from grpo_core.rollout.engine import Engine


@dataclass(frozen=True)
class EngineSpec:
    """The settings of an engine, in this process or in another.

    Attributes:
        engine: One of `ENGINES`.
        model_dir: Folder of a transformers checkpoint.
        max_model_len: Longest prompt and completion together, in tokens.
        device: A torch device.
        seed: The engine's own seed; each request has its own.
        threads: Threads of torch.
        max_batch: Completions the embedded engine samples at one time.
        dtype: The type of weights and computation.
        memory_share: The share of the GPU's memory that the engine may use; 0: all of it.
    """

    engine: str
    model_dir: str
    max_model_len: int
    device: str = "cpu"
    seed: int = 0
    threads: int = 1
    max_batch: int = 256
    dtype: str = "float32"
    memory_share: float = 0.0


def engine_spec(config: Config, model_dir: str) -> EngineSpec:
    """Return the settings of a configuration's engine."""
    if config.rollout.device == "auto":
        config = resolve(config)
    rollout = config.rollout
    shared = shared_gpu(config, int(os.environ.get("WORLD_SIZE", "1")))
    return EngineSpec(
        rollout.engine, model_dir, config.model.max_length, rollout.device, config.train.seed, config.train.threads,
        rollout.max_batch, config.engine_dtype,
        rollout.memory_share if shared else 0.0,
    )  # fmt: skip


def build_engine(spec: EngineSpec) -> Engine:
    """Start an engine in this process; only its own dependencies are imported."""
    if spec.engine not in ENGINES:
        raise ValueError(f"no engine is called {spec.engine!r}")
    if spec.memory_share and spec.engine == "transformers":  # vLLM has an argument for it
        import torch

        torch.cuda.set_per_process_memory_fraction(spec.memory_share, torch.device(spec.device))
    return ENGINES[spec.engine](spec)


def _transformers(spec: EngineSpec) -> Engine:
    from grpo_core.rollout.embedded import TransformersEngine

    return TransformersEngine(
        spec.model_dir, max_model_len=spec.max_model_len, device=spec.device, max_batch=spec.max_batch, dtype=spec.dtype
    )  # fmt: skip


def _vllm(spec: EngineSpec) -> Engine:
    from grpo_core.rollout.vllm_engine import VllmEngine

    return VllmEngine(
        model_dir=spec.model_dir,
        seed=spec.seed,
        dtype=spec.dtype,
        max_model_len=spec.max_model_len,
        memory_share=spec.memory_share,
    )


# The choices of `rollout.engine`. A new engine is a file with its class, and an entry here.
ENGINES: dict[str, Callable[[EngineSpec], Engine]] = {"transformers": _transformers, "vllm": _vllm}
