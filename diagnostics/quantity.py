"""Quantities on a command line, refused in words where they are none."""

from __future__ import annotations

import argparse

# Above it Python's own waits overflow.
_MOST_S = 1e6


def seconds(text: str) -> float:
    """A time above 0, of at most eleven days.

    >>> seconds("1.5")
    1.5
    """
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value <= _MOST_S:
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected a number of seconds above 0, at most {_MOST_S:.0f}"
        )
    return value
