"""Audit the files that a run wrote: samples, metrics and checkpoints. `run_audit.audit_run` runs all checks."""
