"""The three rollout modes (colocate, async, server), and their state between two steps."""
