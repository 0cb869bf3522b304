"""TRL's rollout server: as its client, and with its endpoints."""
