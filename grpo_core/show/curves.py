"""Curves of block characters, for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_EIGHTHS = " ▁▂▃▄▅▆▇█"


def binned(values: Sequence[float], count: int) -> list[float]:
    """At most `count` means of neighbouring values.

    >>> binned([0, 1, 2, 3], 2)
    [0.5, 2.5]
    """
    count = min(count, len(values))
    edges = [round(i * len(values) / count) for i in range(count + 1)] if count else []
    return [sum(values[a:b]) / (b - a) for a, b in zip(edges, edges[1:])]  # noqa: B905, RUF007 - on 3.10


def terminal_curve(values: Sequence[float], *, width: int, height: int = 8, colour: bool = False) -> str:
    """Columns of block characters, with the scale at the left; empty for no values.

    Args:
        values: One a step.
        width: Of the terminal, in columns.
        height: In lines.
        colour: Draw in colour.
    """
    columns = binned(values, max(width - 8, 16))
    if not columns:
        return ""
    low, high = min(0.0, *columns), max(1.0, *columns)
    eighths = [round((value - low) / (high - low) * height * 8) for value in columns]
    paint, plain = ("\033[36m", "\033[0m") if colour else ("", "")
    lines = []
    for row in range(height, 0, -1):
        label = {height: f"{high:5.2f}", 1: f"{low:5.2f}"}.get(row, " " * 5)
        blocks = "".join(_EIGHTHS[min(max(level - (row - 1) * 8, 0), 8)] for level in eighths)
        lines.append(f"{label} ┤{paint}{blocks}{plain}")
    steps = f"step {len(values)}".rjust(max(len(columns) - 6, 0)) if len(columns) > 6 else ""
    return "\n".join([*lines, f"      └step 1{steps}"])


def sparkline(values: Sequence[float], width: int) -> str:
    """One line of block characters, from the lowest value to the highest.

    >>> sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8)
    '▁▂▃▄▅▆▇█'
    """
    columns = binned(values, width)
    low, high = min(columns, default=0.0), max(columns, default=0.0)
    return "".join(_EIGHTHS[1 + round((value - low) / ((high - low) or 1.0) * 7)] for value in columns)
