"""Triage: from what a run left in its logs to the known issue behind it, or to the best places to look."""
