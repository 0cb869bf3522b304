"""Engines in the trainer's own process."""
