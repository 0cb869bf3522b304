"""Detect silent faults in a rollout server or in a run's recorded data."""
