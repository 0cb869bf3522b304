"""Implement the commands `versions`, `explain` and `catalog`."""
