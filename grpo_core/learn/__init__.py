"""Learning: advantages, batches, log-probs, losses and updates."""
