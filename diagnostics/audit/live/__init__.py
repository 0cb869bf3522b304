"""Audit a live rollout server against the checkpoint that it should hold."""
