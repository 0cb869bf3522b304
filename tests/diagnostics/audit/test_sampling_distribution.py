"""`Observed` computes the same distribution as the fake server.

If it stores only the likeliest ids of a large vocabulary, its log-probs stay within 0.002 of those with all ids, where
both are finite.
"""

import random

import pytest
import torch

from diagnostics.audit.live import sampling_distribution
from diagnostics.audit.live.sampling_distribution import Completion, Observed, Sampling
from tests.diagnostics.audit.fake_vllm_server import distribution

# The 5504 ids that are not stored fill 128 bins of equal size.
POSITIONS, VOCABULARY = 6, 6004


def make_observed(monkeypatch, stored_ids, spread):
    """Sample from random logits of this spread; only the `stored_ids` likeliest ids of each position are stored."""
    monkeypatch.setattr(sampling_distribution, "_KEPT", stored_ids)
    generator = torch.Generator().manual_seed(2)
    logits = spread * torch.randn(POSITIONS, VOCABULARY, generator=generator, dtype=torch.float64)
    ids = torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0].tolist()
    return Observed([Completion((1, 2), tuple(ids), (0.0,) * POSITIONS)], [logits])


@pytest.mark.parametrize("spread", [0.3, 3.0], ids=["flat", "peaked"])
@pytest.mark.parametrize(
    "sampling",
    [Sampling(), Sampling(temperature=0.7), Sampling(repetition_penalty=1.2), Sampling(top_p=0.95),
     Sampling(top_p=0.2), Sampling(top_k=20)],
)  # fmt: skip
def test_probability_of_unstored_ids_is_accounted_for(monkeypatch, spread, sampling):
    """Log-probs with 500 stored ids of a position equal those with all ids within 0.002, where both are finite.

    Without the other ids, every log-prob of a flat distribution would be too large.
    """
    part, full = (make_observed(monkeypatch, stored, spread) for stored in (500, VOCABULARY))
    logprobs, expected = part.logprobs(sampling), full.logprobs(sampling)
    both = logprobs.isfinite() & expected.isfinite()
    assert torch.allclose(logprobs[both], expected[both], atol=2e-3)
    # It is unknown whether an id that is not stored is in the nucleus.
    assert (logprobs.isfinite() | ~expected.isfinite()).all()
    hot = Sampling(temperature=0.9)
    assert part.total_logprob(hot) == pytest.approx(full.total_logprob(hot), rel=0.01)


@pytest.mark.parametrize("seed", range(10))
def test_distribution_equals_the_fake_servers(seed):
    """The audit computes the same distributions as the fake server, which follows vLLM's order position by position."""
    draw, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    prompt, ids = draw.choices(range(50), k=5), draw.choices(range(50), k=8)
    logits = 3 * torch.randn(len(ids), 50, generator=generator, dtype=torch.float64)
    truncations = (1.0, 0.9, 0.5), (0, 5, 20), (0.0, 0.05)
    penalties = (1.0, 1.2), (0.0, 0.5), (0.0, 0.3)
    sampling = Sampling(*map(draw.choice, ((1.0, 0.7, 1.4), *truncations, *penalties)))
    observed = Observed([Completion(tuple(prompt), tuple(ids), (0.0,) * len(ids))], [logits])
    expected = torch.stack([distribution(logits[n], sampling, prompt, ids[:n]) for n in range(len(ids))])
    assert torch.allclose(observed.distribution(sampling).exp(), expected.exp(), atol=1e-12)
    sampled = expected.gather(1, torch.tensor(ids)[:, None])[:, 0]
    assert torch.allclose(observed.logprobs(sampling).exp(), sampled.exp(), atol=1e-12)
