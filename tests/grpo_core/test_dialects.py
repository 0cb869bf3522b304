"""Each dialect's loss equals its project's formula, written out token by token in plain Python.

A dialect is one loss of another trainer. Gradients equal finite differences; CISPO's gradient, which is not that of its
value, has a test of its own. Clamped log-ratios and KLs are tested, too.
"""

import math
import statistics
from types import SimpleNamespace

import pytest
import torch

from grpo_core.config import LossConfig
from grpo_core.learn.advantages import group_advantages
from grpo_core.learn.dialects import DIALECTS
from grpo_core.learn.losses import Streams, policy_loss, token_weights

pytestmark = pytest.mark.usefixtures("float64")

LONGEST = 5
# Two groups of three; log-probs of each token: current, proximal, behaviour, reference.
# They include ratios beyond each clip on both sides, beyond 3 (dual clip) and beyond 5 (CISPO), log-ratios of 3 to the
# reference (with a k3 above 10), and correction weights of a sequence above 2 and above 3.
REWARDS = [[1.0, 0.0, 0.25], [0.1, 0.9, 0.3]]
SAMPLES = [
    [(-1.0, -1.5, -1.4, -1.2), (-0.5, -0.3, -0.6, -0.1), (-4.0, -4.1, -3.9, -1.0)],
    [(-0.4, -1.9, -1.7, -0.9)],
    [(-1.1, -0.6, -0.5, -1.4), (-0.2, -1.2, -1.1, -0.3)],
    [(-0.3, -2.1, -2.2, -0.7), (-1.6, -1.5, -2.0, -1.0)],
    [(-0.1, -2.0, -2.1, -0.2), (-0.8, -0.7, -2.4, -0.9), (-0.7, -0.7, -0.7, -0.7), (-1.3, -1.0, -0.9, -1.6)],
    [(-2.2, -1.1, -2.0, -1.9)],
]


# The projects' losses of a token -----------------------------------------------------------------------------------


def ppo(token, low, high, ratio=None):
    """Return PPO's loss: minus the smaller of ratio * A and clipped ratio * A."""
    ratio = token.ratio if ratio is None else ratio
    return -min(ratio * token.advantage, min(max(ratio, 1 - low), 1 + high) * token.advantage)


def dual_clip(token, low, high):
    """Return PPO's loss; for a negative A at most -3 * A."""
    loss = ppo(token, low, high)
    return min(loss, -3.0 * token.advantage) if token.advantage < 0 else loss


def cispo(token, low, high):
    """Return minus A times the log-prob, weighted by the clipped, constant ratio."""
    return -min(max(token.ratio, low), high) * token.advantage * token.current


def sapo(token):
    """Return SAPO's loss, with a sigmoid in place of the clip."""
    heat = 1.0 if token.advantage > 0 else 1.05
    return -4 / heat / (1 + math.exp(-heat * (token.ratio - 1))) * token.advantage


def k3(token, limit=math.inf):
    """Return exp(x) - x - 1 of x = reference - current."""
    x = token.reference - token.current
    return min(math.exp(x) - x - 1, limit)


def masked_sequence(token):
    """Apply TRL's default correction: drop a sequence whose product of weights is above 3."""
    return token.sequence_weight if token.sequence_weight <= 3.0 else 0.0


def truncated(token):
    """Return open-instruct's truncated correction weight."""
    return min(token.weight, 2.0)


# The projects' advantages -----------------------------------------------------------------------------------


def normalised(epsilon, deviation=statistics.stdev):
    """Return a function that divides the centred rewards of a group by their deviation plus epsilon."""
    return lambda rewards: [value / (deviation(rewards) + epsilon) for value in centred(rewards)]


def centred(rewards):
    """Return the rewards minus their mean."""
    return [reward - statistics.fmean(rewards) for reward in rewards]


def nemo(rewards):
    """Return NeMo-RL's leave-one-out advantages."""
    peers = [rewards[:i] + rewards[i + 1 :] for i in range(len(rewards))]
    return [
        (reward - statistics.fmean(rest)) / (statistics.stdev(rest) + 1e-6)
        for reward, rest in zip(rewards, peers, strict=True)
    ]


# The projects' aggregation of token losses -----------------------------------------------------------------------


def by_token(rows):
    """Average over all tokens."""
    return sum(map(sum, rows)) / sum(map(len, rows))


def by_sequence(rows):
    """Average each sequence, then over sequences."""
    return statistics.fmean(sum(row) / len(row) for row in rows)


def by_max_length(rows):
    """Divide by the number of sequences times the maximum length."""
    return sum(map(sum, rows)) / (len(rows) * LONGEST)


def by_sum(rows):
    """Sum each sequence, then average over sequences."""
    return statistics.fmean(map(sum, rows))


def trl(loss):
    """Return a loss function that applies TRL's default correction to another one."""
    return lambda token: masked_sequence(token) * loss(token)


def with_kl(loss, coefficient, limit=math.inf):
    """Return a loss function that adds the KL estimate with a coefficient."""
    return lambda token: loss(token) + coefficient * k3(token, limit)


