"""Dialects: other trainers' GRPO losses, as settings of this one.

A record describes a released version with the named form and otherwise its own defaults. `evidence` is `executed` (a
test of this project runs the upstream code on the same numbers), `static` (its source was read) or `declared` (only its
documentation says so).

>>> dialect("verl-0.9.1/grpo").loss.dual_clip
3.0
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal

from grpo_core.config import ConfigError, LossConfig

Evidence = Literal["executed", "static", "declared"]
Settings = dict[str, Any]


@dataclass(frozen=True)
class Dialect:
    """One form of one trainer's loss.

    Attributes:
        release: The trainer's package and its release: project-version.
        form: The project's name of this loss.
        settings: The keys of `LossConfig` that differ from our defaults.
        source: Upstream file and functions.
        evidence: See above.
        notes: Upstream behaviour that these settings can't express; empty: none known.
    """

    release: str
    form: str
    settings: Mapping[str, Any]
    source: str
    notes: str
    evidence: Evidence

    @property
    def loss(self) -> LossConfig:
        """Return all settings of the loss."""
        return LossConfig(**self.settings)


def dialect(name: str) -> Dialect:
    """Return the record of this name: project-version/form.

    Raises:
        ConfigError: It does not exist; names the closest.
    """
    if name in NOT_EXPRESSIBLE:
        raise ConfigError(f"dialect {name!r} can't be said in settings of grpo_core: {NOT_EXPRESSIBLE[name]}")
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
_LUSPO: dict[str, Settings] = {"luspo": {"aggregation": "sequence_sum"}}
_NO_CORRECTION = {"correction": "none"}
_K3_LIMITS = {"kl_log_ratio_limit": 20.0, "kl_limit": 10.0}
_TRL_SOURCE = "trl/trainer/grpo_trainer.py: GRPOTrainer._compute_loss, _generate_and_score_completions"
_VERL = {"advantage_epsilon": 1e-6, "log_ratio_limit": 20.0, **_NO_CORRECTION, **_K3_LIMITS}
# Release, settings of all its forms, forms, source, notes, evidence.
_RELEASES: tuple[tuple[str, Settings, dict[str, Settings], str, str, Evidence], ...] = (
    ("trl-1.16.0",
     {"correction": "mask", "correction_level": "sequence", "correction_cap": 3.0, "kl_importance": True},
     {**_LOSS_TYPES, **_LUSPO, "vespo": {"surrogate": "vespo", "correction_level": "token"}}, _TRL_SOURCE,
     "bnpo's token count is a micro-batch's, and changes with how a step is split. A completion that no reward "
     "function scored is left out of its group. vespo asks for the correction by token. The entropy bonus is a mean "
     "over tokens whatever the loss_type, ours weighs as the loss does: the same for dapo and vespo. Not expressed: "
     "the adaptive coefficient, the entropy and off-policy masks, normalize_then_sum.", "executed"),
    ("trl-0.17.0", {"kl_coefficient": 0.04, **_NO_CORRECTION},
     {form: _LOSS_TYPES[form] for form in ("grpo", "bnpo", "dr_grpo")}, _TRL_SOURCE,
     "bnpo's token count is a micro-batch's, and changes with how a step is split.", "executed"),
    ("ms-swift-4.6.0", {"kl_coefficient": 0.04, **_NO_CORRECTION, **_K3_LIMITS}, _LOSS_TYPES,
     "swift/rlhf_trainers/grpo_trainer.py: GRPOTrainer._compute_loss_and_metrics; "
     "swift/rl_core/advantage.py: compute_advantages",
     "bnpo's token count is a micro-batch's. The correction, off by default, weighs the KL, too, and by sequence it is "
     "their geometric mean. Not expressed: sequence_token ratios, the entropy mask, real, fipo, gdpo.", "executed"),
    ("verl-0.9.1", _VERL,
     {"grpo": {"dual_clip": 3.0}, "gspo": {"ratio": "sequence_token", "log_ratio_limit": 10.0},
      "cispo": {"surrogate": "cispo"}, "sapo": {"surrogate": "sapo", "aggregation": "sequence"}},
     "verl/trainer/ppo/core_algos.py: compute_policy_loss_vanilla (gspo, cispo, sapo), agg_loss, kl_penalty, "
     "compute_grpo_outcome_advantage",
     "KL is off by default, and 0.001 where it is on; only k3 is limited. A group of one keeps its reward / (1 + 1e-6)."
     " Fully masked sequences don't count as sequences. gspo limits the log-ratio from above only. Not expressed: KL "
     "in the reward, rejection (rollout_rs), OPO, pass@k, REINFORCE++, GDPO, and its other policy losses.", "executed"),
    ("easyr1-0.3.2", _VERL, {"grpo": {"dual_clip": 3.0, "clip_high": 0.3, "kl_coefficient": 0.01}},
     "verl/trainer/core_algos.py: compute_policy_loss, average_loss, compute_kl, compute_grpo_outcome_advantage; KL of "
     "examples/config.yaml",
     "Only k3 is limited. The seq mode weighs micro-batches by their tokens. Without the example's settings KL is in "
     "the reward (k1, 0.001).", "static"),
    ("openrlhf-0.11.2", {"advantage_epsilon": 1e-9, **_NO_CORRECTION, **_K3_LIMITS},
     {"group_norm": {"log_ratio_limit": 20.0}, "gspo": {"ratio": "sequence", "aggregation": "sequence"}},
     "openrlhf/models/loss.py: PolicyLoss; openrlhf/models/utils.py: compute_approx_kl; "
     "openrlhf/trainer/ppo_utils/experience_maker.py",
     "Not expressed: KL in the reward, on by default (0.01, k1), which comes behind the group's normalisation and is "
     "added up from each token to the end; is_correction. Fully masked sequences don't count as sequences. Corrected, "
     "gspo's ratio is taken to the engine's log-probs.", "executed"),
    ("open-instruct-0.3.0", {"clip_high": 0.272, "kl_coefficient": 0.05, "kl_log_ratio_limit": 40.0},
     {"dapo": {"advantage_scale": "none"}, "dapo-standard": {"advantage_ddof": 0, "advantage_epsilon": 1e-8},
      "cispo": {"advantage_scale": "none", "surrogate": "cispo", "clip_low": 1.0}},
     "open_instruct/grpo_utils.py: compute_grpo_loss, compute_rho_correction; open_instruct/data_loader.py",
     "kl_estimator 2, the default, is k3. Not expressed: corrections that judge a whole sequence.", "static"),
    ("nemo-rl-0.7.0",
     {"advantage_epsilon": 1e-6, "kl_coefficient": 0.01, "kl_importance": True, **_NO_CORRECTION, **_K3_LIMITS},
     {"grpo": {"advantage_baseline": "leave_one_out", "advantage_scale": "leave_one_out"}},
     "nemo_rl/algorithms/loss/loss_functions.py: ClippedPGLossFn; nemo_rl/algorithms/utils.py: calculate_kl, "
     "calculate_baseline_and_std_per_prompt; examples/configs/grpo_math_1B.yaml",
     "The KL's weight is always 1, with the gradient of a ratio: ours in a step's first update only; it is limited "
     "together with the KL. Token counts have 1e-8 added. Not expressed: seq-mask-tis.", "static"),
    ("prime-rl-0.8.0", {"advantage_scale": "none"},
     {"default": {"surrogate": "moved", "correction": "none"}},
     "src/prime_rl/trainer/rl/loss.py: default_loss_fn; src/prime_rl/orchestrator/algo/grpo.py",
     "The ratio is current / behaviour.", "static"),
)  # fmt: skip
DIALECTS: Mapping[str, Dialect] = {
    f"{release}/{form}": Dialect(release, form, base | own, source, notes, evidence)
    for release, base, forms, source, notes, evidence in _RELEASES
    for form, own in forms.items()
}

# Dialects that are refused by name, with the reason.
NOT_EXPRESSIBLE: Mapping[str, str] = {
    "verl-0.9.1/gae": "it needs a value model",
    "verl-0.9.1/remax": "its baseline is a greedy completion of each prompt, which no rollout here has",
    "ms-swift-4.6.0/real": "a softmax over the completions of a group takes the place of the ratio",
    "ms-swift-4.6.0/fipo": "a token's advantage is weighed by the KL of the tokens behind it",
}
