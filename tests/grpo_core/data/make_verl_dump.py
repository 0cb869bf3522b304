"""Write the JSON lines in this folder by verl's own code, from made-up samples; needs verl.

The files were written by verl 0.9.1 on a CPU. `plain` is written by `RayPPOTrainer._log_rollout_data`, after its
`_balance_batch` has reordered the samples for two workers; `keyed` by `_write_generations` of the newer trainer, with
keys of the form that it gives it. Arguments: the folder to write to.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from omegaconf import OmegaConf
from verl import DataProto
from verl.trainer.ppo.ray_trainer import RayPPOTrainer
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

LETTERS = "abcdefghijklmnop"


class Tokenizer:
    """A letter is a token; 0 is padding."""

    def batch_decode(self, rows, *, skip_special_tokens):
        return ["".join(LETTERS[i - 1] for i in row.tolist() if i) for row in rows]


def batch():
    """Three prompts, four samples each, of different lengths; the third prompt's rewards are all equal."""
    lengths = [1, 7, 2, 6, 3, 5, 4, 4, 5, 3, 6, 2]
    responses = torch.tensor([[1 + i % 16] * n + [0] * (8 - n) for i, n in enumerate(lengths)])
    prompts = torch.tensor([[0, 1 + i // 4, 5] for i in range(12)])
    rewards = torch.zeros(12, 8)
    rewards[:, 0] = torch.tensor([0.0, 1.0, 0.5, 0.0, 1.0, 1.0, 0.0, 0.25, 1.0, 1.0, 1.0, 1.0])
    mask = torch.cat([prompts > 0, responses > 0], 1).long()
    return DataProto.from_dict(
        tensors={
            "prompts": prompts,
            "responses": responses,
            "attention_mask": mask,
            "token_level_scores": rewards,
        },
        non_tensors={
            "uid": np.array([f"u{i // 4}" for i in range(12)], dtype=object),
            "reward_model": np.array([{"ground_truth": f"answer {i // 4}"} for i in range(12)], dtype=object),
            "place": np.arange(12),
        },
    )


def main(folder: Path) -> None:
    trainer = object.__new__(RayPPOTrainer)
    trainer.global_steps, trainer.tokenizer = 3, Tokenizer()
    trainer.config = OmegaConf.create({"actor_rollout_ref": {"actor": {"ppo_mini_batch_size": 4}}})
    trainer.actor_rollout_wg = None
    trainer._get_dp_size = lambda *_: 2
    trainer._init_dump_executor()
    rows = batch()
    trainer._balance_batch(rows, metrics={})
    extra = {
        "acc": (rows.batch["token_level_scores"].sum(-1) > 0.4).numpy(),
        "place": rows.non_tensor_batch["place"],
    }
    trainer._log_rollout_data(rows, extra, {}, str(folder / "plain"))
    trainer._shutdown_dump_executor()

    keys = [f"{uid}_{session}_0" for uid in ("0a1b", "2c3d") for session in range(2)]
    PPOTrainer._write_generations(
        ["same prompt"] * 4, ["a", "b", "c", "d"], [None] * 4, [0.0, 1.0, 0.5, 0.5], {"uid": keys},
        str(folder / "keyed"), 12,
    )  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1]))
