"""Profile three steps of a random 0.5B model: `python -m evaluation.gpu.profile_steps cuda|cpu`.

Prints JSON: the operations that take most time, the seconds of each phase of a step, and the peak memory with an
estimate from the number of parameters. On a CPU the model is tiny, which only checks that the program runs.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.programs.benchmark_inputs import write_large_vocab_model
from grpo_core.run import train
from grpo_core.settings import load

# Bytes per parameter: float32 weights, gradients and two AdamW moments, and the bfloat16 copies of trainer and engine.
BYTES_PER_PARAMETER = 4 + 4 + 8 + 2 + 2
WARM_STEPS = 2
PROFILED_STEPS = 3


def main(device: str) -> None:
    """Train two warm-up and three profiled steps; print the result as JSON."""
    toy = device == "cpu"
    prompts, group, tokens = (2, 2, 4) if toy else (16, 8, 128)
    activities = [ProfilerActivity.CPU] + ([] if toy else [ProfilerActivity.CUDA])
    profiler, steps = profile(activities=activities), []

    def report(entry: dict[str, Any]) -> None:
        steps.append({key: value for key, value in entry.items() if key.startswith("time/")})
        if len(steps) == WARM_STEPS:
            profiler.start()
        if len(steps) == WARM_STEPS + PROFILED_STEPS:
            profiler.stop()

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_large_vocab_model(folder, layers=1 if toy else 24, toy=toy)
        settings = {
            "model.path": folder / "model", "model.max_length": 512, "model.dtype": "bfloat16",
            "model.float32_parts": "norms", "data.path": folder / "prompts.jsonl", "data.shuffle": "false",
            "reward.functions": f"{Path('benchmarks/programs/benchmark_inputs.py').resolve()}:even_words",
            "train.steps": WARM_STEPS + PROFILED_STEPS, "train.prompts_per_step": prompts, "train.micro_batch": 16,
            "sampling.group_size": group, "sampling.max_tokens": tokens, "train.device": device,
            "rollout.device": device, "rollout.dtype": "bfloat16", "rollout.sync_tolerance": 0.5,
            "checkpoint.every": 0, "output.completions_every": 0, "output.dir": folder, "output.name": "profile",
        }  # fmt: skip
        parameters = (folder / "model" / "model.safetensors").stat().st_size // 4
        document = train(load(None, [f"--{key}={value}" for key, value in settings.items()]), report)
    if document["error"]:
        raise SystemExit(document["error"])
    key = "self_cpu_time_total" if toy else "self_device_time_total"
    rows = sorted(profiler.key_averages(), key=lambda row: -getattr(row, key))[:15]
    peak = None if toy else round(torch.cuda.max_memory_allocated() / 2**30, 2)
    profiled = {
        "operations": [f"{row.key[:70]}: {getattr(row, key) / 1e3:.1f} ms in {row.count}" for row in rows],
        "phases_s": steps[WARM_STEPS:],
        "peak_memory_gib": peak,
        "estimated_memory_without_activations_gib": round(parameters * BYTES_PER_PARAMETER / 2**30, 2),
    }
    sys.__stdout__.write(json.dumps(profiled) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
