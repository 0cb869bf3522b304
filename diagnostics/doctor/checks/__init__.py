"""Pure functions from facts to findings."""
