"""In a cell, compare TRL 1.16.0's own loss with grpo_core's on the same tensors.

TRL's loss, `GRPOTrainer._compute_loss`, is called unbound on a stand-in for the trainer, which provides log-probs. TRL
computes its advantages and correction weights in the middle of `_generate_and_score_completions`; these statements are
taken from the method's source and executed unchanged.
Prints, as JSON, the largest relative difference for each of TRL's loss types.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import json
import math
import os
import sys
import textwrap
from collections import defaultdict
from dataclasses import replace
from functools import cache, partial
from importlib.metadata import version
from types import SimpleNamespace

import torch

from grpo_core.learn.advantages import group_advantages
from grpo_core.learn.dialects import DIALECTS
from grpo_core.learn.losses import Streams, policy_loss, token_weights

LENGTHS = (9, 4, 1, 7, 0, 2, 9)  # 0: a truncated completion, which mask_truncated_completions masks
LONGEST = 12
SETTINGS = {  # setting of GRPOConfig -> the value that grpo_core's loss options have for it
    "beta": lambda loss: loss.kl_coefficient,
    "epsilon": lambda loss: loss.clip_low,
    "delta": lambda loss: loss.ratio_cap or None,
    "importance_sampling_level": lambda loss: loss.ratio,
    "sapo_temperature_pos": lambda loss: loss.sapo_temperature_positive,
    "sapo_temperature_neg": lambda loss: loss.sapo_temperature_negative,
    "top_entropy_quantile": lambda loss: 1.0,
    "use_bias_correction_kl": lambda loss: loss.kl_importance,
    "scale_rewards": lambda loss: loss.advantage_scale,
    "vllm_importance_sampling_mode": lambda loss: f"{loss.correction_level}_{loss.correction}",
    "vllm_importance_sampling_clip_max": lambda loss: loss.correction_cap,
    "vllm_importance_sampling_clip_min": lambda loss: loss.correction_floor or None,
}

# Temperatures of SAPO: TRL's name -> grpo_core's name and TRL's default.
SHAPES = {
    "sapo_temperature_pos": ("sapo_temperature_positive", 1.0),
    "sapo_temperature_neg": ("sapo_temperature_negative", 1.05),
}


def tensors(seed):
    """Return a mask, random log-probs, entropies and advantages of one step."""
    generator = torch.Generator().manual_seed(seed)
    shape = (len(LENGTHS), max(LENGTHS))
    noise = lambda scale: torch.randn(shape, generator=generator, dtype=torch.float64) * scale  # noqa: E731
    current = noise(0.5) - 1.5
    streams = {
        "current": current,
        "proximal": current + noise(0.25),
        "reference": current + noise(0.4),
        "behaviour": current + noise(0.3),
        "entropy": noise(0.3).abs() + 0.5,
        "advantages": torch.randn(shape[0], generator=generator, dtype=torch.float64),
    }
    streams = {name: values.to(torch.get_default_dtype()) for name, values in streams.items()}
    mask = torch.arange(shape[1])[None] < torch.tensor(LENGTHS)[:, None]
    return SimpleNamespace(mask=mask, **streams)


class Accelerator:
    """Stand-in for Accelerate's class with one process, which returns all values unchanged."""

    num_processes, sync_gradients, device = 1, True, torch.device("cpu")

    def gather(self, values):
        return values

    gather_for_metrics = gather

    def pad_across_processes(self, values, dim, pad_index):
        return values

    def reduce(self, values, reduction="sum"):
        return values


