"""Build the in-process engine that a configuration names.

`build_engine` builds it. If trainer and engine use one GPU at the same time, the engine's memory is limited to
`rollout.memory_share`. The transformers engine runs on `rollout.device`; vLLM chooses its device itself.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from grpo_core.config import Config
from grpo_core.machine.devices import resolve_devices, shared_gpu
from grpo_core.rollout.engine import Engine

# The choices of `rollout.engine`. A new engine is a file with its class, a name here and a branch below.
ENGINES = ("transformers", "vllm")


def build_engine(config: Config, model_dir: Path | str) -> Engine:
    """Start an engine in this process; only its own dependencies are imported. ValueError for an unknown name."""
    config = resolve_devices(config)
    rollout, share = config.rollout, memory_share(config)
    options: dict[str, Any] = {"max_model_len": config.model.max_length, "dtype": rollout.dtype}
    if rollout.engine == "transformers":
        from grpo_core.rollout.transformers_engine import TransformersEngine

        if share:
            import torch

            torch.cuda.set_per_process_memory_fraction(share, torch.device(rollout.device))
        return TransformersEngine(model_dir, device=rollout.device, max_batch=rollout.max_batch, **options)
    if rollout.engine == "vllm":
        from grpo_core.rollout.vllm_engine import VllmEngine

        return VllmEngine(model_dir, seed=config.train.seed, memory_share=share, **options)
    raise ValueError(f"no engine is called {rollout.engine!r}")


def memory_share(config: Config) -> float:
    """Return `rollout.memory_share` if trainer and engine use one GPU at the same time; else 0 (no limit)."""
    shared = shared_gpu(config, int(os.environ.get("WORLD_SIZE", "1")))
    return config.rollout.memory_share if shared else 0.0
