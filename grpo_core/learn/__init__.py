"""From samples to an updated policy: advantages, batch, loss, log-probs, update."""