@cache
def upstream(method, first, last):
    """Compile the statements of a method from the one that begins with `first` to the one that begins with `last`."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(method)))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        texts = [ast.unparse(part) for part in body] if isinstance(body, list) else []
        places = [[i for i, text in enumerate(texts) if text.startswith(mark)] for mark in (first, last)]
        if all(places):
            part = body[places[0][0] : places[1][0] + 1]
            return compile(ast.Module(part, []), method.__qualname__, "exec")
    raise LookupError(f"{method.__qualname__} has no statements from {first!r} to {last!r}")


def correction_weights(data, correction):
    """Return TRL's importance-sampling weights for the mismatch of trainer and engine."""
    from trl import GRPOTrainer

    code = upstream(
        GRPOTrainer._generate_and_score_completions,
        *["if self.use_vllm and self.vllm_importance_sampling_correction:\n    mask ="] * 2,
    )
    names = {
        "self": SimpleNamespace(
            use_vllm=True,
            vllm_importance_sampling_correction=True,
            vllm_importance_sampling_mode="_".join(correction),
            vllm_importance_sampling_clip_max=3.0,
            vllm_importance_sampling_clip_min=0.6,
        ),
        "math": math,
        "torch": torch,
        "completion_mask": data.mask.to(torch.get_default_dtype()),
        "tool_mask": None,
        "old_per_token_logps": data.proximal,
        "sampling_per_token_logps": data.behaviour,
    }
    exec(code, names)
    return names["vllm_importance_sampling_ratio"]


def trl_loss(data, *, loss_type, level, beta, delta, bias, correction, **shape):
    """Return TRL's loss and its gradient with respect to the log-probs."""
    from trl import GRPOTrainer

    current = data.current.clone().requires_grad_()
    mask = data.mask.to(torch.get_default_dtype())
    args = SimpleNamespace(
        delta=delta,
        use_bias_correction_kl=bias,
        steps_per_generation=1,
        **{name: shape.get(ours_of, usual) for name, (ours_of, usual) in SHAPES.items()},
    )
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (current, data.entropy, None),
        _entropy_bonus_enabled=False,
        entropy_coef=0.0,
        _metrics={"train": defaultdict(list)},
        accelerator=Accelerator(),
        args=args,
        aux_loss_enabled=False,
        beta=beta,
        current_gradient_accumulation_steps=1,
        epsilon_low=0.2,
        epsilon_high=1.28 if loss_type == "cispo" else 0.28,  # the cap itself
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
    trainer.get_gamma_weights = GRPOTrainer.get_gamma_weights
    trainer.get_off_policy_mask = GRPOTrainer.get_off_policy_mask
    trainer.get_high_entropy_mask = partial(GRPOTrainer.get_high_entropy_mask, trainer)
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
        inputs["importance_sampling_ratio"] = correction_weights(data, correction)
    loss = GRPOTrainer._compute_loss(trainer, None, inputs)
    loss.backward()
    return loss.detach(), current.grad


def our_loss(data, options):
    """Return grpo_core's loss and its gradient with respect to the log-probs."""
    current = data.current.clone().requires_grad_()
    streams = Streams(data.behaviour, data.proximal, data.reference if options.kl_coefficient else None)
    weights = token_weights(data.mask, options.aggregation, LONGEST)
    loss = policy_loss(current, streams, data.advantages, data.mask, weights, options).value
    loss.backward()
    return loss.detach(), current.grad


def options_for(*, loss_type, level, beta, delta, bias, correction):
    """Return grpo_core's loss options that equal these settings of TRL."""
    level_of_weight, mode = correction or ("token", "none")
    return replace(
        DIALECTS[f"trl-1.16.0/{loss_type}"].loss,
        ratio=level,
        clip_high=0.28,
        ratio_cap=delta or 0.0,
        kl_coefficient=beta,
        kl_importance=bias,
        correction=mode,
        correction_level=level_of_weight,
        correction_floor=0.6,
    )


def relative_difference(one, other):
    """Return the largest difference relative to the largest value."""
    return float((one - other).abs().max() / other.abs().max().clamp(min=1e-12))


def differences(pairs):
    """Return the largest relative difference of the losses and of the gradients."""
    return max(relative_difference(actual, expected) for pair in pairs for actual, expected in zip(*pair))  # noqa: B905


def loss_differences(types):
    """Return the largest difference by dtype and loss type, and the number of cases."""
    corrections = (None, *itertools.product(("token", "sequence"), ("truncate", "mask")))
    worst, cases = {}, 0
    for dtype, seeds in (("float64", 2), ("float32", 1)):
        torch.set_default_dtype(getattr(torch, dtype))
        worst[dtype] = dict.fromkeys(types, 0.0)
        for loss_type, level, (beta, bias), delta, correction, seed in itertools.product(
            types,
            ("token", "sequence"),
            ((0.0, False), (0.04, False), (0.04, True)),
            (None, 1.5),
            corrections,
            range(seeds),
        ):
            case = {"loss_type": loss_type, "level": level, "beta": beta, "delta": delta}
            case |= {"bias": bias, "correction": correction}
            data = tensors(seed)
            actual = differences([(our_loss(data, options_for(**case)), trl_loss(data, **case))])
            worst[dtype][loss_type] = max(worst[dtype][loss_type], actual)
            cases += 1
    return {"worst": worst, "cases": cases}


