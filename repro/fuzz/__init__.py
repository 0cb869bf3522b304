"""Fuzz vLLM's unmodified V1 scheduler: generate and shrink failing sequences of calls with Hypothesis; replay them."""
