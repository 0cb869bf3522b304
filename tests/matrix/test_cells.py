"""matrix.toml: what is refused, and how the refusal reads."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

from diagnostics.matrix.ask.registry import load
from diagnostics.matrix.build import locks
from diagnostics.matrix.build.workplace import Workplace
from diagnostics.matrix.plan.verdicts import Outcome
from diagnostics.matrix.records.store import Store
from diagnostics.matrix.run import selection
from diagnostics.tables import TableError

PROJECT = Path(__file__).resolve().parents[2] / "matrix.toml"


@pytest.fixture
def write(tmp_path):
    """Writes a matrix file."""

    def _write(text):
        path = tmp_path / "matrix.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return _write


def test_the_project_s_matrix_is_sound():
    """Every cell loads; a cell that runs something has a lock for it, and one that resolves has its declared lock."""
    matrix = load(PROJECT)
    place = Workplace(matrix, Store(Path("unused")))
    for cell in matrix.cells:
        expected = cell.expectation("resolve")
        solvable = expected is None or expected.outcome is not Outcome.UNRESOLVABLE
        assert bool(locks.read(place, cell, runs=False)) is solvable, cell.id
        assert bool(locks.read(place, cell, runs=True)) is (cell.recipe is not None), cell.id


def test_locks_name_no_machine():
    """No committed lock holds a path or an index address."""
    for path in (PROJECT.parent / "locks").rglob("*.txt"):
        text = path.read_text(encoding="utf-8")
        assert "://" not in text
        assert "/opt" not in text


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('python = "PY"', "python = 3", "python is 3: expected a string"),
        ('python = "PY"', 'python = "4"', "expected a minor release, as 3.11"),
        ("exclude_newer = 2025-06-01", 'exclude_newer = "June"', "exclude_newer is 'June': expected a date, as 2025"),
        ("exclude_newer = 2025-06-01", "", 'cells."vllm-1.0+trl-1.0": expected the key \'exclude_newer\': a date'),
        ('recipe = "toy"', 'recipe = "tyo"', "recipe is 'tyo': expected one of toy (did you mean toy?)"),
        ('recipe = "toy"', "", "expected a recipe beside layers that run in an environment"),
        ('profiles = ["quick"]', 'profiles = ["quik"]', "expected each of quick, full (did you mean quick?)"),
        ('profiles = ["quick"]', 'profiles = "quick"', "profiles is 'quick': expected a list of strings"),
        ('profiles = ["quick"]', 'profile = ["quick"]', "expected the key 'profiles'"),
        ('profiles = ["quick"]', 'profiles = ["quick"]\nnotes = "x"', "expected one of exclude_newer, expect, layers"),
        ('vllm-1.0+trl-1.0"]', 'vllm1.0+trl-1.0"]', "expected an id of the form vllm-<version>+trl-<version>"),
        ('vllm-1.0+trl-1.0"]', 'vllm-1.x.0+trl-1.0"]', "expected a version of vllm where '1.x.0' stands"),
        ('"scheduler"]', '"scheduler", "scheduler"]', "expected each string once"),
        ("timeout_s = 300", "timeout_s = -1", "timeout_s is -1: expected seconds above zero"),
        ("disk_gb = 0.01", "disk_gb = true", "disk_gb is True: expected a number"),
        ("{trl}", "{version}", "expected no braces but {vllm} and {trl}"),
        ("grpo-doctor.matrix.v1", "v2", "schema is 'v2': expected 'grpo-doctor.matrix.v1'"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_refused_with_its_place(write, kit, old, new, said):
    """One line: file, line, key, value and what was expected."""
    text = kit.head + kit.cell("1.0", "1.0", kit.deep)
    old = old.replace("PY", kit.python)
    assert old in text
    path = write(text.replace(old, new))
    with pytest.raises(TableError) as refused:
        load(path)
    message = str(refused.value)
    assert said in message
    assert message.count("\n") == 0
    file, line, _rest = message.split(":", 2)
    assert file == str(path)
    # The line named is the one that was changed, or the head of the table in which something is missing.
    shown = path.read_text().splitlines()[int(line) - 1]
    assert (
        (new and new.splitlines()[-1] in shown)
        or shown.startswith("[")
        or "layers" in shown
        or "requirements" in shown
    )


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            '[CELL.expect.engine]\noutcome = "fail"\nreason = "x"',
            "expected one of the cell's layers (resolve,",
        ),
        ('[CELL.expect.scheduler]\noutcome = "pass"\nreason = "x"', "a pass needs no entry"),
        ('[CELL.expect.scheduler]\noutcome = "fail"', "expected the key 'reason'"),
        ('[CELL.expect.scheduler]\noutcome = "fail"\nreason = " "', "expected a string with something in it"),
        ('[CELL.expect]\nscheduler = "fail"', "scheduler is 'fail': expected a table"),
    ],
)
def test_a_wrong_expectation_is_refused(write, kit, more, said):
    """An expectation names a layer of the cell, an outcome other than a pass, and a reason."""
    with pytest.raises(TableError) as refused:
        load(write(kit.head + kit.cell("1.0", "1.0", kit.deep, more=more)))
    assert said in str(refused.value)


def test_what_is_no_toml_or_not_there_is_refused(write, tmp_path):
    """A syntax error and a missing file are one line each."""
    with pytest.raises(TableError, match=r"is not TOML: .*line 2"):
        load(write("a = 1\nb = = 2\n"))
    with pytest.raises(TableError, match="cannot be read"):
        load(tmp_path / "nowhere.toml")
    with pytest.raises(TableError, match="expected at least one"):
        load(write('schema = "grpo-doctor.matrix.v1"\nplatform = "linux"\n'))


def test_profiles_and_patterns_choose_cells(write, kit):
    """Patterns choose among all cells; without one the profile does, and full holds quick."""
    rare = kit.cell("3.0", "1.0", kit.light, recipe=None).replace('["quick"]', '["full"]')
    matrix = load(
        write(kit.head + kit.cell("1.0", "1.0", kit.deep) + kit.cell("2.0", "1.0", kit.deep) + rare)
    )
    names = lambda cells: [cell.vllm for cell in cells]  # noqa: E731
    assert names(selection.cells(matrix, [], None)) == ["1.0", "2.0"]
    assert names(selection.cells(matrix, [], "full")) == ["1.0", "2.0", "3.0"]
    assert names(selection.cells(matrix, ["vllm-[13]*"], None)) == ["1.0", "3.0"]


def test_a_layer_brings_what_it_needs(write, kit):
    """Asking for one layer asks for all that must have passed before it; `train` stands for every mode."""
    matrix = load(write(kit.head + kit.cell("1.0", "1.0", (*kit.deep, "engine", "train:async"))))
    cell = matrix.cells[0]
    assert selection.with_needs(cell, ("scheduler",)) == ["install", "import", "scheduler"]
    assert selection.layers(["train", "resolve,import"]) == (
        "train:colocate",
        "train:async",
        "train:server",
        "resolve",
        "import",
    )


def test_quick_leaves_out_what_the_file_says(write, kit):
    """Only where neither cells nor layers are named; what is left out has to be a layer, or a family of them."""
    text = kit.head + kit.cell("1.0", "1.0", ["resolve", "install", "import", "repro:NUM001"])
    short = load(write(text.replace("platform =", 'quick_without = ["repro", "import"]\nplatform =')))
    asked = selection.of_profile(short, [], None)
    assert selection.with_needs(short.cells[0], asked) == ["resolve", "install"]
    assert selection.of_profile(short, [], "full") == selection.of_profile(short, ["vllm-1*"], None) == ()
    assert selection.of_profile(load(write(text)), [], None) == ()
    with pytest.raises(TableError, match=r"quick_without.*did you mean repro"):
        load(write(text.replace("platform =", 'quick_without = ["repros"]\nplatform =')))


@pytest.mark.parametrize(
    "module", ["build.uv", "build.resolving", "build.pylock", "run.triaged", "report.table"]
)
def test_examples_in_docstrings_hold(module):
    """The doctests of the package run."""
    found = doctest.testmod(importlib.import_module(f"diagnostics.matrix.{module}"))
    assert (found.attempted > 0, found.failed) == (True, 0)
