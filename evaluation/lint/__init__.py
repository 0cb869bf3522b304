"""Evaluation of lint; see README.md."""
