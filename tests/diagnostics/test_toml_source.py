"""The docstring examples of `toml_source`, which finds the lines of TOML keys, are correct."""

import doctest

from diagnostics import toml_source


def test_examples_in_docstrings_hold():
    result = doctest.testmod(toml_source)
    assert (result.attempted > 0, result.failed) == (True, 0)
