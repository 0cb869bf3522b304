"""Source and YAML files that are built to take endless time or memory are read in seconds, or count as unreadable.

The files nest, repeat, import each other, or are not valid.
"""

import functools
import time

import pytest

from diagnostics.api_index import build, source
from diagnostics.api_index.extract import extract, extract_outline, extract_yaml
from diagnostics.api_index.packages import IndexedPackage
from tests.api_index.conftest import api_of_files

PACKAGE = IndexedPackage("vllm", ("vllm",), uses=("trl",), guarding=".*")


def indented(words, depth, body):
    """Return `depth` nested blocks, each opened by the words (one line each), around a body line."""
    blocks = "".join(f"{' ' * level}{word}\n" for level in range(depth) for word in words)
    return blocks + f"{' ' * depth}{body}\n"


# Each took minutes or gigabytes at a size of a megabyte.
SHAPES = {
    "overloads": "class A:\n" + "".join(f"    def f(self, a{i}): ...\n" for i in range(6000)),
    "classes of an attribute": "class A:\n  def f(self):\n" + "".join(f"    self.x = C{i}()\n" for i in range(10_000)),
    "annotation of an attribute": f"class A:\n  def f(self, e: T[{'X,' * 20_000}]):\n" + "    self.a = e\n" * 10_000,
    "many targets": "x = " * 10_000 + repr("a" * 200_000),
    "names of nested classes": indented([f"class {'A' * 150}:"], 90, ";".join(f"x{i}=1" for i in range(20_000))),
    "long name": f"from {'a' * 100_000} import " + ", ".join(f"a{i}" for i in range(20_000)),
    "product of loops": f"for a in (1, 2):\n  p.add_argument(f'--{'{a}' * 40}')\n",
    "number that Python refuses to print": "x = 0x" + "f" * 100_000,
    "early returns": "import trl\ndef f():\n" + "".join(f"  if s{i}: return\n  trl.a{i}()\n" for i in range(4000)),
    "conditions of conditions": "import trl\na0 = x\n" + "".join(f"a{i + 1} = a{i} and x{i}\n" for i in range(7000)),
    "keys of calls": "from trl import f\nd={}\n" + "".join(f"d['{i}'] = 1\n" for i in range(3000)) + "f(**d)\n" * 4000,
    "handlers in handlers": "import trl\n" + indented(["try: x", "except OSError:"], 45, "f(x);" * 7000),
    "attributes": "import trl\n" + f"trl{'.b' * 100}\nf(){'.b' * 100}\n" * 200,
    "attributes of attributes": "def f(self):\n" + " self.a = self.a + self.a\n" * 9000 + " assert self.a\n" * 9000,
    "variables": "def f():\n" + "".join(f" a{i} = a{i + 1} + a{i + 1}\n" for i in range(9000)) + " assert a0",
    "conditions": "def f():\n" + "".join(f" if a{i}: return\n assert b, 'long message {i}'\n" for i in range(9000)),
    "nested": "x = " + "[" * 190 + "]" * 190,
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_source_is_read_in_seconds(shape, monkeypatch):
    """Names, uses and guards are read in less than 10 s of CPU time, and have less than 60 million characters."""
    parse_once = functools.cache(source.parse_source)
    for reader in ("extract", "uses", "guards"):
        monkeypatch.setattr(f"diagnostics.api_index.{reader}.parse_source", parse_once)
    start = time.process_time()
    facts = build.extract_file(PACKAGE, "vllm/a.py", SHAPES[shape])
    uses = build.extract_uses(PACKAGE, "vllm/a.py", SHAPES[shape])
    guards = build.extract_guard_keys(PACKAGE, "vllm/a.py", SHAPES[shape])
    assert time.process_time() - start < 10
    assert sum(map(len, (*facts, *facts.values(), *uses, *guards))) < 60_000_000


@pytest.mark.parametrize("text", ["__all__ = [\n" * 30_000, "class A(" + "b, " * 100_000])
def test_outline_is_extracted_in_5_s(text):
    start = time.process_time()
    extract_outline(text)
    assert time.process_time() - start < 5


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [1]\n"
        + "".join(f"k{i}: &{chr(98 + i)} [*{chr(97 + i)}, *{chr(97 + i)}]\n" for i in range(24)),
        "[" * 100_000,
        "a: 2025-13-01",
        "a: !!int ''",
        "a: 1:" + "1:" * 100_000,
    ],
    ids=["aliases", "nested", "no day", "no number", "too large"],
)
def test_hostile_config_has_no_keys(text):
    assert extract_yaml(text) == {}


def test_config_with_a_long_key_stays_small():
    """Values below a long key get no entries, because the name of each entry would repeat the key."""
    text = f"? {'k' * 50_000}\n: {{{', '.join(f'a{i}: 1' for i in range(5000))}}}\n"
    assert len(extract_yaml(text)) == 1


@pytest.mark.parametrize(
    "text", ["-" * 1_000_000 + "1", "(" * 100_000, "x = 1\0"], ids=["minus", "brackets", "null"]
)
def test_source_that_cannot_be_parsed_may_define_any_name(text):
    """It counts as using no name. Python's parser raises MemoryError for a million minus signs."""
    assert build.extract_file(PACKAGE, "vllm/a.py", text) == {"__getattr__": "dynamic *"}
    assert build.extract_uses(PACKAGE, "vllm/a.py", f"import trl\n{text}") == {}


def test_bases_that_share_bases_are_followed_once():
    """A class with eleven levels of ten equal bases has 10^11 paths to its last base."""
    lines = ["class A0: x = 1\n", *(f"class A{i + 1}({', '.join([f'A{i}'] * 10)}): ...\n" for i in range(11))]
    api = api_of_files("pkg", {"pkg/a.py": "".join(lines)})
    members = api.members(api.find("pkg.a", "A11"))
    assert (members.names, members.complete) == ({"x"}, True)


def test_star_imports_that_share_modules_are_followed_once():
    """Ten levels of nine star imports have 9^10 paths, and the last level imports the first."""
    texts = {
        f"pkg/m{i}.py": f"from pkg.m{i + 1} import *\n" + f"from pkg.n{i + 1} import *\n" * 8
        for i in range(10)
    }
    texts |= {name.replace("/m", "/n"): text for name, text in texts.items()}
    texts |= {"pkg/m10.py": "from pkg.m0 import *\n", "pkg/n10.py": "x = 1\n"}
    api = api_of_files("pkg", texts)
    assert api.find("pkg.m0", "nothere") is None
    assert api.find("pkg.m0", "x").module == "pkg.n10"


def test_star_imports_of_a_release_are_bounded(monkeypatch):
    """Beyond the limit, a module keeps its star import unexpanded."""
    monkeypatch.setattr(build, "_MOST_STAR_NAMES", 10)
    names = {"a": {f"x{i}": "value" for i in range(20)}} | {f"b{i}": {"*": "import a"} for i in range(3)}
    expanded = build.expand_stars(names)
    assert [module.get("*") for module in expanded.values()] == [None, "import a", "import a"]


def test_name_with_a_lone_surrogate_is_written(tmp_path):
    """UTF-8 cannot encode a lone surrogate, so the index has `?` in its place."""
    facts = extract('__all__ = ["\\ud800"]', "a")
    build.store.write_package(tmp_path / "a.zip", {"package": "a", "releases": []}, {"a": ("0-", facts)})
    assert build.store.Package(tmp_path / "a.zip").packed("a") == {"__all__": "value ?"}
