"""The trainer's log-probs match closed forms, and numeric failures reproduce on the whole engine in a cell."""

import math

import pytest
import torch

from repro.drivers import whole_engine
from repro.drivers.whole_engine import Sampled
from tests.cells import attempts_in_cell

CELL = "vllm-0.31.0+trl-1.16.0"


class FixedLogits(torch.nn.Module):
    """A model that returns the same logits at each position."""

    def __init__(self, *logits):
        super().__init__()
        self.logits = torch.tensor(logits)

    def forward(self, ids):
        return type("Out", (), {"logits": self.logits.expand(*ids.shape, -1)})


def test_trainer_logprob_matches_closed_form():
    """Log-probs follow temperature and top-p; the token that crosses the nucleus is in, the next is out."""
    weights = [0.5, 0.3, 0.15, 0.05]
    policy = FixedLogits(*map(math.log, weights))
    sampled = Sampled((0,), (0, 1, 3), (0.0,) * 3)
    assert whole_engine.trainer_logprobs(policy, sampled) == pytest.approx(
        [math.log(weights[i]) for i in (0, 1, 3)]
    )
    squared = [weight**2 for weight in weights]
    at_half = [math.log(squared[i] / sum(squared)) for i in (0, 1, 3)]
    assert whole_engine.trainer_logprobs(policy, sampled, temperature=0.5) == pytest.approx(at_half)
    within = whole_engine.trainer_logprobs(policy, sampled, top_p=0.7)
    assert within == pytest.approx([math.log(0.5 / 0.8), math.log(0.3 / 0.8), -math.inf])


def test_work_counts_agreeing_tokens():
    """Tokens within rounding count as finished; the note has the largest difference and the mean ratio."""
    work = whole_engine.count_agreeing([(-1.0, -1.0), (-1.0, -1.0001), (-1.0, -2.0)])
    assert (work.finished, len(work.due), work.complete) == (2, 3, False)
    assert work.describe() == (
        "2 of 3 log-probs are the trainer's; largest difference 1, trainer / engine ratio 0.717 (geometric mean)"
    )


@pytest.mark.vllm
@pytest.mark.parametrize(("code", "mitigation"), [("NUM001", "processed_logprobs"), ("SYN025", "all_names")])
def test_real_engine_fails_and_mitigation_helps(code, mitigation):
    """Without the mitigation no log-prob equals the trainer's; with it, each does."""
    bare, helped = attempts_in_cell(CELL, code, "--mitigation", mitigation, "--timeout", "250").values()
    assert (bare["outcome"], bare["finished"]) == ("reproduced", 0)
    assert (helped["outcome"], helped["finished"]) == ("mitigated", helped["expected"])
