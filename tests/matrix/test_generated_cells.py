"""The matrix generates and runs cells for pairs of releases, with their date cuts and expectations."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from diagnostics.matrix import generated_cells
from diagnostics.matrix.cells import load_matrix
from diagnostics.matrix.context import ROOT
from diagnostics.matrix.layers import LAYERS
from diagnostics.matrix.verdicts import Outcome
from diagnostics.toml_source import TomlError
from diagnostics.versions import in_range

BREADTH = "\n" + Path(__file__).with_name("breadth.toml").read_text(encoding="utf-8")
DAY = datetime.date(2025, 1, 1)


def uploaded(day, vllm="", python=">=3.9"):
    """Return the upload date, requirement and Python constraint of a release, `day` days after the first."""
    requirement = f'vllm{vllm}; extra == "vllm"' if vllm else ""
    return DAY + datetime.timedelta(days=day), requirement, python


TRL = {
    "0.9": uploaded(0),
    "1.0.0": uploaded(1, ">=0.4,<0.10"),
    "1.0.1": uploaded(5, ">=0.4"),
    "1.1.0": uploaded(30, "==0.5"),
    "1.2.0": uploaded(40, python=">=3.12"),
    "1.3.0": uploaded(400),
}
VLLM = {**{f"0.{minor}": uploaded(4 * minor) for minor in range(1, 12)}, "0.12": uploaded(58)}


@pytest.fixture
def generate(tmp_path, kit, use_api_index):
    """Return a function that generates the cells of a matrix with one written cell, by id."""
    use_api_index(trl=TRL, vllm=VLLM)

    def cells(table=BREADTH, more=""):
        path = tmp_path / "matrix.toml"
        path.write_text(kit.HEAD + kit.cell_table("0.6", "1.1.0", kit.LIGHT_LAYERS, more=more) + table)
        return {cell.id: cell for cell in generated_cells.generated_cells(load_matrix(path, LAYERS))}

    return cells


def test_each_minor_release_is_paired_with_its_range(generate):
    """The last release of each minor TRL release is paired with its vLLM range and two releases on each side.

    TRL releases that are too old, too new or for another Python have no pairs.
    """
    pairs = {}
    for cell in generate().values():
        pairs.setdefault(cell.version, []).append(cell.vllm)
    assert pairs == {
        "1.0.1": [f"0.{minor}" for minor in range(2, 13)],
        "1.1.0": ["0.3", "0.4", "0.5", "0.6", "0.7"],
    }


def test_all_pairs_are_compared_and_some_are_resolved(generate):
    """All pairs have the contract layer; the ends of a range, some releases between and excluded ones are resolved."""
    cells = generate().values()
    resolved = [cell.vllm for cell in cells if cell.version == "1.0.1" and "resolve" in cell.layers]
    assert resolved == ["0.2", "0.3", "0.4", "0.8", "0.12"]
    assert all("contract" in cell.layers for cell in cells)


def test_date_cut_follows_the_later_upload(generate):
    """The date cut is ten days after the later upload of both releases, at most the last day of the table."""
    cuts = {name: cell.exclude_newer for name, cell in generate().items()}
    assert cuts["vllm-0.3+trl-1.0.1"] == DAY + datetime.timedelta(days=12 + 10)
    assert cuts["vllm-0.3+trl-1.1.0"] == DAY + datetime.timedelta(days=30 + 10)
    assert cuts["vllm-0.12+trl-1.0.1"] == datetime.date(2025, 3, 1)


def test_expectations_follow_from_metadata_and_rules(generate):
    """A pair that TRL's metadata forbids is expected to be unresolvable; a written cell keeps its own expectations."""
    expectation = '[CELL.expect.contract]\noutcome = "fail"\nreason = "its own"\n'
    cells = generate(more=expectation)
    forbidden = cells["vllm-0.7+trl-1.1.0"].expect
    assert {layer: item.outcome for layer, item in forbidden.items()} == dict.fromkeys(
        ("resolve", "resolve:today"), Outcome.UNRESOLVABLE
    )
    assert "declares vllm==0.5" in forbidden["resolve"].reason
    written = cells["vllm-0.6+trl-1.1.0"]
    assert written.expect["contract"].reason == "its own"
    assert "resolve" not in written.expect  # only the matrix file decides what a written cell expects
    assert written.expect["resolve:today"].outcome is Outcome.UNRESOLVABLE
    assert written.exclude_newer == datetime.date(2025, 6, 1)


