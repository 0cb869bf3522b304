"""Names, signatures, options, environment variables and routes are extracted from the source of one Python file.

An entry is the text that the index stores for a name, for example `def (a, b=)`.
"""

import pytest

from diagnostics.api_index.extract import extract
from tests.case_files import read_cases

CASES = read_cases(__file__, "extracted_names.yaml")


@pytest.mark.parametrize("case", CASES["names"], ids=lambda case: f"{case['name']} in {case['text'][:40]}")
def test_name_has_its_entry(case):
    """A name has the entry of its definition, or none; a case with `package` is the `__init__.py` of a package."""
    package = case.get("package", "")
    entries = extract(case["text"], package or "pkg.mod", is_package=bool(package))
    assert entries.get(case["name"]) == case["entry"]


def test_parser_options_added_in_a_loop_are_read():
    """Options added in a loop over constants are read, as in OpenRLHF; an unknown name is no option."""
    text = "for one in ('a', 'b'):\n    p.add_argument(f'--{one}.lr')\n    p.add_argument(f'--{other}.lr')\n"
    assert [name for name in extract(text, "pkg.mod") if name.startswith("--")] == ["--a.lr", "--b.lr"]
