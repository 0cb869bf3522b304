"""The compatibility matrix: cells, layers, the store of verdicts, and what is published from it."""
