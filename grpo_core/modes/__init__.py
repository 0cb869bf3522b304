"""The three rollout modes, and their state between two steps."""
