"""Audit the files that a run wrote: samples, metrics and checkpoints."""
