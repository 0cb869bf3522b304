"""Audit a live rollout server: compare it with the checkpoint whose weights it should hold."""
