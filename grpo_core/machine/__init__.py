"""Devices, processes and checkpoints of a run."""
