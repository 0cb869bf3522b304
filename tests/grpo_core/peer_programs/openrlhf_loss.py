"""Compare OpenRLHF's `PolicyLoss`, `compute_approx_kl` and advantages with grpo_core's on the same tensors.

The modules of its wheel are loaded unchanged, without the `__init__` of its packages, which need flash-attn. They also
import deepspeed and the launcher of Ray actors, which are replaced by empty modules because nothing here uses them.
"""

import importlib
import importlib.util
import itertools
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import torch
from peer_comparison import (
    LENGTHS,
    PARTS,
    SEEDS,
    LargestDifferences,
    compare_dialects,
    our_advantages,
    our_loss,
    print_results,
    random_step,
    reward_groups,
)

CAP, FLOOR = 1.6, 0.5
CORRECTIONS = {
    None: ({"is_correction_level": "off"}, {"correction": "none"}),
    "clip": (
        {"is_correction_level": "token", "is_correction_mode": "clip", "is_correction_threshold": (FLOOR, CAP)},
        {"correction": "truncate", "correction_cap": CAP, "correction_floor": FLOOR},
    ),
    "mask": (
        {"is_correction_level": "token", "is_correction_mode": "mask", "is_correction_threshold": (FLOOR, CAP)},
        {"correction": "mask", "correction_cap": CAP, "correction_floor": FLOOR},
    ),
}  # fmt: skip


def load():
    """Load OpenRLHF's modules of losses, KL and advantages."""
    folder = Path(importlib.util.find_spec("openrlhf").origin).parent
    for name in ("models", "utils", "trainer", "trainer.ppo_utils", "trainer.ray"):
        package = ModuleType(f"openrlhf.{name}")
        package.__path__ = [str(folder.joinpath(*name.split(".")))]
        sys.modules[package.__name__] = package
    launcher = sys.modules["openrlhf.trainer.ray.launcher"] = ModuleType("openrlhf.trainer.ray.launcher")
    launcher.RayActorGroup = object
    sys.modules["deepspeed"] = ModuleType("deepspeed")
    models = [importlib.import_module(f"openrlhf.models.{name}") for name in ("loss", "utils")]
    del sys.modules["deepspeed"]  # transformers would take it for the real one
    names = ("utils.loss_utils", "trainer.ppo_utils.experience_maker")
    return [*models, *(importlib.import_module(f"openrlhf.{name}") for name in names)]


LOSS, UTILS, LOSS_UTILS, MAKER = load()


# Lower and upper clip that the comparison sets. The dialects are compared with OpenRLHF's defaults instead.
CLIPS = (0.2, 0.28)


def openrlhf_loss(data, *, kind, token_level, dual_clip=None, kl=None, correction=None, clips=CLIPS):
    """Return OpenRLHF's loss and gradient of two micro-batches, combined as in its actor's `training_step`."""
    current = data.current.clone().requires_grad_()
    loss = LOSS.PolicyLoss(
        *clips,
        dual_clip=dual_clip,
        token_level_loss=token_level,
        policy_loss_type=kind,
        **CORRECTIONS[correction][0],
    )
    windows = LOSS_UTILS.iter_grad_accum_global_norm(PARTS, None, len(PARTS), lambda rows: data.mask[rows])
    total = torch.zeros(())
    for rows, totals in windows:
        mask = data.mask[rows]
        part = loss(
            current[rows],
            data.proximal[rows],
            data.advantages[rows, None].expand(mask.shape),
            action_mask=mask,
            rollout_log_probs=data.behaviour[rows],
            **totals,
        )[0]
        if kl:
            estimate = UTILS.compute_approx_kl(current[rows], data.reference[rows], kl_estimator=kl)
            part = part + 0.04 * LOSS.aggregate_loss(estimate, mask, **totals)
        part = part / len(PARTS)  # DeepSpeed's share of a micro-batch
        part.backward()
        total = total + part.detach()
    return total, current.grad


def loss_differences():
    """Return the largest difference for each kind of loss, with and without KL."""
    worst = LargestDifferences()
    kinds = (("ppo", True), ("ppo", False), ("gspo", False))
    for (kind, token_level), dual_clip, kl, correction in itertools.product(
        kinds, (None, 3.0), (None, "k1", "k2", "k3"), CORRECTIONS
    ):
        if (kind == "gspo" and correction) or (kl and not token_level):  # not expressed
            continue
        settings = {
            "ratio": "sequence" if kind == "gspo" else "token",
            "log_ratio_limit": 0.0 if kind == "gspo" else 20.0,
            "clip_high": 0.28,
            "dual_clip": dual_clip or 0.0,
            "aggregation": "token" if token_level else "sequence",
            "kl_coefficient": 0.04 if kl else 0.0,
            "kl_estimator": kl or "k3",
            **CORRECTIONS[correction][1],
        }
        for seed in SEEDS:
            data = random_step(seed)
            their = openrlhf_loss(
                data, kind=kind, token_level=token_level, dual_clip=dual_clip, kl=kl, correction=correction
            )
            our = our_loss(data, settings, length_epsilon=1e-8)
            worst.add(f"{kind} {'with' if kl else 'without'} KL", *zip(our, their, strict=True))
    return worst


def openrlhf_advantages(rewards, estimator):
    """Return the advantages that OpenRLHF's estimator computes."""
    arguments = SimpleNamespace(
        algo=SimpleNamespace(
            advantage=SimpleNamespace(estimator=estimator, gamma=1.0, no_std_norm=True),
            kl=SimpleNamespace(use_loss=True),
        ),
        rollout=SimpleNamespace(n_samples_per_prompt=3, max_new_tokens=LENGTHS[0]),
        reward=SimpleNamespace(clip_range=None, overlong_buffer_len=None, stop_properly_penalty_coef=None),
    )
    maker = MAKER.RemoteExperienceMaker.__new__(MAKER.RemoteExperienceMaker)
    maker.strategy, maker.kl_ctl = SimpleNamespace(args=arguments), SimpleNamespace(value=0.0)
    maker.advantage_estimator = estimator
    experience = SimpleNamespace(
        index=list(range(len(rewards))),
        rewards=rewards,
        action_mask=torch.ones(len(rewards), 4, dtype=torch.bool),
        kl=torch.zeros(len(rewards), 4),
        info={},
    )
    (done,) = maker.compute_advantages_and_returns([experience])
    return done.advantages[:, 0]


def advantage_differences():
    """Return the largest difference per advantage estimator."""
    worst = LargestDifferences()
    for seed in SEEDS:
        groups = reward_groups(seed)
        rewards = torch.tensor(groups).flatten()
        centred = our_advantages(groups, scale="none")
        worst.add(
            "group_norm", (our_advantages(groups, epsilon=1e-9), openrlhf_advantages(rewards, "group_norm"))
        )
        worst.add("dr_grpo", (centred, openrlhf_advantages(rewards, "dr_grpo")))
        differences = our_advantages(groups, baseline="leave_one_out", scale="none")
        worst.add("rloo", (differences, openrlhf_advantages(rewards, "rloo")))
    return worst


def default_dialect_differences():
    """Return the differences between grpo_core's OpenRLHF dialects and OpenRLHF's defaults."""
    return compare_dialects(
        "openrlhf-0.11.2",
        lambda data, form: openrlhf_loss(
            data, kind="gspo" if form == "gspo" else "ppo", token_level=form != "gspo", clips=()
        ),
        lambda groups: openrlhf_advantages(torch.tensor(groups).flatten(), "group_norm"),
        length_epsilon=1e-8,
    )


if __name__ == "__main__":
    print_results("openrlhf", loss_differences, advantage_differences, default_dialect_differences)
