"""Drivers of vLLM's unmodified schedulers."""
