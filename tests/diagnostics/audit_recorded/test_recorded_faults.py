"""The audit of a run recorded by grpo_core names each injected fault in each format that shows it.

The healthy run is clean in each format. Advantages of no known formula are undecided; damaged runs end in a verdict or
a refusal.
"""

import shutil
from dataclasses import replace

import pytest

from diagnostics import catalog
from diagnostics.audit.recorded.run_audit import audit_run, read_run
from diagnostics.audit.results import CLEAN, NOT_DECIDED
from evaluation.hostile import fuzz_artifacts, fuzz_readers
from tests.diagnostics.audit_recorded import faults, runs
from tests.diagnostics.audit_recorded.runs import fault_families


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Train with grpo_core's trainer and record every step; return the run's folder."""
    return runs.train_run(tmp_path_factory.mktemp("own"), 0, 10, "--model.layers=2")


@pytest.fixture(scope="module")
def rows(run):
    """Return the recorded samples with the trainer's log-probs."""
    return runs.with_trainer_logprobs(runs.rows_of(run))


def test_healthy_run_is_clean_and_fully_checked(run):
    """At least eight families of results are clean, such as data, advantages, masks and metrics."""
    result = audit_run(run)
    assert fault_families(result) == set()
    assert result.outcome == CLEAN
    assert {"data", "advantages", "samples", "ends", "rewards", "masks", "moved", "metrics"} <= {
        answer.family for answer in result.select(CLEAN)
    }


@pytest.mark.parametrize("form", sorted(runs.WRITERS))
def test_healthy_samples_are_clean_in_every_format(rows, tmp_path, form):
    """The samples that the audit reads are those that were written, except that verl's have no advantages."""
    folder = runs.WRITERS[form](rows, tmp_path / form)
    result = audit_run(folder)
    assert (fault_families(result), result.outcome) == (set(), CLEAN)
    (recording,) = read_run(folder).recordings
    read = [(row.step, row.prompt, row.completion, row.reward, row.advantage) for row in recording.rows]
    advantages = [None if form == "verl" else row.advantage for row in rows]
    expected = [(row.step, row.prompt, row.completion, row.reward) for row in rows]
    assert read == [(*values, advantage) for values, advantage in zip(expected, advantages, strict=True)]


@pytest.mark.parametrize(
    ("fault", "form"),
    [(fault, fault.formats[-1]) for fault in faults.ROWS],
    ids=lambda value: value if isinstance(value, str) else value.name.replace(" ", "-"),
)
def test_fault_in_samples_is_named(rows, tmp_path, fault, form):
    """The audit reports the fault's family, with a catalog code and a message, and no other than two side effects.

    One format suffices, because all formats give the audit the same samples (the test above).
    """
    result = audit_run(runs.WRITERS[form](fault.inject(rows, 1), tmp_path / form))
    assert fault.family in fault_families(result)
    side_effects = fault_families(result) - {fault.family}
    # Equal completions have equal rewards, and advantages that are all 0 look like groups without spread.
    assert side_effects <= {"rewards/no_spread", "rewards/constant"}
    (answer,) = {item.family: item for item in result.results if item.family == fault.family}.values()
    assert answer.code in catalog.load()
    assert answer.message


def test_advantages_of_no_known_formula_are_undecided(rows, tmp_path):
    """Advantages that stand one row away from their samples fit no formula."""
    shifted = [replace(row, advantage=rows[place - 1].advantage) for place, row in enumerate(rows)]
    result = audit_run(runs.write_swift(shifted, tmp_path))
    assert (fault_families(result), result.outcome) == (set(), NOT_DECIDED)
    assert [answer.family for answer in result.select(NOT_DECIDED)] == ["advantages"]


@pytest.mark.parametrize(
    ("family", "inject"), [item[1:] for item in faults.FILES], ids=[item[0] for item in faults.FILES]
)
def test_fault_in_metrics_or_checkpoints_is_named(run, tmp_path, family, inject):
    folder = shutil.copytree(run, tmp_path / "run")
    inject(folder, 1)
    assert family in fault_families(audit_run(folder))


def test_damaged_and_hostile_runs_end_in_a_verdict_or_a_refusal():
    """Eight random cases of `python -m evaluation.hostile.fuzz_artifacts` end in a verdict or a refusal."""
    _outcomes, _slowest, wrong = fuzz_readers.fuzz_reader(fuzz_artifacts.audit_damaged_run, 8, 0)
    assert not wrong, "\n".join(text for _case, text in wrong)
