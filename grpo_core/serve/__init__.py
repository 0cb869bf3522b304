"""The reference rollout server."""
