"""The examples in the docstrings of diagnostics and evaluation give their documented results."""

import doctest

import pytest

from tests.cells import ROOT

FILES = [*(ROOT / "diagnostics").rglob("*.py"), *(ROOT / "evaluation").rglob("*.py")]
PATHS = [path for path in FILES if ">>> " in path.read_text()]
MODULES = [".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in PATHS]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name):
    module = pytest.importorskip(name, exc_type=ImportError)  # one needs torch, which not all sessions have
    result = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert (result.failed, result.attempted > 0) == (0, True)
