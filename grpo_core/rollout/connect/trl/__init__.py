"""TRL's rollout server: its client."""
