"""Run TRL's unmodified `GRPOTrainer` on the reference trainer's task and settings, in a cell.

Usage: python trl_learning.py RESULT.json [--section.key VALUE ...], with the keys of `python -m grpo_core train`.
    Writes the mean reward of each step, as logged by TRL. As evidence that both trainers have the same task, it also
    writes the digest of the initial weights, and whether TRL used the expected prompts.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from grpo_core.config import Config, ConfigError, LossConfig
from grpo_core.settings import load
from grpo_core.tasks import model
from grpo_core.tasks.dataset import build_prompts
from grpo_core.tasks.reward_functions import letters_in_place

LOSS_TYPES = {"token": "dapo", "sequence": "grpo", "sequence_sum": "luspo", "constant": "dr_grpo"}
BETAS = (0.9, 0.95)  # as in grpo_core.learn.update


class Reward:
    """The shipped task's reward, on the text that the reference trainer decodes from the same ids.

    TRL's text omits every special token, so a policy could write padding without effect. The text of the reference
    trainer omits only the end token.
    """

    __name__ = "letters_in_place"

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.prompts: list[str] = []

    def __call__(
        self, prompts: list[str], completion_ids: list[list[int]], answer: list[str], **_: Any
    ) -> list[float]:
        """Return the reward of each completion, and record the prompts."""
        self.prompts += prompts
        end = self._tokenizer.eos_token_id
        completions = [ids[:-1] if ids[-1] == end else ids for ids in completion_ids]
        texts = [self._tokenizer.decode(ids, skip_special_tokens=False) for ids in completions]
        return letters_in_place(texts, answer)


def trl_config(config: Config, folder: str) -> GRPOConfig:
    """Translate the settings to GRPOConfig; each optimizer step uses one generation batch.

    Raises:
        ConfigError: A setting has no counterpart in TRL, so the comparison would not be fair.
    """
    train, sampling, loss = config.train, config.sampling, config.loss
    comparable = LossConfig(
        clip_low=loss.clip_low,
        clip_high=loss.clip_high,
        aggregation=loss.aggregation,
        advantage_scale=loss.advantage_scale,
        kl_coefficient=0.0,
    )
    batch = train.prompts_per_step * sampling.group_size
    if loss != comparable or train.micro_batch < batch or loss.advantage_scale == "leave_one_out":
        raise ConfigError("trl_learning.py: a setting of [loss] or train.micro_batch has no counterpart here")
    return GRPOConfig(
        output_dir=folder,
        seed=train.seed,
        max_steps=train.steps,
        # the batch
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=1,
        steps_per_generation=1,
        num_iterations=train.iterations,
        num_generations=sampling.group_size,
        shuffle_dataset=False,
        remove_unused_columns=False,
        # sampling
        use_vllm=False,
        max_completion_length=sampling.max_tokens,
        temperature=sampling.temperature,
        top_p=1.0,
        top_k=0,
        min_p=None,
        repetition_penalty=1.0,
        mask_truncated_completions=False,
        # the loss
        loss_type=LOSS_TYPES[loss.aggregation],
        importance_sampling_level="token",
        scale_rewards=loss.advantage_scale,
        epsilon=loss.clip_low,
        epsilon_high=loss.clip_high,
        beta=0.0,
        # the optimizer is passed to the trainer; only clipping is configured here
        max_grad_norm=train.max_grad_norm,
        disable_dropout=True,
        # float32 on the CPU, all activations kept
        use_cpu=True,
        bf16=False,
        fp16=False,
        gradient_checkpointing=False,
        dataloader_num_workers=0,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


def create_optimizer(
    policy: Any, config: Config
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LambdaLR]:
    """Return the reference trainer's AdamW and warm-up: update u (from 1) has the factor u / warmup_updates.

    `constant_with_warmup` of transformers is one update behind: its first factor is 0.
    """
    train = config.train
    adamw = torch.optim.AdamW(
        policy.parameters(), lr=train.learning_rate, weight_decay=train.weight_decay, betas=BETAS
    )
    warm = torch.optim.lr_scheduler.LambdaLR(
        adamw, lambda done: min((done + 1) / max(train.warmup_updates, 1), 1.0)
    )
    return adamw, warm


def main(result: Path, settings: list[str]) -> None:
    """Train, and write the results."""
    started = time.perf_counter()
    config = load(None, settings)
    torch.set_num_threads(config.train.threads)
    with tempfile.TemporaryDirectory() as folder:
        model_dir = Path(folder) / "model"
        model.make_tiny(model_dir, config.model, config.task.letters, config.train.seed)
        weights = hashlib.sha256((model_dir / "model.safetensors").read_bytes()).hexdigest()
        policy, tokenizer = model.load_model(model_dir), model.load_tokenizer(model_dir)
        prompts = [
            prompt
            for step in range(config.train.steps)
            for prompt in build_prompts(config, tokenizer).batch(step, config.train.prompts_per_step)
        ]
        reward = Reward(tokenizer)
        trainer = GRPOTrainer(
            model=policy,
            reward_funcs=reward,
            args=trl_config(config, folder),
            train_dataset=Dataset.from_list([{"prompt": p.text, **p.columns} for p in prompts]),
            processing_class=tokenizer,
            optimizers=create_optimizer(policy, config),
        )
        cpu = time.process_time()
        trainer.train()
    curve = [entry for entry in trainer.state.log_history if "reward" in entry]
    expected = [prompt.text for prompt in prompts for _ in range(config.sampling.group_size)]
    document = {
        "trl": version("trl"),
        "torch": version("torch"),
        "transformers": version("transformers"),
        "curve": [entry["reward"] for entry in curve],
        "learning_rates": [entry["learning_rate"] for entry in curve],
        "weights": weights,
        "same_prompts": reward.prompts == expected,
        "cpu_s": time.process_time() - cpu,
        "wall_s": time.perf_counter() - started,
    }
    partial = result.with_suffix(".partial")
    partial.write_text(json.dumps(document), encoding="utf-8")
    partial.replace(result)


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        main(Path(sys.argv[1]), sys.argv[2:])
    except ConfigError as error:
        sys.exit(str(error))
