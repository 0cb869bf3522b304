"""Generate metric lines of a healthy run; tests change some values to inject a fault."""

import json
import random


def healthy_metrics(step, generator=None):
    """Return the metrics of one healthy step, with TRL's metric names."""
    generator = generator or random.Random(step)
    return {
        "step": step,
        "loss": generator.gauss(0, 0.02),
        "grad_norm": generator.uniform(0.2, 1.5),
        "reward": 0.3 + 0.004 * step + generator.gauss(0, 0.05),
        "reward_std": generator.uniform(0.1, 0.5),
        "frac_reward_zero_std": generator.choice((0.0, 0.25, 0.5)),
        "completions/clipped_ratio": generator.choice((0.0, 0.1, 0.3)),
        "entropy": 1.2 + generator.gauss(0, 0.1),
        "kl": abs(generator.gauss(0, 1e-4)) * step,
        "learning_rate": 1e-6,
        "sampling/sampling_logp_difference/mean": abs(generator.gauss(0.006, 0.001)),
    }


def append_lines(path, entries, mode="a"):
    """Append the entries to a JSONL file; mode "w" replaces it."""
    with path.open(mode) as file:
        file.writelines(json.dumps(entry) + "\n" for entry in entries)
