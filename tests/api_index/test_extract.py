"""Names, signatures and options are extracted from the source of one Python file.

An entry is the text that the index stores for a name, for example `def (a, b=)`.
"""

from __future__ import annotations

import textwrap

from diagnostics.api_index.extract import extract
from tests.case_files import each_case, read_cases

CASES = read_cases(__file__, "extracted_names.yaml")


def extract_module(text, module="pkg.mod", **rest):
    """Extract a module from its source text."""
    return extract(textwrap.dedent(text), module, **rest)


@each_case(CASES["names"])
def test_each_kind_of_name_has_its_entry(text, name, entry):
    """Each kind of definition gives its entry."""
    assert extract_module(text)[name] == entry


def test_names_for_type_checkers_exist_only_in_lazy_modules():
    """A name under TYPE_CHECKING exists in a `_LazyModule` of transformers, and not in a plain module."""
    plain = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .a import X\n"
    lazy = plain + "else:\n    import sys\n    sys.modules[__name__] = _LazyModule(__name__)\n"
    assert "X" not in extract_module(plain)
    assert extract_module(lazy, is_package=True)["X"] == "import pkg.mod.a:X"


def test_import_structure_tables_are_read():
    """Names in the tables that transformers, TRL and ms-swift pass to `_LazyModule` are read."""
    text = """
        _import_structure = {"a": ["X"]}
        _import_structure["b"] = ["Y"]
        _import_structure["a"].extend(["Z"])
        sys.modules[__name__] = _LazyModule(__name__, _import_structure)
    """
    result = extract_module(text, "pkg", is_package=True)
    assert [result[name] for name in "XYZ"] == ["import pkg.a:X", "import pkg.b:Y", "import pkg.a:Z"]


def test_parser_options_added_in_a_loop_are_read():
    """Options added in a loop over constants are read, as in OpenRLHF; an unknown name is no option."""
    text = """
        for one in ("a", "b"):
            p.add_argument(f"--{one}.lr")
            p.add_argument(f"--{other}.lr")
    """
    assert [name for name in extract_module(text) if name.startswith("--")] == ["--a.lr", "--b.lr"]


def test_names_that_a_helper_attaches_are_read_from_its_table():
    text = """
        TABLE = {"download": ["fetch"]}
        __getattr__, __dir__, __all__ = attach(__name__, TABLE)
    """
    facts = extract(textwrap.dedent(text), "hub", is_package=True)
    assert facts["fetch"] == "import hub.download:fetch"
    assert "__getattr__" not in facts


def test_names_that_a_loop_creates_stay_unknown_beside_a_getter():
    """As in torch, whose `__getattr__` has a table of deprecated names."""
    text = """
        for name in dir(_C):
            globals()[name] = getattr(_C, name)
        def __getattr__(name):
            return {"old": 1}[name]
    """
    assert extract_module(text)["__getattr__"] == "dynamic old *"
