"""The reward curve in the terminal."""

import pytest

from grpo_core.show.curves import binned, sparkline, terminal_curve


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


def test_a_sparkline_goes_from_the_lowest_to_the_highest():
    """Of as many characters as there is room for; level where nothing changes."""
    assert sparkline([5.0, 5.0], 10) == "▁▁"
    assert sparkline(range(1000), 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([], 8) == ""
