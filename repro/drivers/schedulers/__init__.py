"""Drivers of vLLM's unmodified schedulers V0 and V1, and simulated callers of the V0 engine."""
