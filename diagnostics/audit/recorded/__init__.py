"""Checks of recorded run artifacts: samples, metrics, checkpoints."""
