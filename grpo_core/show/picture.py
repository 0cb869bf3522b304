"""Curves: in the terminal, and as SVG."""

from __future__ import annotations

import math
from itertools import cycle
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Sequence

    Points = Sequence[tuple[float, float]]

COLOURS = ("#2f7fc1", "#d9722b", "#2e9e6b", "#9a63c7", "#c2434f", "#8a8f98")
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


def svg_curve(values: Sequence[float], *, title: str) -> str:
    """A value a step, on a scale that holds 0 to 1, as a file of its own."""
    return svg_chart([list(enumerate(values, 1))], title=title, size=(720, 360), within=(0.0, 1.0)) + "\n"


def svg_chart(
    lines: Sequence[Points],
    band: Points = (),
    title: str = "",
    size: tuple[int, int] = (420, 180),
    within: tuple[float, ...] = (0.0,),
) -> str:
    """A chart over steps. A single line is thin, with the means of sixty neighbourhoods as a thick one.

    Args:
        lines: Points (step, value) of each, in the order of `COLOURS`.
        band: Outline of an area behind the first line.
        title: Written above, on a white ground; empty: the ground shows through, for use within a page.
        size: Width and height.
        within: Values that the scale must hold.
    """
    left, right, top, bottom = 52, size[0] - 14, 44 if title else 12, size[1] - 26
    points = [point for curve in (*lines, band) for point in curve]
    steps, values = [x for x, _ in points] or [1.0], [*within, *(y for _, y in points)]
    first, low = min(steps), min(values)
    across, up = (max(steps) - first) or 1.0, (max(values) - low) or 1.0

    def place(step: float, value: float) -> str:
        x = left + (right - left) * (step - first) / across
        return f"{x:.1f},{bottom - (bottom - top) * (value - low) / up:.1f}"

    def drawn(curve: Points, style: str) -> str:
        return f'<polyline points="{" ".join(place(*point) for point in curve)}" {style}/>'

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size[0]} {size[1]}" font-family="sans-serif" '
        'font-size="12" fill="currentColor" stroke-linejoin="round">'
    ]
    if title:
        parts.append(
            f'<rect width="100%" height="100%" fill="#fff"/><text x="{left}" y="24">{escape(title)}</text>'
        )
    tick = float(f"{up / 4:.0e}")  # round numbers
    for value in [tick * k for k in range(math.ceil(low / tick), math.floor((low + up) / tick) + 1)]:
        x, y = place(first, value).split(",")
        parts.append(
            f'<path d="M{x} {y}H{right}" stroke="#8885"/><text x="4" y="{y}" dy="4">{value:.4g}</text>'
        )
    parts.append(f'<text x="{left}" y="{size[1] - 8}">step {first:g}</text>')
    parts.append(f'<text x="{right}" y="{size[1] - 8}" text-anchor="end">step {max(steps):g}</text>')
    parts.append(drawn(band, f'fill="{COLOURS[0]}" opacity="0.2"') if band else "")
    for line, colour in zip(lines, cycle(COLOURS)):
        single, style = len(lines) == 1, f'fill="none" stroke="{colour}" stroke-width'
        parts.append(drawn(line, f'{style}="1" opacity="0.5"' if single else f'{style}="1.5"'))
        parts.append(drawn(smooth(line), f'{style}="2.5"') if single else "")
    return "\n".join([*parts, "</svg>"])


def smooth(points: Points, count: int = 60) -> Points:
    """The means of `count` neighbourhoods.

    >>> smooth([(1, 0.0), (2, 4.0), (3, 5.0), (4, 5.0)], 2)
    [(1.5, 2.0), (3.5, 5.0)]
    """
    return list(zip(*(binned([point[axis] for point in points], count) for axis in (0, 1))))  # noqa: B905 - on 3.10