def test_rule_applies_within_its_ranges(generate):
    """An expectation rule applies only if both the TRL and the vLLM release are in its ranges."""
    cells = generate(BREADTH.replace(">=1.1", ">=1.0"))
    assert cells["vllm-0.8+trl-1.0.1"].expect["contract"].reason == "It is gone."
    assert "contract" not in cells["vllm-0.7+trl-1.0.1"].expect


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('trl_since = "1.0"', 'trl_since = "one"', "trl_since is 'one': expected a version, as 0.14"),
        ('trl = ">=1.1"', 'trl = "from 1.1"', "trl is 'from 1.1': expected a range"),
        ('layer = "contract"', 'layer = "install"', "expected one of contract, resolve, resolve:today"),
        ('outcome = "fail"', 'outcome = "pass"', "a pass needs no entry"),
        ("days = 10", "dayz = 10", "did you mean days"),
    ],
)
def test_invalid_table_is_refused(generate, old, new, message):
    """An invalid `[breadth]` table is refused in one line with the key and the expected form."""
    with pytest.raises(TomlError) as refused:
        generate(BREADTH.replace(old, new))
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_project_covers_every_minor_release_of_trl():
    """The project generates cells for all minor TRL releases since 0.14, and resolves at least 150 pairs.

    TRL 0.25.1 is paired with the release that it allows and two on each side.
    """
    matrix = load_matrix(ROOT / "matrix.toml", LAYERS)
    cells = generated_cells.generated_cells(matrix)
    minors = {
        tuple(map(int, item.version.split(".")[:2])) for item in generated_cells.indexed_releases("trl")
    }
    assert {tuple(map(int, cell.version.split(".")[:2])) for cell in cells} == {
        item for item in minors if item >= (0, 14)
    }
    assert sum("resolve" in cell.layers for cell in cells) >= 150
    pairs = [(cell.vllm, in_range(cell.vllm, cell.declares)) for cell in cells if cell.version == "0.25.1"]
    assert [vllm for vllm, allowed in pairs if not allowed] == ["0.10.1", "0.10.1.1", "0.11.0", "0.11.1"]
    assert [vllm for vllm, allowed in pairs if allowed] == ["0.10.2"]


@pytest.fixture
def breadth_project(project, kit, use_api_index):
    """Return a toy project that generates cells from two vLLM and two TRL releases."""
    for version in ("1.0", "2.0"):
        project.index.add("vllm", version, kit.toy_vllm(version))
    project.index.add("trl", "1.0", kit.toy_trl("from vllm import LLM"), extras={"vllm": ("vllm<2",)})
    project.index.add("trl", "2.0", kit.toy_trl("from vllm import Newest"), extras={"vllm": ("vllm>=1.0",)})
    engines = dict.fromkeys(("1.0", "2.0"), uploaded(0))
    use_api_index(trl={"1.0": uploaded(0, "<2"), "2.0": uploaded(0, ">=1.0")}, vllm=engines)
    path = project.write(kit.cell_table("1.0", "1.0", kit.LIGHT_LAYERS, recipe=None), head=kit.HEAD)
    table = BREADTH.replace("3.11", kit.PYTHON).replace('"0.2"', '"1.0"').partition("[[")[0]
    path.write_text(path.read_text() + table)
    return project


def test_generated_cells_run_once(breadth_project):
    """Generated cells run three at a time, and a second run uses the stored results."""
    project, command = breadth_project, ("run", "--profile", "breadth", "--jobs", "3")
    first = project.run(*command)
    assert first.returncode == 1, first.stdout + first.stderr
    assert "vllm-2.0+trl-2.0 contract: FAIL: 1 of 1 things that TRL uses are missing" in first.stdout
    assert "2 not as expected" in first.stdout
    stored = (project.store / "store.jsonl").read_bytes()
    second = project.run(*command)
    assert (second.stdout, second.returncode) == (first.stdout, 1)
    assert (project.store / "store.jsonl").read_bytes() == stored
    assert (project.store / "report" / "breadth" / "index.html").exists()
