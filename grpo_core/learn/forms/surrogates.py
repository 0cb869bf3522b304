"""Surrogates beside the clip, CISPO and SAPO: what other trainers maximise per token, by name.

Sources: VESPO as TRL 1.16.0 has it; DPPO (arXiv 2602.04879), Clip-Cov and KL-Cov, GMPO (arXiv 2507.20673) and DRO as
verl 0.9.1 has them; `moved` is the default loss of prime-rl 0.8.0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from grpo_core.learn.loss import importance_weights

if TYPE_CHECKING:
    from collections.abc import Callable

    from grpo_core.wide import WideLossConfig


@dataclass(frozen=True)
class Terms:
    """What a surrogate is made of; log-probs are zero where masked, and only `current` and `ratio` have a gradient."""

    current: torch.Tensor
    proximal: torch.Tensor
    behaviour: torch.Tensor
    ratio: torch.Tensor
    advantages: torch.Tensor
    mask: torch.Tensor

    def weights(self, options: WideLossConfig) -> torch.Tensor:
        """Those of the correction, as configured."""
        return importance_weights(self.proximal, self.behaviour, self.mask, options)


if TYPE_CHECKING:
    Found = tuple[torch.Tensor, torch.Tensor]
    Form = Callable[[Terms, WideLossConfig], Found]

_LEAST = math.log(1e-8)


def _none(like: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(like, dtype=torch.bool)


def vespo(terms: Terms, options: WideLossConfig) -> Found:
    """phi(w) A log pi: w is the ratio's product over the sequence, phi(w) = e^lambda w^k e^(-lambda w).

    The correction's weights are part of w, and weigh nothing else.
    """
    log_ratio = (terms.current - terms.proximal).detach().clamp(-20.0, 20.0)
    log_w = (log_ratio * terms.mask).sum(1, keepdim=True)
    if options.correction != "none":
        logs = terms.weights(options).log().clamp(_LEAST, 20.0)
        if options.correction_level == "token":
            logs = torch.where(terms.mask, logs, torch.zeros_like(log_ratio))
        log_w = log_w + logs.sum(1, keepdim=True)
    log_w = log_w.clamp(_LEAST, 20.0)
    good = terms.advantages >= 0
    power = torch.where(good, options.vespo_power_positive, options.vespo_power_negative)
    rate = torch.where(good, options.vespo_rate_positive, options.vespo_rate_negative)
    phi = torch.exp(rate + power * log_w - rate * log_w.exp()).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
    return phi * terms.advantages * terms.current, _none(terms.current)


def dppo_tv(terms: Terms, options: WideLossConfig) -> Found:
    """The detached ratio times A log pi, where the probability has not moved by more than the clip's bounds."""
    moved = (terms.current.exp() - terms.proximal.exp()).detach()
    valid = torch.where(terms.advantages > 0, moved <= options.clip_high, moved >= -options.clip_low)
    return _trusted(terms, valid, options)


def dppo_kl(terms: Terms, options: WideLossConfig) -> Found:
    """The same, by the KL between two coins: that this token is sampled, and that it is not."""
    now, before = terms.current.detach().exp(), terms.proximal.exp()
    rest = torch.log((1.0 - before + 1e-8) / (1.0 - now + 1e-8))
    kl = before * (terms.proximal - terms.current.detach()) + (1 - before) * rest
    above = (kl <= options.clip_high) | (now <= before)
    below = (kl <= options.clip_low) | (now >= before)
    return _trusted(terms, torch.where(terms.advantages > 0, above, below), options)


def _trusted(terms: Terms, valid: torch.Tensor, options: WideLossConfig) -> Found:
    ratio = terms.ratio.detach()
    capped = ratio.clamp(max=options.ratio_cap) if options.ratio_cap else ratio
    return capped * terms.advantages * terms.current * valid, ~valid


