"""The strict reading of TOML."""

import doctest

from diagnostics import toml_source


def test_examples_in_docstrings_hold():
    """Lines of keys, in tables and in arrays of tables."""
    found = doctest.testmod(toml_source)
    assert (found.attempted > 0, found.failed) == (True, 0)
