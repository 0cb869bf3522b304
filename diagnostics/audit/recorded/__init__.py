"""Audit the files that a run wrote: recorded samples, metrics and checkpoints."""
