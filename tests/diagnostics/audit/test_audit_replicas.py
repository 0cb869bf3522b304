"""Replicas with different weights are a fault; one server with wrong weights is no such fault.

A replica fault is found by `check_replicas`; `hides_weights` decides whether it hides the result for the weights.
"""

from types import SimpleNamespace

import pytest
import torch

from diagnostics.audit.live import cache_and_replicas
from diagnostics.audit.results import CLEAN, FAULT, NOT_DECIDED, Result

EXACT = torch.zeros(47, dtype=torch.float64)
WEIGHTS = Result("weights/unknown", FAULT, "P1")


def check_scores(*offsets, exact=EXACT):
    """Check a server whose calls return scores with these offsets in turn, with noise of 0.01."""
    calls = iter(range(99))

    def score(ids):
        place = next(calls)
        noise = 0.01 * torch.randn(len(ids) - 1, generator=torch.Generator().manual_seed(place))
        return (offsets[place % len(offsets)] + noise).tolist()

    return cache_and_replicas.check_replicas(SimpleNamespace(score=score), range(48), exact, 0.01, 0.032)


@pytest.mark.parametrize("exact", [EXACT, None])
def test_two_replicas_with_different_weights_are_a_fault(exact):
    """Two replicas are a fault, and hide the result for the weights because mixed scores match no checkpoint."""
    audit = check_scores(0.0, 0.3, exact=exact)
    assert (audit.family, audit.outcome) == ("replicas/weights", FAULT)
    assert cache_and_replicas.hides_weights(audit, WEIGHTS)


def test_single_server_with_wrong_weights_is_not_a_replica_fault():
    """Scores that all have the same offset are explained by the weights, not by replicas."""
    audit = check_scores(0.3, exact=None)
    assert (audit.family, audit.outcome) == ("replicas", CLEAN)
    assert not cache_and_replicas.hides_weights(audit, WEIGHTS)


def test_correct_weights_are_not_hidden_by_a_few_other_scores():
    """If one call in six has other scores, a clean result for the weights stays, and an undecided one is hidden."""
    audit = check_scores(0.0, 0.0, 0.0, 0.0, 0.0, 0.3)
    assert not cache_and_replicas.hides_weights(audit, Result("weights", CLEAN, "P1"))
    assert cache_and_replicas.hides_weights(audit, Result("weights", NOT_DECIDED, "P1"))
