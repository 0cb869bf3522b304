"""vLLM in this process, from V0 of 0.8.5 on."""