def moved(terms: Terms, options: WideLossConfig) -> Found:
    """The ratio to the engine's log-probs, less the squared log-ratio.

    Tokens whose probability moved beyond the clip's bounds, the way their advantage points, have the latter alone.
    """
    log_ratio = terms.current - terms.behaviour
    by = (terms.current.exp() - terms.behaviour.exp()).detach()
    out = torch.where(terms.advantages > 0, by > options.clip_high, by < -options.clip_low)
    return log_ratio.exp() * terms.advantages * ~out - options.quadratic * log_ratio**2, out


def dro(terms: Terms, options: WideLossConfig) -> Found:
    """A log pi, less the squared log-ratio."""
    apart = (terms.current - terms.proximal) ** 2
    return terms.advantages * terms.current - options.quadratic * apart, _none(terms.current)


def geo_mean(terms: Terms, options: WideLossConfig) -> Found:
    """A times the geometric mean of a sequence's ratios, each clipped in its log (GMPO); the same at all its tokens."""
    log_ratio, sign = terms.current - terms.proximal, terms.advantages.sign()
    clamped = log_ratio.clamp(-options.clip_low, options.clip_high)
    least = sign * torch.minimum(sign * log_ratio, sign * clamped)
    tokens = terms.mask.sum(1, keepdim=True).clamp(min=1)
    gain = terms.advantages * ((least * terms.mask).sum(1, keepdim=True) / tokens).exp()
    if options.correction != "none":  # the weights' geometric mean, too
        logs = (terms.weights(options) + 1e-10).log().expand_as(log_ratio)
        gain = gain * ((logs * terms.mask).sum(1, keepdim=True) / tokens).exp()
    return gain.expand_as(log_ratio), least != log_ratio


def clip_cov(terms: Terms, options: WideLossConfig) -> Found:
    """The clip, without a few random ones of the tokens whose advantage and log-prob go together most."""
    bounded = terms.ratio.clamp(1 - options.clip_low, 1 + options.clip_high) * terms.advantages
    free = terms.ratio * terms.advantages
    covariance = _covariance(terms)
    within = (covariance > options.cov_low) & (covariance < options.cov_high) & terms.mask & ~(bounded < free)
    places = within.nonzero()
    count = max(int(options.cov_share * int(terms.mask.sum())), 1)
    # Of the number of candidates alone: the same step draws the same tokens again.
    order = torch.randperm(len(places), generator=torch.Generator().manual_seed(len(places)))
    taken = places[order[:count].to(places.device)]
    kept = torch.ones_like(terms.ratio)
    kept[taken[:, 0], taken[:, 1]] = 0
    return torch.minimum(free, bounded) * kept, (kept == 0) | (bounded < free)


def kl_cov(terms: Terms, options: WideLossConfig) -> Found:
    """No clip; where advantage and log-prob go together most, |log ratio| is taken off."""
    log_ratio = terms.current - terms.proximal
    covariance = _covariance(terms)[terms.mask]
    count = max(1, int(options.cov_share * len(covariance)))
    chosen = torch.zeros_like(covariance, dtype=torch.bool)
    chosen[torch.topk(covariance, count).indices] = True
    there = torch.zeros_like(terms.mask).masked_scatter(terms.mask, chosen)
    gain = terms.ratio * terms.advantages - options.cov_kl * log_ratio.abs() * there
    return gain, _none(gain)


def _covariance(terms: Terms) -> torch.Tensor:
    """(A - its mean) (log pi - its mean), over the tokens of a step."""
    advantages, current = terms.advantages.expand_as(terms.current), terms.current.detach()
    means = advantages[terms.mask].mean(), current[terms.mask].mean()
    return (advantages - means[0]) * (current - means[1])


FORMS: dict[str, Form] = {
    form.__name__: form for form in (vespo, dppo_tv, dppo_kl, moved, dro, geo_mean, clip_cov, kl_cov)
}
# These take the correction's weights into themselves.
CORRECTED = ("vespo", "geo_mean")
# These compare all tokens of an update, which then have to be one micro-batch.
OF_A_STEP = ("clip_cov", "kl_cov")
