"""The reward curve: in the terminal, and as an SVG file."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

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


def svg_curve(values: Sequence[float], *, title: str) -> str:
    """The raw values as a thin line, their running mean as a thick one."""
    width, height, left, top, right, bottom = 720, 360, 56, 44, 16, 40
    low, high = min(0.0, *values, 0.0), max(1.0, *values, 1.0)
    inner_width, inner_height = width - left - right, height - top - bottom

    def point(step: int, value: float) -> str:
        x = left + inner_width * step / max(len(values) - 1, 1)
        return f"{x:.1f},{top + inner_height * (high - value) / (high - low):.1f}"

    window = max(len(values) // 20, 1)
    means = [sum(values[max(0, i - window + 1) : i + 1]) / min(i + 1, window) for i in range(len(values))]
    raw = " ".join(point(i, value) for i, value in enumerate(values))
    smooth = " ".join(point(i, value) for i, value in enumerate(means))
    grid = []
    for part in range(5):
        value = low + (high - low) * part / 4
        y = float(point(0, value).split(",")[1])
        grid.append(f'<line x1="{left}" x2="{width - right}" y1="{y}" y2="{y}" stroke="#ddd"/>')
        grid.append(f'<text x="{left - 8}" y="{y + 4}" text-anchor="end">{value:.2f}</text>')
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            'font-family="sans-serif" font-size="12" fill="#333">',
            f'<rect width="{width}" height="{height}" fill="#fff"/>',
            f'<text x="{left}" y="24" font-size="15">{escape(title)}</text>',
            *grid,
            f'<text x="{left}" y="{height - 14}">step 1</text>',
            f'<text x="{width - right}" y="{height - 14}" text-anchor="end">step {len(values)}</text>',
            f'<polyline points="{raw}" fill="none" stroke="#9cc9e8" stroke-width="1"/>',
            f'<polyline points="{smooth}" fill="none" stroke="#0b6fa4" stroke-width="2.5"/>',
            "</svg>",
            "",
        ]
    )
