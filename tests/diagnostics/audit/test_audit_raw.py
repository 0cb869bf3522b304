"""Log-probs at temperature 1 instead of 0.8: the sampled ids show whether they are raw or sampling is wrong."""

import pytest
import torch

from diagnostics.audit.live import sampled_ids
from diagnostics.audit.live.estimation import Fit
from diagnostics.audit.live.sampling_distribution import Completion, Observed, Sampling
from diagnostics.audit.results import FAULT, MASKED, Result

ASKED = Sampling(temperature=0.8)


def separate(drawn_at, mode="", count=300):
    """Return the findings for samples at a temperature whose log-probs are those of temperature 1."""
    generator = torch.Generator().manual_seed(3)
    logits = 2 * torch.randn(count, 64, generator=generator, dtype=torch.float64)
    ids = torch.multinomial((logits / drawn_at).softmax(-1), 1, generator=generator)
    values = logits.log_softmax(-1).gather(1, ids)[:, 0]
    observed = Observed([Completion((1,), tuple(ids[:, 0].tolist()), tuple(values.tolist()))], [logits])
    audit = Fit(Sampling(), 0.0, ("temperature",))
    law = [Result("sampling/temperature", FAULT, "P5")]
    answers, of_ids = sampled_ids.separate_raw(observed, audit, ASKED, mode, law, [])
    facts = [fact.name for item in (*answers, *of_ids) for fact in item.evidence]
    return {item.family: item.outcome for item in (*answers, *of_ids)}, facts


def test_ids_of_what_was_asked_for_make_it_raw():
    """The sampling check must be repeated after that is fixed."""
    assert separate(0.8) == ({"sampling": MASKED, "logprobs/raw": FAULT}, [])


def test_ids_of_what_is_reported_make_it_the_engines_law():
    """The ids fit the reported log-probs, so the fault stays with the engine's sampling parameters."""
    assert separate(1.0) == ({"sampling/temperature": FAULT}, [])


@pytest.mark.parametrize(
    ("mode", "told"), [("raw_logprobs", "logprobs/raw"), ("processed_logprobs", "sampling/temperature")]
)
def test_what_the_server_says_decides_before_the_ids(mode, told):
    """Be it against them."""
    assert separate(0.9, mode)[0][told] == FAULT


@pytest.mark.parametrize(("gap", "expected"), [(0.02, True), (2.0, False)])
def test_ids_at_the_border_of_a_cut_are_no_surprise(gap, expected):
    """Ids at the border of top-k are expected: of 300, about 10 are the sixth where five are allowed."""
    generator = torch.Generator().manual_seed(4)
    logits = torch.randn(300, 32, generator=generator, dtype=torch.float64).sort(1, descending=True).values
    logits[:, 5:] -= (logits[:, 5] - logits[:, 4] + gap)[:, None]
    ids = torch.multinomial(logits[:, :5].softmax(-1), 1, generator=generator)
    ids[:60][ids[:60] == 4] = 5
    assert 5 < int((ids == 5).sum()) < 20
    values = logits.log_softmax(-1).gather(1, ids)[:, 0]
    observed = Observed([Completion((1,), tuple(ids[:, 0].tolist()), tuple(values.tolist()))], [logits])
    got, mean, deviation = observed.surprise(Sampling(top_k=5))
    assert (abs(got - mean) < 5 * deviation) is expected
