"""Collect facts about an environment and its machine, with the standard library of Python 3.10 or newer only."""
