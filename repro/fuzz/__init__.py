"""Fuzz vLLM's unmodified schedulers: Hypothesis generates and shrinks sequences of calls, which can be replayed."""
