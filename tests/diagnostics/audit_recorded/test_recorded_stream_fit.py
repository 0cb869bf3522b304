"""Two faults in a run's sampling parameters: both are reported if the samples' weights exist, otherwise one."""

from __future__ import annotations

import copy

import pytest

from diagnostics.audit.recorded.run_audit import audit_run
from diagnostics.audit.results import FAULT
from tests.diagnostics.audit_recorded import runs, sampled

# Trained ones are this peaked; of 96 ids.
SEED, SIZE, PEAK = 3, 96, 12.0


@pytest.fixture(scope="module")
def llama():
    return sampled.model(SEED, SIZE, PEAK)


@pytest.fixture(scope="module")
def checkpoint(llama, tmp_path_factory):
    return sampled.save_model(llama, tmp_path_factory.mktemp("weights") / "checkpoint")


def faults(rows, folder, checkpoint):
    audit = audit_run(runs.as_rollouts(rows, folder), checkpoint=checkpoint)
    return {answer.family: answer for answer in audit.select(FAULT)}


def test_both_of_two_laws_are_named_with_their_values(llama, checkpoint, tmp_path):
    """Two sampling parameters that differ are reported with their values, as for a server, and nothing else."""
    law = {"top_p": 0.91, "repetition_penalty": 1.21}
    reported = faults(sampled.sample_rows(llama, seed=5, groups=8, **law), tmp_path, checkpoint)
    assert {family: item.estimates[0].value for family, item in reported.items()} == {
        f"sampling/{name}": pytest.approx(value, rel=0.01) for name, value in law.items()
    }


def test_an_engine_of_another_type_is_no_fault(llama, checkpoint, tmp_path):
    """Rounding in another dtype is not reported: without the weights it is undecided, with them it is no fault."""
    halved = copy.deepcopy(llama).bfloat16()
    assert not faults(sampled.sample_rows(llama, seed=5, groups=8, sampler=halved), tmp_path, checkpoint)


def test_checkpoint_of_other_samples_changes_no_verdict(llama, tmp_path):
    """With a checkpoint of other samples, the verdict from the two streams stays; no other fault is claimed."""
    foreign = sampled.save_model(sampled.model(SEED + 1, SIZE, PEAK), tmp_path / "checkpoint")
    law = {"temperature": 0.74, "top_k": 5}
    reported = faults(sampled.sample_rows(llama, seed=5, groups=8, **law), tmp_path / "run", foreign)
    (answer,) = (item for family, item in reported.items() if family.startswith("streams"))
    assert "one_law" in {fact.name for fact in answer.evidence}


def test_texts_show_temperature_and_truncation(llama, checkpoint, tmp_path):
    rows = sampled.as_texts(sampled.sample_rows(llama, seed=5, groups=16, temperature=0.8, top_p=0.9))
    audit = audit_run(runs.as_verl(rows, tmp_path), checkpoint=checkpoint)
    values = {answer.family: answer.estimates[0].value for answer in audit.select(FAULT)}
    assert values["text/temperature"] == pytest.approx(0.8, abs=0.05)
    assert values["text/top_p"] == pytest.approx(0.9, abs=0.03)
