"""Distributions over a large vocabulary keep only the likeliest ids: compared with the full vocabulary."""

import pytest
import torch

from diagnostics.audit.live import sampling_distribution
from diagnostics.audit.live.sampling_distribution import Completion, Observed, Sampling

# Of ids that fill no whole part fewer than 128 are told as those above them: a thousandth of a real vocabulary.
PLACES, SIZE = 6, 6004


def make_observed(monkeypatch, kept, spread):
    """Make samples of a distribution that keeps so many ids."""
    monkeypatch.setattr(sampling_distribution, "_KEPT", kept)
    generator = torch.Generator().manual_seed(2)
    logits = spread * torch.randn(PLACES, SIZE, generator=generator, dtype=torch.float64)
    ids = torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0].tolist()
    return Observed([Completion((1, 2), tuple(ids), (0.0,) * PLACES)], [logits])


@pytest.mark.parametrize("spread", [0.3, 3.0], ids=["flat", "peaked"])
def test_so_is_how_surprising_the_ids_are(monkeypatch, spread):
    """Otherwise the audit would report raw log-probs for a healthy engine."""
    part = make_observed(monkeypatch, 500, spread).surprise(Sampling(temperature=0.9))
    assert part == pytest.approx(
        make_observed(monkeypatch, SIZE, spread).surprise(Sampling(temperature=0.9)), rel=0.01
    )


@pytest.mark.parametrize("spread", [0.3, 3.0], ids=["flat", "peaked"])
@pytest.mark.parametrize(
    "asked",
    [
        Sampling(),
        Sampling(temperature=0.7),
        Sampling(repetition_penalty=1.2),
        Sampling(top_p=0.95),
        Sampling(top_p=0.2),
        Sampling(top_k=20),
    ],
)
def test_what_is_left_out_is_counted(monkeypatch, spread, asked):
    """Else every log-prob of a flat distribution would be too large, and no law would fit a healthy engine."""
    part = make_observed(monkeypatch, 500, spread).logprobs(asked)
    full = make_observed(monkeypatch, SIZE, spread).logprobs(asked)
    both = part.isfinite() & full.isfinite()
    assert torch.allclose(part[both], full[both], atol=2e-3)
    # It is unknown whether an id outside the stored ids is in the nucleus.
    assert (part.isfinite() | ~full.isfinite()).all()
