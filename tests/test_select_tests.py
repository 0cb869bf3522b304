"""`select_tests` finds the tests that depend on a file, and those that need PyTorch.

It imports only the standard library. `nox -s tests -- FILE` runs the tests that depend on a file;
`nox -s quick -- FILE` runs the nearest of them (`direct_only`) that need no PyTorch.
"""

import pytest

from tests import select_tests
from tests.case_files import each_case, read_cases
from tests.processes import run_python
from tests.select_tests import ROOT

CASES = read_cases(__file__, "selected_tests.yaml")

# On one worker all sources are read only once.
pytestmark = pytest.mark.xdist_group("sources")


def names(*paths: str, direct_only: bool = False) -> set[str]:
    """Return the names of the selected test files."""
    test_files = select_tests.select_tests([ROOT / path for path in paths], direct_only=direct_only)
    return {str(path.relative_to(ROOT / "tests")) for path in test_files}


@each_case(CASES["dependent"])
def test_dependent_test_is_selected(path, test):
    """A test is selected if it imports the file, starts its module, or reads a file of its name."""
    assert test in names(path)


@each_case(CASES["independent"])
def test_independent_test_is_not_selected(path, test):
    assert test not in names(path)


def test_near_tests_are_few_and_of_the_same_package():
    """With `direct_only`, fewer tests are selected for an entry, and some for a rule and a collector."""
    nearest = names("diagnostics/catalog/issues/SCH001.toml", direct_only=True)
    assert "diagnostics/test_catalog.py" in nearest
    assert nearest < names("diagnostics/catalog/issues/SCH001.toml")
    assert {name.partition("/")[0] for name in nearest} == {"diagnostics"}
    # Tests that read the catalog for another purpose are not near an entry.
    assert "diagnostics/test_doctor_hosts.py" not in nearest
    # A module that its package imports by listing the folder has near tests too.
    nearest = names("diagnostics/lint/rules/placeholders.py", direct_only=True)
    assert "diagnostics/test_lint_rules.py" in nearest
    assert names("diagnostics/collect/gpus.py", direct_only=True)


def test_tests_outside_of_listed_folders_need_no_torch():
    """Only tests of the trainer, repros, GPU, golden commands, audit and missing packages may need PyTorch."""
    with_torch = [path for path in select_tests.all_tests() if select_tests.needs_torch([path])]
    file_names = {str(path.relative_to(ROOT / "tests")) for path in with_torch}
    expected = ("grpo_core/", "repro/", "gpu/", "golden/", "diagnostics/audit", "test_missing_packages.py")
    assert [name for name in file_names if not name.startswith(expected)] == []
    assert "grpo_core/test_loss.py" in file_names


def test_selection_needs_only_the_standard_library():
    program = (
        "from tests.select_tests import ROOT, closure\n"
        "assert ROOT / 'repro' / 'judge.py' in closure(ROOT / 'tests' / 'repro' / 'test_judge.py')"
    )
    run_python("-S", "-c", program, cwd=ROOT, check=True)
