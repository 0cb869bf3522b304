"""The small commands: `versions`, `explain`, `catalog`."""
