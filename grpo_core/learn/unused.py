"""Settings of the loss that other settings of the loss leave without effect."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from grpo_core.config import LossConfig


def unused(loss: LossConfig) -> list[tuple[str, str]]:
    """Keys of `[loss]` that have no effect beside the others, and why."""
    clips, corrects, weighs = loss.surrogate == "clip", loss.correction != "none", loss.kl_coefficient > 0
    rules = [
        (loss.advantage_scale == "none", ("advantage_ddof", "advantage_epsilon"), "no deviation divides"),
        (loss.surrogate == "sapo", ("clip_low", "clip_high"), "sapo has a sigmoid in place of the clip"),
        (not clips, ("ratio_cap", "dual_clip"), f"it is of the surrogate clip, not of {loss.surrogate}"),
        (loss.surrogate != "sapo", ("sapo_temperature_positive", "sapo_temperature_negative"),
         "it is of the surrogate sapo"),
        (not weighs, ("kl_placement", "kl_estimator", "kl_importance", "kl_log_ratio_limit", "kl_limit"),
         "loss.kl_coefficient is 0"),
        (not corrects, ("correction_level", "correction_cap", "correction_floor"), "loss.correction is none"),
    ]  # fmt: skip
    return [(f"loss.{key}", why) for applies, keys, why in rules if applies for key in keys]
