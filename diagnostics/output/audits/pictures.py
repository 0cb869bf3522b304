"""What a page draws of scored ids: how far they are off, by position, and from each checkpoint. Plain SVG."""

from __future__ import annotations

import math
from html import escape
from typing import Any

_WIDTH, _HEIGHT, _LEFT = 640, 150, 250
# Of the logarithm of a difference over the floor: from a hundredth of it to a thousand times.
_LOW, _HIGH, _BINS = -2.0, 3.0, 50


def drawn(pictures: dict[str, Any]) -> str:
    """All that there is to draw; nothing of an audit that scored nothing."""
    if not pictures.get("difference"):
        return ""
    floor = pictures["floor"]
    parts = [
        _figure("Differences of scored ids, in floors (the line: the floor)",
                _histogram([abs(one) / floor for one in pictures["difference"]])),
        _figure("Mean difference by position, in floors", _bars([one / floor for one in pictures.get("position", ())])),
        _figure("Mean difference from each checkpoint, in floors",
                _versions({name: one / floor for name, one in pictures.get("versions", {}).items()})),
    ]  # fmt: skip
    return "\n".join(part for part in parts if part)


def _figure(title: str, inside: str) -> str:
    named = inside.replace("<svg ", f"<svg aria-label='{escape(title)}' ", 1)
    return f"<figure><figcaption class='dim'>{escape(title)}</figcaption>{named}</figure>" if inside else ""


def _svg(height: int, inside: str) -> str:
    return f"<svg viewBox='0 0 {_WIDTH} {height}' role='img' width='100%'>{inside}</svg>"


def _histogram(times: list[float]) -> str:
    counts = [0] * _BINS
    for one in times:
        place = (math.log10(max(one, 1e-9)) - _LOW) / (_HIGH - _LOW) * _BINS
        counts[min(_BINS - 1, max(0, int(place)))] += 1
    wide, most = _WIDTH / _BINS, max(counts)
    made = [
        f"<rect x='{place * wide:.1f}' y='{_HEIGHT - 20 - 120 * count / most:.1f}' width='{wide - 1:.1f}'"
        f" height='{120 * count / most:.1f}'/>"
        for place, count in enumerate(counts)
        if count
    ]
    at = (0 - _LOW) / (_HIGH - _LOW) * _WIDTH
    made.append(f"<line x1='{at:.0f}' x2='{at:.0f}' y1='0' y2='{_HEIGHT - 20}'/>")
    for power, word in ((-2, "0.01"), (-1, "0.1"), (0, "1"), (1, "10"), (2, "100")):
        made.append(
            f"<text x='{(power - _LOW) / (_HIGH - _LOW) * _WIDTH + 3:.0f}' y='{_HEIGHT - 5}'>{word}</text>"
        )
    return _svg(_HEIGHT, "".join(made))


def _bars(means: list[float]) -> str:
    if len(means) < 8:
        return ""
    wide, most = _WIDTH / len(means), max(*means, 2.0)
    made = [
        f"<rect x='{place * wide:.1f}' y='{_HEIGHT - 20 - 120 * one / most:.1f}' width='{max(0.5, wide - 0.5):.1f}'"
        f" height='{120 * one / most:.1f}'/>"
        for place, one in enumerate(means)
    ]
    level = _HEIGHT - 20 - 120 / most
    made.append(f"<line x1='0' x2='{_WIDTH}' y1='{level:.0f}' y2='{level:.0f}'/>")
    made += [
        f"<text x='3' y='{_HEIGHT - 5}'>1</text>",
        f"<text x='{_WIDTH - 40}' y='{_HEIGHT - 5}'>{len(means)}</text>",
    ]
    return _svg(_HEIGHT, "".join(made))


def _versions(off: dict[str, float]) -> str:
    if len(off) < 2:
        return ""
    scale = (_WIDTH - _LEFT - 90) / math.log10(max(10.0, *(10 * one for one in off.values())))
    made = []
    for row, (name, one) in enumerate(sorted(off.items(), key=lambda item: item[1])):
        wide = scale * math.log10(max(10 * one, 1.2))
        made.append(
            f"<text x='0' y='{26 * row + 18}'>{escape(name[:22])}</text>"
            f"<rect x='{_LEFT}' y='{26 * row + 5}' width='{wide:.1f}' height='14'/>"
            f"<text x='{_LEFT + wide + 6:.0f}' y='{26 * row + 18}'>{one:.3g}</text>"
        )
    return _svg(26 * len(off) + 4, "".join(made))
