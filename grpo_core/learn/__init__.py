"""The learning part of a step: advantages, batches, log-probs, losses and updates."""
