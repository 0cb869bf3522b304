"""In a cell, compare TRL 0.17.0's loss, advantages and defaults with grpo_core's on the same tensors; print JSON."""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections import defaultdict
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import torch

from grpo_core.learn.dialects import DIALECTS

sys.path.append(str(Path(__file__).parent))
import trl_loss

SETTINGS = {  # setting of GRPOConfig -> the value that grpo_core's loss options have for it
    "beta": lambda loss: loss.kl_coefficient,
    "epsilon": lambda loss: loss.clip_low,
    "scale_rewards": lambda loss: loss.advantage_scale == "group",
}


def upstream_loss(data, *, loss_type, beta, high, iterations):
    """Return TRL's loss and its gradient with respect to the log-probs."""
    from trl import GRPOTrainer

    current = data.current.clone().requires_grad_()
    mask = data.mask.to(torch.get_default_dtype())
    trainer = SimpleNamespace(
        _get_per_token_logps=lambda *_: current,
        _metrics={"train": defaultdict(list)},
        accelerator=trl_loss.Accelerator(),
        beta=beta,
        control=SimpleNamespace(should_evaluate=False),
        epsilon_low=0.2,
        epsilon_high=high,
        loss_type=loss_type,
        max_completion_length=trl_loss.LONGEST,
        num_iterations=iterations,
    )
    ids = torch.zeros(mask.shape, dtype=torch.long)
    inputs = {
        "prompt_ids": ids[:, :2],
        "prompt_mask": torch.ones_like(ids[:, :2]),
        "completion_ids": ids,
        "completion_mask": mask,
        "advantages": data.advantages,
        "old_per_token_logps": data.proximal,
        "ref_per_token_logps": data.reference,
    }
    loss = GRPOTrainer._compute_loss(trainer, None, inputs)
    loss.backward()
    return loss.detach(), current.grad


def loss_differences(types):
    """Return the largest difference by dtype and loss type, and the number of cases."""
    worst, cases = {}, 0
    for dtype in ("float64", "float32"):
        torch.set_default_dtype(getattr(torch, dtype))
        worst[dtype] = dict.fromkeys(types, 0.0)
        for loss_type, beta, high, iterations, seed in itertools.product(
            types, (0.0, 0.04), (0.2, 0.28), (1, 2), range(3)
        ):
            data = trl_loss.tensors(seed)
            if iterations == 1:
                data.proximal = data.current
            record = DIALECTS[f"trl-0.17.0/{loss_type}"].loss
            actual = trl_loss.our_loss(data, replace(record, kl_coefficient=beta, clip_high=high))
            expected = upstream_loss(data, loss_type=loss_type, beta=beta, high=high, iterations=iterations)
            worst[dtype][loss_type] = max(worst[dtype][loss_type], trl_loss.differences([(actual, expected)]))
            cases += 1
    return {"worst": worst, "cases": cases}


def trl_advantages(rewards, weights, scale, group):
    """Return the advantages that TRL computes from the rewards."""
    from trl import GRPOTrainer

    code = trl_loss.upstream(
        GRPOTrainer._generate_and_score_completions, "rewards = (rewards_per_func", "if self.scale_rewards"
    )
    names = {
        "self": SimpleNamespace(num_generations=group, scale_rewards=scale == "true", reward_weights=weights),
        "device": torch.device("cpu"),
        "rewards_per_func": rewards,
    }
    exec(code, names)
    return names["advantages"]


def differing_defaults():
    """Return the settings whose default differs between TRL and the dialect of grpo_core."""
    from trl import GRPOConfig

    fields = GRPOConfig.__dataclass_fields__
    return [
        f"{name}: {setting} {fields[setting].default!r}, not {ours_of(record.loss)!r}"
        for name, record in DIALECTS.items()
        for setting, ours_of in SETTINGS.items()
        if name.startswith("trl-0.17.0/") and fields[setting].default != ours_of(record.loss)
    ]


def main() -> None:
    """Print all differences as JSON."""
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    torch.set_num_threads(1)
    types = [record.form for name, record in DIALECTS.items() if name.startswith("trl-0.17.0/")]
    scales = {"true": "group", "false": "none"}
    report = {
        **loss_differences(types),
        "advantages": trl_loss.advantage_differences(scales, trl_advantages, (4, 2)),
        "defaults": differing_defaults(),
    }
    json.dump({"trl": version("trl"), **report}, answer)
    answer.close()


if __name__ == "__main__":
    sys.exit(main())
