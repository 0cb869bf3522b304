"""The policy loss with the switches of `grpo_core.wide`; with none of them set, the core's, to the last bit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grpo_core.learn.forms.rejection import gated, on_policy
from grpo_core.learn.forms.surrogates import CORRECTED, FORMS, Terms
from grpo_core.learn.loss import PolicyLoss, importance_weights, kept, policy_loss, ratios, surrogate
from grpo_core.wide import WideLossConfig

if TYPE_CHECKING:
    import torch

    from grpo_core.config import LossConfig
    from grpo_core.learn.loss import Streams


def any_policy_loss(
    current_BT: torch.Tensor,
    streams: Streams,
    advantages: torch.Tensor,
    mask_BT: torch.Tensor,
    weights_BT: torch.Tensor,
    options: LossConfig,
    learned_BT: torch.Tensor | None = None,
) -> PolicyLoss:
    """The core's loss or the one here, whichever the settings are of; advantages of tokens are of the one here."""
    given = (current_BT, streams, advantages, mask_BT, weights_BT)
    if advantages.dim() > 1 and not isinstance(options, WideLossConfig):
        options = WideLossConfig(**vars(options))
    if isinstance(options, WideLossConfig):
        return wide_policy_loss(*given, options, learned_BT)
    return policy_loss(*given, options, learned_BT)


def wide_policy_loss(
    current_BT: torch.Tensor,
    streams: Streams,
    advantages: torch.Tensor,
    mask_BT: torch.Tensor,
    weights_BT: torch.Tensor,
    options: WideLossConfig,
    learned_BT: torch.Tensor | None = None,
    entropy_BT: torch.Tensor | None = None,
) -> PolicyLoss:
    """As `policy_loss`, which see.

    Args:
        current_BT: The trainer's log-probs, with gradient.
        streams: The other log-probs.
        advantages: One a sample [B], or one a token [B, T].
        mask_BT: True at real tokens; what stands elsewhere has no influence, be it NaN.
        weights_BT: This part's rows of the whole step's `token_weights`.
        options: All switches.
        learned_BT: True where the surrogate counts; None: at all real tokens.
        entropy_BT: With gradient, where `entropy_coefficient` is set. It weighs as the loss does, as in verl 0.9.1.
    """
    current, proximal = kept(current_BT, mask_BT), kept(streams.proximal, mask_BT)
    behaviour = kept(streams.behaviour, mask_BT)
    gains = kept(advantages, mask_BT) if advantages.dim() > 1 else advantages[:, None]
    ratio = ratios(current, proximal, mask_BT, options)
    if options.surrogate in FORMS:
        terms = Terms(current, proximal, behaviour, ratio, gains, mask_BT)
        gain, cut = FORMS[options.surrogate](terms, options)
    else:
        gain, cut = surrogate(ratio, gains, current, options)
    if options.correction != "none" and options.surrogate not in CORRECTED:
        weigh = importance_weights if options.correction_gate == "none" else gated
        gain = gain * weigh(proximal, behaviour, mask_BT, options)
    if options.off_policy_limit:
        gain = gain * on_policy(current, behaviour, gains, mask_BT, options.off_policy_limit)
    per_token = -gain if learned_BT is None else -gain * learned_BT
    kl_sum = 0.0
    if streams.reference is not None:
        from grpo_core.learn.kl import added

        per_token, kl_sum = added(per_token, current, streams.reference, ratio, mask_BT, options)
    if entropy_BT is not None and options.entropy_coefficient:
        bonus = kept(entropy_BT, mask_BT)
        per_token = per_token - options.entropy_coefficient * bonus
    return PolicyLoss(
        value=(per_token * weights_BT).sum(),
        kl_sum=kl_sum,
        clipped=int((cut & mask_BT).sum()),
        ratio_sum=float((ratio * mask_BT).sum().detach()),
    )
