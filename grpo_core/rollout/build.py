"""List the available engines, and build one from its settings."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

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
        device: Torch device of the engine.
        seed: Seed of the engine itself; each request has its own seed, too.
        threads: Number of torch threads.
        max_batch: Number of completions that the embedded engine samples at one time.
        dtype: The dtype of weights and computation.
        memory_share: The fraction of the GPU's memory that the engine may use; 0: all of it.
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
    rollout, train = config.rollout, config.train
    share = rollout.memory_share if shared_gpu(config, int(os.environ.get("WORLD_SIZE", "1"))) else 0.0
    return EngineSpec(
        rollout.engine,
        model_dir,
        config.model.max_length,
        rollout.device,
        train.seed,
        train.threads,
        rollout.max_batch,
        config.engine_dtype,
        share,
    )


# The choices of `rollout.engine`. A new engine is a file with its class, a name here and a branch below.
ENGINES = ("transformers", "vllm")


def build_engine(spec: EngineSpec) -> Engine:
    """Start an engine in this process; only its own dependencies are imported."""
    options: dict[str, Any] = {"max_model_len": spec.max_model_len, "dtype": spec.dtype}
    if spec.engine == "transformers":
        from grpo_core.rollout.embedded import TransformersEngine

        if spec.memory_share:
            import torch

            torch.cuda.set_per_process_memory_fraction(spec.memory_share, torch.device(spec.device))
        return TransformersEngine(spec.model_dir, device=spec.device, max_batch=spec.max_batch, **options)
    if spec.engine == "vllm":
        from grpo_core.rollout.vllm_engine import VllmEngine

        return VllmEngine(spec.model_dir, seed=spec.seed, memory_share=spec.memory_share, **options)
    raise ValueError(f"no engine is called {spec.engine!r}")
