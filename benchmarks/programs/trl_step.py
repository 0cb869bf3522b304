"""TRL's GRPOTrainer on the tiny model, without vLLM, a step of 16 samples a turn: `trl_step.py FOLDER GROUP_SIZE`."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from benchmarks.measure import Turns
from benchmarks.programs.with_trl import take_steps

folder, turns = Path(sys.argv[1]), Turns()
torch.set_num_threads(1)
take_steps(
    folder, turns, samples=16, output_dir=str(folder / "trl"), use_cpu=True, bf16=False,
    per_device_train_batch_size=16, gradient_accumulation_steps=1, num_generations=int(sys.argv[2]),
    max_completion_length=64,
)  # fmt: skip