def clip_02(token):
    """Return PPO's loss with a clip of 0.2."""
    return ppo(token, 0.2, 0.2)


def gspo(token):
    """Return PPO's loss with the ratio of the sequence."""
    return ppo(token, 0.2, 0.2, token.sequence_ratio)


def cispo_to_five(token):
    """Return CISPO's loss with an upper bound of 5."""
    return cispo(token, 0.0, 5.0)


TRL, VERL = normalised(1e-4), normalised(1e-6)
LOSS_TYPES = {
    "grpo": (clip_02, by_sequence), "bnpo": (clip_02, by_token), "dapo": (clip_02, by_token),
    "dr_grpo": (clip_02, by_max_length), "cispo": (cispo_to_five, by_token), "sapo": (sapo, by_sequence),
}  # fmt: skip


def open_instruct(loss):
    """Return a loss function that applies the truncated correction and adds the KL."""
    return with_kl(lambda token: truncated(token) * loss(token), 0.05)


def clip_higher(token):
    """Return PPO's loss with a higher upper clip."""
    return ppo(token, 0.2, 0.272)


# Dialect: advantages of a group, loss of a token, and aggregation.
FORMULAS = {
    **{f"trl-1.16.0/{form}": (TRL, trl(loss), total) for form, (loss, total) in LOSS_TYPES.items()},
    "trl-1.16.0/luspo": (TRL, trl(clip_02), by_sum),
    **{
        f"trl-0.17.0/{form}": (TRL, with_kl(clip_02, 0.04), LOSS_TYPES[form][1])
        for form in ("grpo", "bnpo", "dr_grpo")
    },
    **{
        f"ms-swift-4.6.0/{form}": (TRL, with_kl(loss, 0.04, 10), total)
        for form, (loss, total) in LOSS_TYPES.items()
    },
    "verl-0.9.1/grpo": (VERL, lambda token: dual_clip(token, 0.2, 0.2), by_token),
    "verl-0.9.1/gspo": (VERL, gspo, by_token),
    "verl-0.9.1/cispo": (VERL, lambda token: cispo(token, 0.8, 1.2), by_token),
    "verl-0.9.1/sapo": (VERL, sapo, by_sequence),
    "easyr1-0.3.2/grpo": (VERL, with_kl(lambda token: dual_clip(token, 0.2, 0.3), 0.01, 10), by_token),
    "openrlhf-0.11.2/group_norm": (normalised(1e-9), clip_02, by_token),
    "openrlhf-0.11.2/gspo": (normalised(1e-9), gspo, by_sequence),
    "open-instruct-0.3.0/dapo": (centred, open_instruct(clip_higher), by_token),
    "open-instruct-0.3.0/dapo-standard": (
        normalised(1e-8, statistics.pstdev),
        open_instruct(clip_higher),
        by_token,
    ),
    "open-instruct-0.3.0/cispo": (centred, open_instruct(lambda token: cispo(token, 0.0, 1.272)), by_token),
    "nemo-rl-0.7.0/grpo": (
        nemo,
        lambda token: clip_02(token) + 0.01 * min(k3(token), 10) * token.ratio,
        by_token,
    ),
}


def expected_loss(name: str) -> float:
    """Return the step's loss from rewards and log-probs."""
    advantages_of, loss_of, total = FORMULAS[name]
    advantages = [advantage for group in REWARDS for advantage in advantages_of(group)]
    rows = []
    for sample, advantage in zip(SAMPLES, advantages, strict=True):
        policy = sum(current - proximal for current, proximal, _, _ in sample)
        engine = sum(proximal - behaviour for _, proximal, behaviour, _ in sample)
        sequence = {
            "advantage": advantage,
            "sequence_ratio": math.exp(policy / len(sample)),
            "sequence_weight": math.exp(engine),
        }
        tokens = [
            SimpleNamespace(
                **sequence,
                current=current,
                reference=reference,
                ratio=math.exp(current - proximal),
                weight=math.exp(proximal - behaviour),
            )
            for current, proximal, behaviour, reference in sample
        ]
        rows.append([loss_of(token) for token in tokens])
    return total(rows)


def loss_function(options: LossConfig):
    """Return grpo_core's loss as a function of the current log-probs, and these log-probs."""
    width = max(map(len, SAMPLES))
    padded = torch.tensor([[*sample, *[(0.0,) * 4] * (width - len(sample))] for sample in SAMPLES])
    mask = torch.arange(width)[None] < torch.tensor([len(sample) for sample in SAMPLES])[:, None]
    current, proximal, behaviour, reference = padded.unbind(-1)
    names = ("baseline", "scale", "ddof", "epsilon")
    actual = group_advantages(REWARDS, **{name: getattr(options, f"advantage_{name}") for name in names})
    advantages = torch.tensor(actual).flatten()
    weights = token_weights(mask, options.aggregation, LONGEST)
    streams = Streams(behaviour, proximal, reference if options.kl_coefficient else None)
    return lambda values: policy_loss(values, streams, advantages, mask, weights, options).value, current