def sapo_temperature_differences():
    """Return the largest difference with other temperatures of SAPO."""
    torch.set_default_dtype(torch.float64)
    usual = {
        "level": "token",
        "beta": 0.0,
        "delta": None,
        "bias": False,
        "correction": ("token", "truncate"),
    }
    worst = {}
    for seed in range(3):
        case, data = {"loss_type": "sapo", **usual}, tensors(seed)
        shape = {name: value * 1.25 for name, value in SHAPES.values()}
        pair = (our_loss(data, replace(options_for(**case), **shape)), trl_loss(data, **case, **shape))
        worst["temperatures"] = max(worst.get("temperatures", 0.0), differences([pair]))
    return {"beside": worst}


def trl_advantages(rewards, weights, scale, group):
    """Return the advantages that TRL computes from the rewards."""
    from trl import GRPOTrainer
    from trl.trainer.utils import nanstd

    code = upstream(
        GRPOTrainer._generate_and_score_completions, "unscorable_mask =", "advantages = torch.nan_to_num"
    )
    names = {
        "self": SimpleNamespace(
            multi_objective_aggregation="sum_then_normalize",
            scale_rewards=scale,
            reward_weights=weights,
            reward_funcs=(None,) * rewards.shape[1],
        ),
        "torch": torch,
        "nanstd": nanstd,
        "device": torch.device("cpu"),
        "rewards_per_func": rewards,
        "num_generations": group,
    }
    exec(code, names)
    return names["advantages"]


def advantage_differences(scales, upstreams, groups):
    """Return the largest difference of the advantages by scale and group size; one of the rewards is missing."""
    torch.set_default_dtype(torch.float64)
    generator = torch.Generator().manual_seed(0)
    rewards = torch.randn(12, 2, generator=generator)
    rewards[4:8] = 0.1
    rewards[2, 1] = torch.nan
    weights = torch.tensor([1.0, 0.5])
    summed = (rewards * weights).nansum(1)
    worst = {}
    for (scale, ours_scale), group in itertools.product(scales.items(), groups):
        options = replace(DIALECTS["trl-1.16.0/grpo"].loss, advantage_scale=ours_scale)
        actual = group_advantages(
            summed.view(-1, group).tolist(),
            baseline=options.advantage_baseline,
            scale=ours_scale,
            ddof=options.advantage_ddof,
            epsilon=options.advantage_epsilon,
        )
        expected = upstreams(rewards, weights, scale, group)
        worst[f"{scale}/{group}"] = float((torch.tensor(actual).flatten() - expected).abs().max())
    return worst


def differing_defaults():
    """Return the settings whose default differs between TRL and the dialect of grpo_core."""
    from trl import GRPOConfig

    fields = GRPOConfig.__dataclass_fields__
    return [
        f"{name}: {setting} {fields[setting].default!r}, not {ours_of(record.loss)!r}"
        for name, record in DIALECTS.items()
        for setting, ours_of in SETTINGS.items()
        if name.startswith("trl-1.16.0/")
        and fields[setting].default != ours_of(record.loss)
        and not (setting == "epsilon" and record.form == "cispo")  # CISPO has no lower bound
    ]


def main() -> None:
    """Print all differences as JSON."""
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    torch.set_num_threads(1)
    types = [record.form for name, record in DIALECTS.items() if name.startswith("trl-1.16.0/")]
    scales = {scale: scale for scale in ("group", "batch", "none")}
    report = {
        **loss_differences(types),
        **sapo_temperature_differences(),
        "advantages": advantage_differences(scales, trl_advantages, (4, 2, 1)),
        "defaults": differing_defaults(),
    }
    json.dump({"trl": version("trl"), **report}, answer)
    answer.close()


if __name__ == "__main__":
    sys.exit(main())
