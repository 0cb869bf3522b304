"""The strict reading of TOML."""

import doctest

from diagnostics import toml_source


def test_examples_in_docstrings_hold():
    """Lines of keys, in tables and in arrays of tables."""
    result = doctest.testmod(toml_source)
    assert (result.attempted > 0, result.failed) == (True, 0)
