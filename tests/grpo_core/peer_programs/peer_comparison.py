"""Provide random inputs, grpo_core's loss and advantages, and the comparison of results for the peer programs.

Each peer program compares grpo_core with another trainer (a peer) in an environment that has it, and prints JSON: for
each case the largest difference of loss and gradient, or of advantages. The programs use float64, TRL's float32 too.
"""

import json
import os
from importlib.metadata import version
from types import SimpleNamespace

import torch

from grpo_core.config import LossConfig
from grpo_core.learn.advantages import group_advantages
from grpo_core.learn.dialects import DIALECTS
from grpo_core.learn.losses import Streams, policy_loss, token_weights

LENGTHS = (9, 4, 1, 7, 2, 9)
LONGEST = 12
SEEDS = range(3)
# Most programs split a step into these micro-batches, so that a loss normalised per micro-batch would differ.
PARTS = (slice(0, 2), slice(2, 6))


def random_step(seed, lengths=LENGTHS, spread=0.7):
    """Return a mask, four random tensors of log-probs, and random advantages and entropies of one step.

    `spread` is the deviation of the log-ratio current / proximal; 0.7 is wide enough for the dual clip, which needs
    ratios above 3.
    """
    generator = torch.Generator().manual_seed(seed)
    shape = (len(lengths), max(lengths))
    noise = lambda scale: torch.randn(shape, generator=generator, dtype=torch.float64) * scale  # noqa: E731
    current = noise(0.5) - 1.5
    streams = {
        "current": current,
        "proximal": current + noise(spread),
        "reference": current + noise(0.4),
        "behaviour": current + noise(0.3),
        "entropy": noise(0.3).abs() + 0.5,
        "advantages": torch.randn(shape[0], generator=generator, dtype=torch.float64),
    }
    streams = {name: values.to(torch.get_default_dtype()) for name, values in streams.items()}
    mask = torch.arange(shape[1])[None] < torch.tensor(lengths)[:, None]
    return SimpleNamespace(mask=mask, **streams)


class Accelerator:
    """Stand-in for Accelerate's class with one process, which returns all values unchanged."""

    num_processes, sync_gradients, device = 1, True, torch.device("cpu")

    def gather(self, values, *_, **__):
        """Return the values."""
        return values

    gather_for_metrics = pad_across_processes = reduce = gather


def per_token_advantages(data):
    """Return the advantages repeated for each token, which is the peers' form."""
    return data.advantages[:, None] * data.mask


def our_loss(data, settings, length_epsilon=0.0, parts=PARTS):
    """Return grpo_core's loss and gradient of a step, summed over micro-batches.

    Args:
        data: Tensors of the step, from `random_step`.
        settings: Fields of LossConfig.
        length_epsilon: Epsilon that the peer adds to each length in sequence aggregation.
        parts: Rows of each micro-batch.
    """
    options = LossConfig(**settings)
    current = data.current.clone().requires_grad_()
    weights = token_weights(data.mask, options.aggregation, LONGEST)
    if options.aggregation == "sequence":
        lengths = data.mask.sum(1, keepdim=True)
        weights = weights * (lengths / (lengths + length_epsilon))
    reference = data.reference if options.kl_coefficient else None
    total = torch.zeros(())
    for rows in parts:
        rows_reference = None if reference is None else reference[rows]
        streams = Streams(data.behaviour[rows], data.proximal[rows], rows_reference)
        part = policy_loss(
            current[rows], streams, data.advantages[rows], data.mask[rows], weights[rows], options
        )
        part.value.backward()
        total = total + part.value.detach()
    return total, current.grad


def our_advantages(groups, **settings):
    """Return grpo_core's advantages of groups of rewards."""
    return torch.tensor(group_advantages(groups, **settings)).flatten()


def compare_dialects(release, their_loss, their_advantages, length_epsilon=0.0):
    """Compare the dialects of one release of a peer with the peer's own loss and advantages."""
    worst = LargestDifferences()
    for record in (item for item in DIALECTS.values() if item.release == release):
        options = {
            name.removeprefix("advantage_"): value
            for name, value in record.settings.items()
            if name.startswith("advantage_")
        }
        for seed in SEEDS:
            data, groups = random_step(seed), reward_groups(seed)
            our = our_loss(data, record.settings, length_epsilon)
            worst.add(f"{record.form} loss", *zip(our, their_loss(data, record.form), strict=True))
            worst.add(
                f"{record.form} advantages", (our_advantages(groups, **options), their_advantages(groups))
            )
    return worst


def relative_difference(one, other):
    """Return the largest difference, relative to the largest value of `other`."""
    return float((one - other).abs().max() / other.abs().max().clamp(min=1e-12))


def reward_groups(seed):
    """Return four groups of three rewards: two of any values, one of zeros and ones, one of equal values."""
    generator = torch.Generator().manual_seed(seed)
    random = torch.randn(2, 3, generator=generator, dtype=torch.float64)
    return [*random.tolist(), [0.0, 1.0, 1.0], [1.0, 1.0, 1.0]]


class LargestDifferences(dict):
    """Dictionary from case to the largest difference that was added for it."""

    def add(self, name, *pairs):
        """Record the relative difference of each pair (actual, expected) for a case."""
        for actual, expected in pairs:
            self[name] = max(self.get(name, 0.0), relative_difference(actual, expected))


def print_results(peer, losses, advantages, recorded):
    """Print the peer's version and the results of its three comparisons."""
    report(
        lambda: {
            "version": version(peer),
            "losses": losses(),
            "advantages": advantages(),
            "records": recorded(),
        }
    )


def report(compare):
    """Print what `compare()` returns as JSON, without anything that the peer prints."""
    stream = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    json.dump(compare(), stream)
    stream.close()
