"""Which tests are chosen for a file, and what they need."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests import select_tests
from tests.select_tests import ROOT

# One worker reads all the sources, once.
pytestmark = pytest.mark.xdist_group("sources")


def names(*paths: str, near: bool = False) -> set[str]:
    test_files = select_tests.select_tests([ROOT / path for path in paths], near=near)
    return {str(path.relative_to(ROOT / "tests")) for path in test_files}


@pytest.mark.parametrize(
    ("path", "test"),
    [
        ("diagnostics/collect/gpus.py", "diagnostics/test_doctor_machine.py"),
        ("diagnostics/catalog/issues/SCH001.toml", "diagnostics/test_catalog.py"),
        ("diagnostics/catalog/issues", "diagnostics/test_triage.py"),
        ("diagnostics/data/compat.json", "diagnostics/test_doctor.py"),
        ("diagnostics/__main__.py", "diagnostics/test_command_errors.py"),
        ("diagnostics/lint/rules/placeholders.py", "diagnostics/test_lint_rules.py"),
        ("diagnostics/doctor/checks/binaries.py", "diagnostics/test_doctor.py"),
        ("diagnostics/matrix/uv.py", "matrix/test_uv.py"),
        ("matrix.toml", "matrix/test_cells.py"),
        ("grpo_core/learn/losses.py", "grpo_core/test_loss.py"),
        ("grpo_core/learn/losses.py", "grpo_core/test_modes.py"),
        ("grpo_core/__main__.py", "grpo_core/test_main.py"),
        ("repro/runner.py", "repro/test_runner.py"),
        ("repro/judge.py", "repro/test_judge.py"),
        ("tests/diagnostics/fake_environments.py", "diagnostics/test_doctor.py"),
        ("tests/diagnostics/logs/SCH002", "diagnostics/test_triage.py"),
        ("tests/grpo_core/test_loss.py", "grpo_core/test_loss.py"),
    ],
)
def test_what_rests_on_a_file_is_chosen(path, test):
    """Tests are selected by imports (also late ones), started module names, and names of files that are read."""
    assert test in names(path)


@pytest.mark.parametrize(
    ("path", "test"),
    [
        ("grpo_core/learn/losses.py", "diagnostics/test_triage.py"),
        ("diagnostics/catalog", "grpo_core/test_loss.py"),
        ("diagnostics/catalog", "matrix/test_run.py"),
        ("repro/runner.py", "diagnostics/test_doctor.py"),
        ("tests/grpo_core/test_loss.py", "grpo_core/test_modes.py"),
    ],
)
def test_what_does_not_is_not(path, test):
    """Else the choice would be no choice."""
    assert test not in names(path)


def test_the_nearest_are_few_and_of_the_same_part():
    """They name the module themselves."""
    nearest = names("diagnostics/catalog/issues/SCH001.toml", near=True)
    assert "diagnostics/test_catalog.py" in nearest
    assert nearest < names("diagnostics/catalog/issues/SCH001.toml")
    assert {name.partition("/")[0] for name in nearest} == {"diagnostics"}
    # Tests that read the catalog for something else are not near an entry.
    assert "diagnostics/test_doctor_hosts.py" not in nearest
    # A file that is found by its folder has near tests, too.
    assert "diagnostics/test_lint_rules.py" in names("diagnostics/lint/rules/placeholders.py", near=True)
    assert names("diagnostics/collect/gpus.py", near=True)


def test_only_tests_of_the_trainer_need_torch():
    """And of the audit, which computes with its weights: who adds a rule never waits for hundreds of megabytes."""
    heavy = {path for path in select_tests.all_tests() if select_tests.needs_torch([path])}
    theirs = (
        "grpo_core/",
        "repro/",
        "gpu/",
        "golden/",
        "diagnostics/audit",
        "diagnostics/test_pulse.py",  # the trainer's progress, too
        "test_missing_packages.py",
    )
    assert [path for path in heavy if not str(path.relative_to(ROOT / "tests")).startswith(theirs)] == []
    assert ROOT / "tests/grpo_core/test_loss.py" in heavy


def test_choosing_needs_nothing_installed():
    """The noxfile chooses before it installs."""
    program = (
        "from tests.select_tests import ROOT, closure\n"
        "assert ROOT / 'repro' / 'judge.py' in closure(ROOT / 'tests' / 'repro' / 'test_judge.py')"
    )
    subprocess.run([sys.executable, "-S", "-c", program], cwd=ROOT, check=True)
