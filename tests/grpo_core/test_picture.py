"""The reward curve in the terminal and as SVG."""

import xml.etree.ElementTree as ET

import pytest

from grpo_core.show.picture import COLOURS, binned, sparkline, svg_chart, svg_curve, terminal_curve


def test_bins_are_means_of_neighbours():
    """However many values there are for however many columns."""
    assert binned([1, 2, 3, 4, 5, 6], 3) == [1.5, 3.5, 5.5]
    assert binned([1, 2], 80) == [1, 2]
    assert binned([], 80) == []
    assert sum(binned(range(1000), 7)) / 7 == pytest.approx(499.5, abs=1)


@pytest.mark.parametrize("width", [24, 80, 200])
@pytest.mark.parametrize("count", [1, 5, 500])
def test_the_curve_fits_the_terminal(width, count):
    """No line is wider, and a rising curve ends high."""
    lines = terminal_curve([i / count for i in range(count)], width=width).splitlines()
    assert max(map(len, lines)) <= width
    assert len(lines) == 9
    assert lines[-1].endswith(f"step {count}") == (count != 5)


def test_a_full_column_reaches_the_top_and_an_empty_one_stays_down():
    """1.0 fills all eight lines, 0.0 none."""
    lines = terminal_curve([0.0, 1.0], width=40).splitlines()
    assert [line[7:9] for line in lines[:8]] == [" █"] * 8


def test_colour_is_asked_for():
    """No escape codes otherwise."""
    assert "\033" not in terminal_curve([0.5], width=40)
    assert "\033[36m" in terminal_curve([0.5], width=40, colour=True)


@pytest.mark.parametrize("values", [[], [0.5], [0.1, 0.9, -2.0, 3.0]])
def test_the_svg_is_well_formed(values):
    """With two lines of one point a step, all inside the picture, and the title escaped."""
    root = ET.fromstring(svg_curve(values, title="a < b & c"))
    lines = root.findall("{http://www.w3.org/2000/svg}polyline")
    assert [len(line.get("points").split()) for line in lines] == [len(values)] * 2
    for line in lines:
        for point in line.get("points").split():
            x, y = map(float, point.split(","))
            assert 0 <= x <= 720
            assert 0 <= y <= 360
    assert "a < b & c" in [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]


def test_a_sparkline_goes_from_the_lowest_to_the_highest():
    """Of as many characters as there is room for; level where nothing changes."""
    assert sparkline([5.0, 5.0], 10) == "▁▁"
    assert sparkline(range(1000), 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([], 8) == ""


def test_a_chart_of_several_lines_has_them_on_one_scale():
    """Each in its own colour, none smoothed, the band behind them; the scale holds zero and has round numbers."""
    first, second = [(1, 3.0), (2, 4.0)], [(2, 8.0)]
    root = ET.fromstring(svg_chart([first, second], band=[(1, 2.0), (2, 5.0)]))
    name = "{http://www.w3.org/2000/svg}"
    lines = [(line.get("stroke"), line.get("points")) for line in root.findall(f"{name}polyline")]
    assert [stroke for stroke, _ in lines] == [None, *COLOURS[:2]]
    heights = [float(point.split(",")[1]) for _, points in lines for point in points.split()]
    low, high = 180 - 26, 12
    values = (2, 5, 3, 4, 8)
    assert heights == pytest.approx([low - (low - high) * value / 8 for value in values], abs=0.1)
    assert [text.text for text in root.iter(f"{name}text")] == ["0", "2", "4", "6", "8", "step 1", "step 2"]


@pytest.mark.parametrize("points", [[(1, 0.0)], [(5, 1e-9), (6, -1e-9)], [(1, 1e12), (9, 3e12)]])
def test_a_chart_of_any_scale(points):
    """One point, nothing but zeros, tiny and huge numbers: a few ticks, everything inside."""
    root = ET.fromstring(svg_chart([points]))
    name = "{http://www.w3.org/2000/svg}"
    assert 2 <= len(root.findall(f"{name}path")) <= 6
    for line in root.findall(f"{name}polyline"):
        pairs = [tuple(map(float, point.split(","))) for point in line.get("points").split()]
        assert all(52 <= x <= 406 and 12 <= y <= 154 for x, y in pairs)
