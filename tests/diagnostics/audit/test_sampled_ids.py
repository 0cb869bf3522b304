"""Sampled ids show whether log-probs are raw; rounding at a top-k border is tolerated."""

import pytest
import torch

from diagnostics.audit.live import sampled_ids
from diagnostics.audit.live.sampling_distribution import Completion, Observed, Sampling
from diagnostics.audit.live.sampling_estimation import Fit
from diagnostics.audit.results import FAULT, MASKED, Result


def findings_for(temperature, mode=""):
    """Return the outcomes by family: ids are sampled at `temperature`, log-probs are at 1, and 0.8 was requested."""
    generator = torch.Generator().manual_seed(3)
    logits = 2 * torch.randn(300, 64, generator=generator, dtype=torch.float64)
    ids = torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator)
    observed = observe(logits, ids)
    fit, results = Fit(Sampling(), 0.0, ("temperature",)), [Result("sampling/temperature", FAULT, "P5")]
    results, by_ids = sampled_ids.replace_refuted_results(
        observed, fit, Sampling(temperature=0.8), mode, results, []
    )
    return {item.family: item.outcome for item in (*results, *by_ids)}


def observe(logits, ids):
    """Return the observation of these sampled ids with log-probs at temperature 1."""
    values = logits.log_softmax(-1).gather(1, ids)[:, 0]
    return Observed([Completion((1,), tuple(ids[:, 0].tolist()), tuple(values.tolist()))], [logits])


@pytest.mark.parametrize(
    ("temperature", "mode", "outcomes"),
    [
        (0.8, "", {"sampling": MASKED, "logprobs/raw": FAULT}),
        (1.0, "", {"sampling/temperature": FAULT}),
        (0.9, "raw_logprobs", {"sampling": MASKED, "logprobs/raw": FAULT}),
        (0.9, "processed_logprobs", {"sampling/temperature": FAULT}),
    ],
)
def test_sampled_ids_show_raw_logprobs_unless_the_server_reports_its_mode(temperature, mode, outcomes):
    assert findings_for(temperature, mode) == outcomes


@pytest.mark.parametrize(("gap", "is_tolerated"), [(0.02, True), (2.0, False)])
def test_only_a_small_gap_at_the_top_k_border_is_tolerated(gap, is_tolerated):
    """With top_k=5, a few tokens of rank 6 are tolerated only if their logits are close to those of rank 5."""
    generator = torch.Generator().manual_seed(4)
    logits = torch.randn(300, 32, generator=generator, dtype=torch.float64).sort(1, descending=True).values
    logits[:, 5:] -= (logits[:, 5] - logits[:, 4] + gap)[:, None]
    ids = torch.multinomial(logits[:, :5].softmax(-1), 1, generator=generator)
    ids[:60][ids[:60] == 4] = 5
    assert 5 < int((ids == 5).sum()) < 20
    total, mean, deviation = observe(logits, ids).total_logprob(Sampling(top_k=5))
    assert (abs(total - mean) < 5 * deviation) is is_tolerated
