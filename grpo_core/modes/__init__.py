"""The three rollout modes, one training loop each, to be read side by side."""
