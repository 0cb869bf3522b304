"""Names, signatures and options are extracted from one source file.

An entry is the text that the index stores for a name, for example `def (a, b=)`.
"""

from __future__ import annotations

import textwrap

import pytest

from diagnostics.api_index.extract import extract


def extract_module(text, module="pkg.mod", **rest):
    """Extract a module from its source text."""
    return extract(textwrap.dedent(text), module, **rest)


@pytest.mark.parametrize(
    ("text", "name", "entry"),
    [
        ("def f(a, b=1, /, c=2, *, d, e=3, **kw): ...", "f", "def (a, b=, /, c=, *, d, e=, **kw)"),
        ("class A(B, c.D[int]): ...", "A", "class B, c.D"),
        ("class A:\n    x: Literal['a', 'b'] = 'a'", "A.x", "field Literal['a', 'b'] = 'a'"),
        ("class A:\n    x: int = field(default=3, metadata={'help': 'h'})", "A.x", "field int = 3"),
        ("class A:\n    x: int = Field(default=3, alias='y')", "A.x", "field int alias 'y' = 3"),
        ("class Color(Enum):\n    RED = 'red'", "Color.RED", "value 'red'"),
        ("Mode = Literal['a', 'b']", "Mode", "value Literal['a', 'b']"),
        ("from .x import y as z", "z", "import pkg.x:y"),
        ("if flag():\n    def f(): ...", "f", "?def ()"),
        ("if flag():\n    x = 1\nelse:\n    x = 2", "x", "value 2"),
        ("try:\n    from fast import P\nexcept ImportError:\n    P = None", "P", "import fast:P"),
        ("p.add_argument('--max-n', type=int, choices=[1, 2], default=1)", "--max-n", "option int choices [1, 2] = 1"),
        ("p.add_argument('-q', '--quiet', action='store_true')", "--quiet", "option flag"),
        ("import os\nx = os.environ.get('VLLM_X', '0')", "env:VLLM_X", "env"),
        ("import os\nx = os.environ['VLLM_X']", "env:VLLM_X", "env"),
        ("from os import getenv\nx = getenv('VLLM_X')", "env:VLLM_X", "env"),
        ("@router.get('/health')\ndef h(): ...", "route:/health", "route"),
        ("class A:\n    def f(self):\n        self.engine = Engine.make()", "A.engine", "attr Engine"),
        ("class A:\n    def f(self, e: Engine):\n        self.engine = e", "A.engine", "attr Engine"),
        ("class A:\n    @property\n    def x(self) -> Engine: ...", "A.x", "property -> Engine"),
        ("def __getattr__(name):\n    if name == 'a':\n        return 1", "__getattr__", "dynamic a"),
        ("def __getattr__(name):\n    return find(name)", "__getattr__", "dynamic *"),
        ("globals()['x'] = 1", "__getattr__", "dynamic *"),
        ("class A:\n    def f(self, **kw):\n        setattr(self, next(iter(kw)), 1)", "A.__getattr__", "attr"),
        ("@deprecate_kwarg('old', new_name='a')\ndef f(a=1): ...", "f", "def (a=, old=)"),
    ],
)  # fmt: skip
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
