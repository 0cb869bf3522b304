"""Implement the small commands `versions`, `explain`, `catalog` and `completion`."""
