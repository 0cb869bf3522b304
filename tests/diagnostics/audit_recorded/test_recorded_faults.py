"""Each fault put into samples and files of a real run is named, in every format that shows it, and nothing else is."""

from __future__ import annotations

import shutil

import pytest

from diagnostics.audit.recorded.run_audit import audit_run
from diagnostics.audit.results import CLEAN, FAULT
from diagnostics.catalog import loader
from evaluation.hostile import fuzz_artifacts, fuzz_readers
from tests.diagnostics.audit_recorded import faults, runs


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of our own trainer, with every step recorded."""
    return runs.train_run(tmp_path_factory.mktemp("own"), 0, 10, "--model.layers=2")


@pytest.fixture(scope="module")
def rows(run):
    return runs.with_trainer(runs.rows_of(run))


def fault_families(result):
    return {answer.family for answer in result.results if answer.outcome == FAULT}


def test_a_run_of_ours_is_clean(run):
    """It has no fault, and all deciding checks ran."""
    result = audit_run(run)
    assert fault_families(result) == set()
    assert result.outcome == CLEAN
    assert {"data", "advantages", "samples", "ends", "rewards", "masks", "moved", "metrics"} <= {
        answer.family for answer in result.select(CLEAN)
    }


@pytest.mark.parametrize("form", sorted(runs.WRITERS))
def test_the_same_samples_in_other_formats_are_clean(rows, tmp_path, form):
    """Whichever trainer writes them."""
    result = audit_run(runs.WRITERS[form](rows, tmp_path / form))
    assert (fault_families(result), result.outcome) == (set(), CLEAN)


@pytest.mark.parametrize(
    ("fault", "form"),
    [(fault, form) for fault in faults.ROWS for form in fault.formats],
    ids=lambda value: value if isinstance(value, str) else value.name.replace(" ", "-"),
)
def test_a_fault_in_samples_is_named(rows, tmp_path, fault, form):
    """The audit reports the fault's family and no other, with a catalog code for the family, and a sentence."""
    result = audit_run(runs.WRITERS[form](fault.put(rows, 1), tmp_path / form))
    assert fault.family in fault_families(result)
    neighbour = fault_families(result) - {fault.family}
    # Completions that are all the same have no spread, and all advantages of 0 need no spread to be 0.
    assert neighbour <= {"rewards/no_spread", "rewards/constant"}
    (answer,) = {item.family: item for item in result.results if item.family == fault.family}.values()
    assert answer.code in loader.load()
    assert answer.message


@pytest.mark.parametrize(
    ("name", "family", "put"), faults.FILES, ids=[item[0].replace(" ", "-") for item in faults.FILES]
)
def test_a_fault_in_files_is_named(run, tmp_path, name, family, put):
    """Metrics and weights of the run's own folder."""
    del name
    folder = shutil.copytree(run, tmp_path / "run")
    put(folder, 1)
    assert family in fault_families(audit_run(folder))


def test_damaged_and_hostile_runs_are_answered_or_refused():
    """A few of the cases of `python -m evaluation.hostile.fuzz_artifacts`, which is run with many."""
    _outcomes, _slowest, wrong = fuzz_readers.run(fuzz_artifacts.run_left, 8, 0)
    assert not wrong, "\n".join(text for _case, text in wrong)
