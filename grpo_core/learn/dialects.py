"""Define dialects: the GRPO losses of other trainers, expressed as settings of ours.

A dialect is one loss of one release, with the defaults of the release or of an example config. The comments on the
releases name the sources, known differences, and losses that our settings can't express. *Executed* means that a test
of this project runs the upstream code on the same numbers; *read* means that only its source was read.

>>> dialect("verl-0.9.1/grpo").loss.dual_clip
3.0
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from grpo_core.config import ConfigError, LossConfig

Settings = dict[str, Any]


@dataclass(frozen=True)
class Dialect:
    """One loss of another trainer, as settings of ours.

    Attributes:
        release: The trainer's package and its release: project-version.
        form: Name of the loss: the other trainer's name, or ours if it has none, such as `dapo-standard`.
        settings: The keys of `LossConfig` that differ from our defaults.
    """

    release: str
    form: str
    settings: Mapping[str, Any]

    @property
    def loss(self) -> LossConfig:
        """Return the complete loss settings."""
        return LossConfig(**self.settings)


def dialect(name: str) -> Dialect:
    """Return the dialect of this name: project-version/form.

    Raises:
        ConfigError: There is no such dialect; the message has the closest names.
    """
    if name not in DIALECTS:
        closest = get_close_matches(name, DIALECTS, n=3, cutoff=0)
        raise ConfigError(f"no dialect {name!r}; the nearest: {', '.join(closest)}")
    return DIALECTS[name]


# The loss_type of TRL and ms-swift. Their epsilon_high is CISPO's cap itself, which TRL's documentation sets to 5; its
# default would cap the ratio at 0.2.
_LOSS_TYPES: dict[str, Settings] = {
    "grpo": {"aggregation": "sequence"},
    "bnpo": {},
    "dapo": {},
    "dr_grpo": {"aggregation": "constant"},
    "sapo": {"surrogate": "sapo", "aggregation": "sequence"},
    "cispo": {"surrogate": "cispo", "clip_low": 1.0, "clip_high": 4.0},
}
_NO_CORRECTION: Settings = {"correction": "none"}
_K3_LIMITS: Settings = {"kl_log_ratio_limit": 20.0, "kl_limit": 10.0}
_TRL: Settings = {
    "correction": "mask",
    "correction_level": "sequence",
    "correction_cap": 3.0,
    "kl_importance": True,
}
_VERL: Settings = {"advantage_epsilon": 1e-6, "log_ratio_limit": 20.0, **_NO_CORRECTION, **_K3_LIMITS}
_OPENRLHF: Settings = {"advantage_epsilon": 1e-9, **_NO_CORRECTION, **_K3_LIMITS}
_OPEN_INSTRUCT: Settings = {"clip_high": 0.272, "kl_coefficient": 0.05, "kl_log_ratio_limit": 40.0}
_NEMO_RL: Settings = {"advantage_epsilon": 1e-6, "kl_coefficient": 0.01, "kl_importance": True}

# Release -> settings of all its forms, and those of each form.
_RELEASES: dict[str, tuple[Settings, dict[str, Settings]]] = {
    # Executed: trl/trainer/grpo_trainer.py: GRPOTrainer._compute_loss, _generate_and_score_completions. bnpo's token
    # count is a micro-batch's, and changes with how a step is split. A completion that no reward function scored is
    # left out of its group. The entropy bonus is a mean over tokens for every loss_type; ours is weighted like the
    # loss, equal for dapo only. Not expressed: vespo, the adaptive coefficient, the entropy and off-policy masks,
    # normalize_then_sum.
    "trl-1.16.0": (_TRL, {**_LOSS_TYPES, "luspo": {"aggregation": "sequence_sum"}}),
    # Executed, the same functions. bnpo as in 1.16.0.
    "trl-0.17.0": (
        {"kl_coefficient": 0.04, **_NO_CORRECTION},
        {form: _LOSS_TYPES[form] for form in ("grpo", "bnpo", "dr_grpo")},
    ),
    # Executed: swift/rlhf_trainers/grpo_trainer.py: GRPOTrainer._compute_loss_and_metrics; swift/rl_core/advantage.py:
    # compute_advantages. bnpo's token count is a micro-batch's. The correction, off by default, weighs the KL, too, and
    # by sequence it is their geometric mean. Not expressed: sequence_token ratios, the entropy mask, gdpo; real (a
    # softmax over a group in place of the ratio); fipo (an advantage weighed by the KL of later tokens).
    "ms-swift-4.6.0": ({"kl_coefficient": 0.04, **_NO_CORRECTION, **_K3_LIMITS}, _LOSS_TYPES),
    # Executed: verl/trainer/ppo/core_algos.py: compute_policy_loss_vanilla (gspo, cispo, sapo), agg_loss, kl_penalty,
    # compute_grpo_outcome_advantage. KL is off by default, and 0.001 where it is on; only k3 is limited. A group of one
    # keeps its reward / (1 + 1e-6). Fully masked sequences don't count as sequences. gspo limits the log-ratio from
    # above only. Not expressed: KL in the reward, rejection (rollout_rs), OPO, pass@k, REINFORCE++, GDPO, and its other
    # policy losses; gae, which needs a value model; remax, whose baseline is a greedy completion of each prompt.
    "verl-0.9.1": (
        _VERL,
        {
            "grpo": {"dual_clip": 3.0},
            "gspo": {"ratio": "sequence_token", "log_ratio_limit": 10.0},
            "cispo": {"surrogate": "cispo"},
            "sapo": {"surrogate": "sapo", "aggregation": "sequence"},
        },
    ),
    # Read: verl/trainer/core_algos.py: compute_policy_loss, average_loss, compute_kl, compute_grpo_outcome_advantage;
    # KL of examples/config.yaml. Only k3 is limited. The seq mode weighs micro-batches by their tokens. Without the
    # example's settings KL is in the reward (k1, 0.001).
    "easyr1-0.3.2": (_VERL, {"grpo": {"dual_clip": 3.0, "clip_high": 0.3, "kl_coefficient": 0.01}}),
    # Executed: openrlhf/models/loss.py: PolicyLoss; openrlhf/models/utils.py: compute_approx_kl;
    # openrlhf/trainer/ppo_utils/experience_maker.py. Not expressed: KL in the reward, on by default (0.01, k1), which
    # comes behind the group's normalisation and is added up from each token to the end; is_correction. Fully masked
    # sequences don't count as sequences. With is_correction, gspo's ratio divides by the engine's probabilities.
    "openrlhf-0.11.2": (
        _OPENRLHF,
        {"group_norm": {"log_ratio_limit": 20.0}, "gspo": {"ratio": "sequence", "aggregation": "sequence"}},
    ),
    # Read: open_instruct/grpo_utils.py: compute_grpo_loss, compute_rho_correction; open_instruct/data_loader.py.
    # kl_estimator 2, the default, is k3. Not expressed: corrections that judge a whole sequence.
    "open-instruct-0.3.0": (
        _OPEN_INSTRUCT,
        {
            "dapo": {"advantage_scale": "none"},
            "dapo-standard": {"advantage_ddof": 0, "advantage_epsilon": 1e-8},
            "cispo": {"advantage_scale": "none", "surrogate": "cispo", "clip_low": 1.0},
        },
    ),
    # Read: nemo_rl/algorithms/loss/loss_functions.py: ClippedPGLossFn; nemo_rl/algorithms/utils.py: calculate_kl,
    # calculate_baseline_and_std_per_prompt; examples/configs/grpo_math_1B.yaml. The KL's importance weight is always 1,
    # and has the gradient of a ratio. Ours equals it in a step's first update only. NeMo limits weight and KL together.
    # Token counts have 1e-8 added. Not expressed: seq-mask-tis.
    "nemo-rl-0.7.0": (
        {**_NEMO_RL, **_NO_CORRECTION, **_K3_LIMITS},
        {"grpo": {"advantage_baseline": "leave_one_out", "advantage_scale": "leave_one_out"}},
    ),
}
DIALECTS: Mapping[str, Dialect] = {
    f"{release}/{form}": Dialect(release, form, {**shared, **settings})
    for release, (shared, forms) in _RELEASES.items()
    for form, settings in forms.items()
}
