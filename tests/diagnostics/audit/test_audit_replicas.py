"""Replicas behind one address that answer in turn are detected by their scores of the same ids."""

from types import SimpleNamespace

import pytest
import torch

from diagnostics.audit.live import cache_replicas
from diagnostics.audit.results import CLEAN, FAULT, NOT_DECIDED, Result

EXACT = torch.zeros(47, dtype=torch.float64)
WEIGHTS = Result("weights/unknown", FAULT, "P1")


def check_replies(*offs, exact=EXACT):
    """The answer where calls are off by so much, by turns, with a hundredth of noise."""
    calls = iter(range(99))

    def score(ids):
        place = next(calls)
        noise = 0.01 * torch.randn(len(ids) - 1, generator=torch.Generator().manual_seed(place))
        return (offs[place % len(offs)] + noise).tolist()

    return cache_replicas.check_replicas(SimpleNamespace(score=score), range(48), exact, 0.01, 0.032)


@pytest.mark.parametrize("exact", [EXACT, None])
def test_two_servers_behind_one_address_are_reported(exact):
    """Their mixed scores match no weights."""
    audit = check_replies(0.0, 0.3, exact=exact)
    assert (audit.family, audit.outcome) == ("replicas/weights", FAULT)
    assert [item.values["sets"] for item in audit.evidence if item.name == "behind"] == ["3 and 3"]
    assert cache_replicas.hides_weights(audit, WEIGHTS)


def test_one_server_with_wrong_weights_is_not_taken_for_two():
    """Its weights are wrong, which explains the difference."""
    audit = check_replies(0.3, exact=None)
    assert (audit.family, audit.outcome) == ("replicas", CLEAN)
    assert not cache_replicas.hides_weights(audit, WEIGHTS)


def test_weights_that_are_right_are_not_hidden():
    """A few calls that another replica answered do not hide that the weights are right."""
    audit = check_replies(0.0, 0.0, 0.0, 0.0, 0.0, 0.3)
    assert not cache_replicas.hides_weights(audit, Result("weights", CLEAN, "P1"))
    assert cache_replicas.hides_weights(audit, Result("weights", NOT_DECIDED, "P1"))
