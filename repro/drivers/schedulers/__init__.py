"""Drivers of vLLM's real schedulers."""
