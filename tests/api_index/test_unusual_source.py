"""Source that cannot be parsed counts as unreadable, and shared bases are followed once."""

import pytest

from diagnostics.api_index import build
from diagnostics.api_index.packages import IndexedPackage
from tests.api_index.conftest import api_of_files

PACKAGE = IndexedPackage("vllm", ("vllm",), uses=("trl",), guarding=".*")


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
