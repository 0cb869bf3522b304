"""Runs in a cell that has TRL: its own `GRPOTrainer._compute_loss` and our loss on the same tensors.

TRL's method is called unbound on a stand-in for the trainer, which hands it prepared log-probs: nothing of TRL is
changed. Prints, as JSON, the largest relative difference of loss and gradient for each of TRL's loss types.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections import defaultdict
from importlib.metadata import version
from types import SimpleNamespace

import torch

from grpo_core.config import LossConfig
from grpo_core.loss import Streams, policy_loss, token_weights

LENGTHS = (9, 4, 1, 7, 2, 9)
LONGEST = 12
CAP = 3.0
# TRL's loss types, as settings of ours.
DIALECTS = {
    "grpo": {"aggregation": "sequence"},
    "bnpo": {"aggregation": "token"},
    "dapo": {"aggregation": "token"},
    "dr_grpo": {"aggregation": "constant"},
    "luspo": {"aggregation": "sequence_sum"},
    "cispo": {"aggregation": "token", "surrogate": "cispo", "clip_high": 1.0},
    "sapo": {"aggregation": "sequence", "surrogate": "sapo"},
}


def tensors(seed):
    generator = torch.Generator().manual_seed(seed)
    shape = (len(LENGTHS), max(LENGTHS))
    noise = lambda scale: torch.randn(shape, generator=generator, dtype=torch.float64) * scale  # noqa: E731
    current = noise(0.5) - 1.5
    return SimpleNamespace(
        mask=torch.arange(shape[1])[None] < torch.tensor(LENGTHS)[:, None],
        current=current,
        proximal=current + noise(0.25),
        reference=current + noise(0.4),
        behaviour=current + noise(0.3),
        entropy=noise(0.3).abs() + 0.5,
        advantages=torch.randn(shape[0], generator=generator, dtype=torch.float64),
    )


class Accelerator:
    """One process: nothing to gather."""

    num_processes, sync_gradients, device = 1, True, torch.device("cpu")

    def gather(self, values):
        return values

    def reduce(self, values, reduction="sum"):
        return values


def theirs(data, *, loss_type, level, beta, delta, bias, correction):
    from trl import GRPOTrainer

    current = data.current.clone().requires_grad_()
    mask = data.mask.double()
    args = SimpleNamespace(
        delta=delta,
        use_bias_correction_kl=bias,
        steps_per_generation=1,
        sapo_temperature_pos=1.0,
        sapo_temperature_neg=1.05,
    )
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (current, data.entropy, None),
        _entropy_bonus_enabled=False,
        _metrics={"train": defaultdict(list)},
        accelerator=Accelerator(),
        args=args,
        aux_loss_enabled=False,
        beta=beta,
        current_gradient_accumulation_steps=1,
        epsilon_low=0.2,
        epsilon_high=2.0 if loss_type == "cispo" else 0.28,
        importance_sampling_level=level,
        loss_type=loss_type,
        max_completion_length=LONGEST,
        model=SimpleNamespace(training=True),
        off_policy_mask_threshold=None,
        top_entropy_quantile=1.0,
        use_adaptive_entropy=False,
        use_vllm=correction is not None,
        vllm_importance_sampling_correction=correction is not None,
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
        "sampling_per_token_logps": data.behaviour,
        "num_items_in_batch": mask.sum(),
    }
    if correction:
        # As in TRL's _generate_and_score_completions, which this does not run.
        level_of_weight, mode = correction
        log_weight = (data.proximal - data.behaviour) * mask
        weight = (log_weight.sum(-1, keepdim=True) if level_of_weight == "sequence" else log_weight).exp()
        inputs["importance_sampling_ratio"] = (
            weight.clamp(max=CAP) if mode == "truncate" else weight.masked_fill(weight > CAP, 0.0)
        )
    loss = GRPOTrainer._compute_loss(trainer, None, inputs)
    loss.backward()
    return loss.detach(), current.grad


def ours(data, *, loss_type, level, beta, delta, bias, correction):
    current = data.current.clone().requires_grad_()
    level_of_weight, mode = correction or ("token", "none")
    options = LossConfig(
        **{
            "ratio": level,
            "clip_high": 0.28,
            "ratio_cap": delta or 0.0,
            "kl_coefficient": beta,
            "kl_importance": bias,
            "correction": mode,
            "correction_level": level_of_weight,
            "correction_cap": CAP,
            **DIALECTS[loss_type],
        }
    )
    streams = Streams(data.behaviour, data.proximal, data.reference if beta else None)
    weights = token_weights(data.mask, options.aggregation, LONGEST)
    loss = policy_loss(current, streams, data.advantages, data.mask, weights, options).value
    loss.backward()
    return loss.detach(), current.grad


def relative(one, other):
    return float((one - other).abs().max() / other.abs().max().clamp(min=1e-12))


def main() -> None:
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    torch.set_default_dtype(torch.float64)
    corrections = (None, *itertools.product(("token", "sequence"), ("truncate", "mask")))
    worst, cases = dict.fromkeys(DIALECTS, 0.0), 0
    for loss_type, level, beta, delta, bias, correction, seed in itertools.product(
        DIALECTS, ("token", "sequence"), (0.0, 0.04), (None, 1.5), (False, True), corrections, range(2)
    ):
        case = {
            "loss_type": loss_type,
            "level": level,
            "beta": beta,
            "delta": delta,
            "bias": bias,
            "correction": correction,
        }
        (loss, gradient), (their_loss, their_gradient) = (
            ours(tensors(seed), **case),
            theirs(tensors(seed), **case),
        )
        worst[loss_type] = max(
            worst[loss_type], relative(loss, their_loss), relative(gradient, their_gradient)
        )
        cases += 1
    json.dump({"trl": version("trl"), "cases": cases, "worst": worst}, answer)
    answer.close()


if __name__ == "__main__":
    sys.exit(main())
