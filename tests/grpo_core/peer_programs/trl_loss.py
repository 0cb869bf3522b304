"""Compare loss, advantages and defaults of the installed TRL (1.16.0 or 0.17.0) with grpo_core's; print JSON.

TRL's loss, `GRPOTrainer._compute_loss`, is called unbound on a stand-in for the trainer. The stand-in has the log-probs
and the attributes that the two releases read. TRL computes its advantages and correction weights in the middle of
`_generate_and_score_completions`; these statements are taken from the method's source and executed unchanged.
"""

import ast
import inspect
import itertools
import math
import textwrap
from collections import defaultdict
from dataclasses import replace
from functools import cache, partial
from importlib.metadata import version
from types import SimpleNamespace

import torch
from peer_comparison import (
    LONGEST,
    Accelerator,
    LargestDifferences,
    our_advantages,
    our_loss,
    random_step,
    report,
)

from grpo_core.learn.dialects import DIALECTS

RELEASE = version("trl")
OLD = RELEASE == "0.17.0"
RECORDS = {record.form: record.loss for record in DIALECTS.values() if record.release == f"trl-{RELEASE}"}
LENGTHS = (9, 4, 1, 7, 0, 2, 9)  # 0: a truncated completion, which mask_truncated_completions masks
# Setting of GRPOConfig -> the value that grpo_core's loss options have for it.
SETTINGS = {"beta": lambda loss: loss.kl_coefficient, "epsilon": lambda loss: loss.clip_low}
OLD_SETTINGS = {"scale_rewards": lambda loss: loss.advantage_scale == "group"}
NEW_SETTINGS = {
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
SETTINGS |= OLD_SETTINGS if OLD else NEW_SETTINGS
# TRL's values of scale_rewards, by grpo_core's advantage_scale.
SCALES = {"group": True, "none": False} if OLD else {"group": "group", "batch": "batch", "none": "none"}
ADVANTAGES = (
    ("rewards = (rewards_per_func", "if self.scale_rewards")
    if OLD
    else ("unscorable_mask =", "advantages = torch.nan_to_num")
)


@cache
def compile_trl_statements(first, last):
    """Compile the method's statements from the one that begins with `first` to the one that begins with `last`."""
    from trl import GRPOTrainer

    method = GRPOTrainer._generate_and_score_completions
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
    statement = "if self.use_vllm and self.vllm_importance_sampling_correction:\n    mask ="
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
    exec(compile_trl_statements(statement, statement), names)
    return names["vllm_importance_sampling_ratio"]


# Values of the options that a case leaves out. `heat` multiplies SAPO's temperatures.
USUAL = {"iterations": 2, "level": "token", "delta": None, "bias": False, "correction": None, "heat": 1.0}


def cases(loss_type):
    """Yield the combinations of TRL's options for a loss type."""
    if OLD:
        for beta, high, iterations in itertools.product((0.0, 0.04), (0.2, 0.28), (1, 2)):
            yield {"loss_type": loss_type, "beta": beta, "high": high, "iterations": iterations}
        return
    corrections = (None, *itertools.product(("token", "sequence"), ("truncate", "mask")))
    kls = ((0.0, False), (0.04, False), (0.04, True))
    for level, (beta, bias), delta, correction in itertools.product(
        ("token", "sequence"), kls, (None, 1.5), corrections
    ):
        case = {"loss_type": loss_type, "beta": beta, "high": 0.28, "level": level}
        yield {**case, "bias": bias, "delta": delta, "correction": correction}


def core_loss(data, case):
    """Return grpo_core's loss and its gradient with the options that equal TRL's."""
    case = SimpleNamespace(**USUAL | case)
    level, mode = case.correction or ("token", "none")
    options = replace(
        RECORDS[case.loss_type],
        ratio=case.level,
        clip_high=case.high,
        ratio_cap=case.delta or 0.0,
        kl_coefficient=case.beta,
        kl_importance=case.bias,
        correction=mode,
        correction_level=level,
        correction_floor=0.6,
        sapo_temperature_positive=1.0 * case.heat,
        sapo_temperature_negative=1.05 * case.heat,
    )
    return our_loss(data, vars(options), parts=[slice(None)])


def trl_loss(data, case):
    """Return TRL's loss and its gradient with respect to the log-probs."""
    from trl import GRPOTrainer

    case = SimpleNamespace(**USUAL | case)

    current = data.current.clone().requires_grad_()
    mask = data.mask.to(torch.get_default_dtype())
    args = SimpleNamespace(
        delta=case.delta,
        use_bias_correction_kl=case.bias,
        steps_per_generation=1,
        sapo_temperature_pos=1.0 * case.heat,
        sapo_temperature_neg=1.05 * case.heat,
    )
    trainer = SimpleNamespace(
        _get_per_token_logps=lambda *_: current,
        _get_per_token_logps_and_entropies=lambda *_, **__: (current, data.entropy, None),
        _entropy_bonus_enabled=False,
        entropy_coef=0.0,
        _metrics={"train": defaultdict(list)},
        accelerator=Accelerator(),
        args=args,
        aux_loss_enabled=False,
        beta=case.beta,
        control=SimpleNamespace(should_evaluate=False),
        current_gradient_accumulation_steps=1,
        epsilon_low=0.2,
        epsilon_high=1 + case.high if case.loss_type == "cispo" else case.high,  # of CISPO the cap itself
        importance_sampling_level=case.level,
        loss_type=case.loss_type,
        max_completion_length=LONGEST,
        model=SimpleNamespace(training=True),
        num_iterations=case.iterations,
        off_policy_mask_threshold=None,
        top_entropy_quantile=1.0,
        use_adaptive_entropy=False,
        use_vllm=case.correction is not None,
        vllm_importance_sampling_correction=case.correction is not None,
    )
    if not OLD:
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
    if case.correction:
        inputs["importance_sampling_ratio"] = correction_weights(data, case.correction)
    loss = GRPOTrainer._compute_loss(trainer, None, inputs)
    loss.backward()
    return loss.detach(), current.grad


def loss_differences():
    """Return the largest difference by dtype and loss type, and the number of cases."""
    worst, count = {}, 0
    for dtype, seeds in (("float64", 3 if OLD else 2), ("float32", 3 if OLD else 1)):
        torch.set_default_dtype(getattr(torch, dtype))
        worst[dtype] = LargestDifferences()
        for case, seed in itertools.product(itertools.chain(*map(cases, RECORDS)), range(seeds)):
            data = random_step(seed, LENGTHS, spread=0.25)
            if case.get("iterations") == 1:
                data.proximal = data.current
            worst[dtype].add(
                case["loss_type"], *zip(core_loss(data, case), trl_loss(data, case), strict=True)
            )
            count += 1
    torch.set_default_dtype(torch.float64)
    return {"worst": worst, "cases": count}


def sapo_temperature_differences():
    """Return the largest difference with other temperatures of SAPO; TRL 0.17.0 has no SAPO."""
    worst = LargestDifferences()
    case = {"loss_type": "sapo", "beta": 0.0, "high": 0.28, "correction": ("token", "truncate"), "heat": 1.25}
    for seed in range(0 if OLD else 3):
        data = random_step(seed, LENGTHS, spread=0.25)
        worst.add("temperatures", *zip(core_loss(data, case), trl_loss(data, case), strict=True))
    return worst


def trl_advantages(rewards, weights, scale, group):
    """Return the advantages that TRL computes from the rewards."""
    from trl.trainer import utils

    names = {
        "self": SimpleNamespace(
            multi_objective_aggregation="sum_then_normalize",
            num_generations=group,
            scale_rewards=scale,
            reward_weights=weights,
            reward_funcs=(None,) * rewards.shape[1],
        ),
        "torch": torch,
        "nanstd": getattr(utils, "nanstd", None),
        "device": torch.device("cpu"),
        "rewards_per_func": rewards,
        "num_generations": group,
    }
    exec(compile_trl_statements(*ADVANTAGES), names)
    return names["advantages"]


def advantage_differences():
    """Return the largest difference of the advantages by scale and group size; one of the rewards is missing."""
    rewards = torch.randn(12, 2, generator=torch.Generator().manual_seed(0))
    rewards[4:8] = 0.1
    rewards[2, 1] = torch.nan
    weights = torch.tensor([1.0, 0.5])
    summed, options = (rewards * weights).nansum(1), RECORDS["grpo"]
    worst = {}
    for (scale, trl_scale), group in itertools.product(SCALES.items(), (4, 2) if OLD else (4, 2, 1)):
        actual = our_advantages(
            summed.view(-1, group).tolist(),
            baseline=options.advantage_baseline,
            scale=scale,
            ddof=options.advantage_ddof,
            epsilon=options.advantage_epsilon,
        )
        expected = trl_advantages(rewards, weights, trl_scale, group)
        worst[f"{scale}/{group}"] = float((actual - expected).abs().max())
    return worst


def differing_defaults():
    """Return the settings whose default differs between TRL and the dialect of grpo_core."""
    from trl import GRPOConfig

    fields = GRPOConfig.__dataclass_fields__
    return [
        f"{form}: {setting} {fields[setting].default!r}, not {ours_of(loss)!r}"
        for form, loss in RECORDS.items()
        for setting, ours_of in SETTINGS.items()
        if fields[setting].default != ours_of(loss)
        and not (setting == "epsilon" and form == "cispo")  # CISPO has no lower bound
    ]


if __name__ == "__main__":
    report(
        lambda: {
            "trl": RELEASE,
            **loss_differences(),
            "sapo_temperatures": sapo_temperature_differences(),
            "advantages": advantage_differences(),
            "defaults": differing_defaults(),
        }
    )
