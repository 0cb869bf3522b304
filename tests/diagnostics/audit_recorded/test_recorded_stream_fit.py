"""Two laws at once in a run's log-probs: both are told where the weights of the samples are there, else one is."""

from __future__ import annotations

import copy

import pytest
import torch

from diagnostics.audit.model import FAULT
from diagnostics.audit.recorded.run_audit import audit_run
from tests.diagnostics.audit_recorded import runs, sampled

# Trained ones are this peaked; of 96 ids.
SEED, SIZE, PEAK = 3, 96, 12.0


@pytest.fixture(scope="module")
def made():
    return sampled.model(SEED, SIZE, PEAK)


@pytest.fixture(scope="module")
def checkpoint(made, tmp_path_factory):
    return sampled.saved(made, tmp_path_factory.mktemp("weights") / "checkpoint")


def faults(rows, folder, checkpoint):
    audit = audit_run(runs.as_rollouts(rows, folder), checkpoint=checkpoint)
    return {answer.family: answer for answer in audit.select(FAULT)}


@pytest.mark.parametrize(
    "law",
    [
        pytest.param({"temperature": 0.74, "top_p": 0.91}, marks=pytest.mark.long),
        pytest.param({"temperature": 0.74, "top_k": 5}, marks=pytest.mark.long),
        {"top_p": 0.91, "repetition_penalty": 1.21},
    ],
    ids="-".join,
)
def test_both_of_two_laws_are_named_with_their_values(made, checkpoint, tmp_path, law):
    """As a server's are: nothing beside them is."""
    told = faults(sampled.rows(made, seed=5, groups=8, **law), tmp_path, checkpoint)
    assert {family: each.estimates[0].value for family, each in told.items()} == {
        f"sampling/{name}": pytest.approx(value, rel=0.01) for name, value in law.items()
    }


def test_an_engine_of_another_type_is_no_fault(made, checkpoint, tmp_path):
    """What arithmetic makes is open without the weights, and with them no law."""
    halved = copy.deepcopy(made).bfloat16()
    assert not faults(sampled.rows(made, seed=5, groups=8, sampler=halved), tmp_path, checkpoint)


def test_other_weights_are_told_as_no_law(made, checkpoint, tmp_path):
    """The engine's are not the trainer's: a law that leaves much of it is not told."""
    other = copy.deepcopy(made)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for each in other.parameters():
            each.add_(0.1 * each.std() * torch.randn(each.shape, generator=generator))
    told = faults(sampled.rows(made, seed=5, groups=8, sampler=other), tmp_path, checkpoint)
    assert told
    assert not [family for family in told if family.startswith("sampling")]


def test_a_checkpoint_of_other_samples_tells_nothing_of_these(made, tmp_path):
    """What the two streams say stays, and that another law beside it would not show."""
    foreign = sampled.saved(sampled.model(SEED + 1, SIZE, PEAK), tmp_path / "checkpoint")
    law = {"temperature": 0.74, "top_k": 5}
    told = faults(sampled.rows(made, seed=5, groups=8, **law), tmp_path / "run", foreign)
    (answer,) = (each for family, each in told.items() if family.startswith("streams"))
    assert "one_law" in {fact.name for fact in answer.evidence}
