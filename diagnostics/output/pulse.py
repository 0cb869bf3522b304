"""Old name of `diagnostics.output.progress`; to be removed."""

from __future__ import annotations

from diagnostics.output import progress

QUIET = progress.QUIET
Pulse = progress.ProgressLine
beating = progress.running
doing = progress.update


def reading(name: str) -> None:
    """Report that a file is being read."""
    progress.update(f"reading {name}")


def asking(what: str) -> None:
    """Report that something is being queried."""
    progress.update(f"querying {what}")
