"""Evaluations that are no tests: benches, corpora and judges."""
