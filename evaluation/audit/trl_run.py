"""Run TRL's GRPOTrainer on a tiny model, and save logs and completions: `trl_run.py FOLDER SEED STEPS KEY=VALUE...`."""

import json
import os
import sys
from pathlib import Path

os.environ["CUDA_VISIBLE_DEVICES"] = ""

import transformers

from repro.drivers import tiny_trl


class NoOpCallback(transformers.TrainerCallback):
    """Callback without any effect."""


def spread_reward(completions, **_):
    """Return a reward that differs between most completions."""
    return [text.count("a") - len(text) / 7 + len(set(text)) for text in completions]


def main():
    """Train STEPS steps, and save the run in FOLDER; KEY=VALUE are options of GRPOConfig as JSON, and `peak`."""
    folder, seed, steps, *more = sys.argv[1:]
    settings = {
        "max_steps": int(steps),
        "per_device_train_batch_size": 16,
        "num_generations": 4,
        "max_completion_length": 12,
        "learning_rate": 0.05,
        "logging_strategy": "steps",
        "logging_steps": 1,
        "log_completions": True,
        "num_completions_to_print": 0,
        "save_strategy": "steps",
        "save_steps": 2,
        "seed": int(seed),
    } | {key: json.loads(value) for key, _, value in (setting.partition("=") for setting in more)}
    letters = "abcdefghijklm"
    prompts = [f"{a} {b}" for a in letters for b in letters if a < b]
    model = tiny_trl.model(int(seed))
    # The distribution of a random model is flat. Scaled logits (`peak`) make it as sharp as that of a trained model.
    model.lm_head.weight.data.mul_(settings.pop("peak", 1.0))
    trainer = tiny_trl.trainer(spread_reward, NoOpCallback(), prompts=prompts, policy=model, **settings)
    trainer.args.output_dir = folder
    (Path(folder) / "completions").mkdir(parents=True, exist_ok=True)
    trainer.train()
    # TRL's process groups outlive main in some releases.
    os._exit(0)


main()
