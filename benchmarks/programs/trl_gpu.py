"""TRL's GRPOTrainer on a device, a step a turn: `trl_gpu.py FOLDER with|without OPTIONS`, the former with vLLM."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmarks.measure import Turns
from benchmarks.programs.with_trl import take_steps

folder, vllm, size, turns = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]), Turns()
samples = size["prompts"] * size["group"]
with_vllm = {"use_vllm": True, "vllm_mode": "colocate", "vllm_gpu_memory_utilization": 0.3}
take_steps(
    folder, turns, samples, output_dir=str(folder / f"trl-{vllm}"), use_cpu=size["device"] == "cpu",
    bf16=size["dtype"] == "bfloat16", num_generations=size["group"], max_completion_length=size["tokens"],
    per_device_train_batch_size=min(samples, 16), gradient_accumulation_steps=max(1, samples // 16),
    **(with_vllm if vllm == "with" else {}),
)  # fmt: skip