def far_token_loss(options, *, current=0.0, reference=0.0, advantage=0.0) -> tuple[float, float]:
    """Return loss and gradient of one token at these distances from the proximal log-prob."""
    proximal, mask = torch.tensor([[-1.0]]), torch.tensor([[True]])
    values = (proximal + current).requires_grad_()
    weights = token_weights(mask, options.aggregation, 1)
    streams = Streams(proximal, proximal, proximal + reference if options.kl_coefficient else None)
    loss = policy_loss(values, streams, torch.tensor([advantage]), mask, weights, options).value
    loss.backward()
    return loss.item(), values.grad.item()


def test_every_dialect_has_a_formula():
    assert set(FORMULAS) == set(DIALECTS)


@pytest.mark.parametrize("name", DIALECTS)
def test_loss_matches_closed_form(name):
    """The loss computed from rewards and log-probs equals the formula to twelve digits."""
    ours, current = loss_function(DIALECTS[name].loss)
    assert math.isclose(ours(current).item(), expected_loss(name), rel_tol=1e-12)


@pytest.mark.parametrize("name", [name for name, record in DIALECTS.items() if record.form != "cispo"])
def test_gradient_matches_finite_differences(name):
    """The gradient equals finite differences, except for CISPO, whose gradient is not that of its value."""
    ours, current = loss_function(DIALECTS[name].loss)
    assert torch.autograd.gradcheck(ours, (current.clone().requires_grad_(),))


@pytest.mark.parametrize("name", [name for name, record in DIALECTS.items() if record.form == "cispo"])
def test_cispo_gradient_is_linear_in_logprob(name):
    """For CISPO, log-prob times gradient gives the policy part of the value."""
    ours, current = loss_function(LossConfig(**{**DIALECTS[name].settings, "kl_coefficient": 0.0}))
    current = current.clone().requires_grad_()
    value = ours(current)
    value.backward()
    torch.testing.assert_close((current.grad * current).sum(), value, rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("options", "difference", "expected"),
    [
        ({"kl_estimator": "k3", "kl_log_ratio_limit": 2.0}, -5.0, math.exp(-2.0) + 2.0 - 1.0),
        ({"kl_estimator": "k1", "kl_log_ratio_limit": 2.0}, 5.0, -2.0),
        ({"kl_estimator": "k2", "kl_limit": 10.0}, 5.0, 10.0),
        ({"kl_estimator": "k1", "kl_limit": 1.0}, 5.0, -1.0),
        ({"kl_estimator": "k3", "kl_limit": 10.0, "kl_log_ratio_limit": 20.0}, 900.0, 10.0),
    ],
)
def test_clamped_kl_has_no_gradient(options, difference, expected):
    """Beyond its limits the KL has the clamped value and no gradient; a log-ratio of 900 does not overflow."""
    options = LossConfig(kl_coefficient=1.0, correction="none", **options)
    loss, gradient = far_token_loss(options, reference=difference)
    assert math.isclose(loss, expected, rel_tol=1e-12)
    assert gradient == 0.0


@pytest.mark.parametrize(
    ("name", "log_ratio", "advantage", "expected"),
    [
        ("verl-0.9.1/grpo", -30.0, 1.0, -math.exp(-20)),
        ("verl-0.9.1/gspo", 30.0, -1.0, math.exp(10)),
        ("verl-0.9.1/sapo", -30.0, 1.0, -4 / (1 + math.exp(1 - math.exp(-20)))),
        ("easyr1-0.3.2/grpo", -30.0, 1.0, -math.exp(-20)),
        ("openrlhf-0.11.2/group_norm", 30.0, -1.0, math.exp(20)),
        ("openrlhf-0.11.2/gspo", 30.0, -1.0, math.exp(30)),
        ("trl-0.17.0/bnpo", 30.0, -1.0, math.exp(30)),
    ],
)
def test_log_ratio_is_clamped(name, log_ratio, advantage, expected):
    """A token far from the proximal policy has the clamped log-ratio, if the dialect clamps it."""
    options = LossConfig(**{**DIALECTS[name].settings, "kl_coefficient": 0.0})
    loss, _ = far_token_loss(options, current=log_ratio, advantage=advantage)
    assert math.isclose(loss, expected, rel_tol=1e-12)


@pytest.mark.parametrize(
    ("name", "difference", "expected"),
    [
        ("trl-0.17.0/bnpo", 50.0, 0.04 * (math.exp(50) - 51)),
        ("open-instruct-0.3.0/dapo", 50.0, 0.05 * (math.exp(40) - 41)),
        ("open-instruct-0.3.0/dapo", -50.0, 0.05 * (math.exp(-40) + 39)),
        ("ms-swift-4.6.0/grpo", -50.0, 0.04 * 10),
        ("easyr1-0.3.2/grpo", 50.0, 0.01 * 10),
        ("nemo-rl-0.7.0/grpo", -50.0, 0.01 * 10),
    ],
)
def test_kl_is_clamped(name, difference, expected):
    """A token far from the reference, without an advantage, has the clamped KL, if the dialect clamps it."""
    loss, _ = far_token_loss(DIALECTS[name].loss, reference=difference)
    assert math.isclose(loss, expected, rel_tol=1e-12)
