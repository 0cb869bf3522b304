"""Fuzz vLLM's unmodified V1 scheduler: Hypothesis generates and shrinks sequences of calls, which can be replayed."""
