"""Advantages of tokens, gates of corrections, and deviations of differences: by hand, in runs, and from records."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from grpo_core import run
from grpo_core.config import ConfigError
from grpo_core.learn.forms.advantages import wide_advantages
from grpo_core.learn.forms.loss import wide_policy_loss
from grpo_core.learn.forms.optimal import logprobs_and_squares, optimal_token
from grpo_core.learn.forms.rejection import gated
from grpo_core.learn.logprobs import chunked_logprobs
from grpo_core.learn.loss import Streams, token_weights
from grpo_core.records.recording import SCHEMA_2, read_step
from grpo_core.records.replay import replay
from grpo_core.settings import load
from grpo_core.turns.spoken import TokenSample
from grpo_core.wide import GATES, WideLossConfig

MASK = torch.tensor([[True, True, False], [True, True, True]])


@pytest.mark.parametrize("gate", GATES)
def test_a_gate_shuts_where_its_statistic_is_out_of_bounds(gate):
    """By hand; what stands where nothing was sampled has no influence, and an open token keeps its own weight."""
    proximal = torch.tensor([[-1.0, -0.5, math.nan], [-1.0, -0.7, -2.0]])
    behaviour = torch.tensor([[-1.1, -0.5, 3.0], [-1.0, -2.2, -2.0]])
    options = WideLossConfig(
        correction="mask", correction_gate=gate, correction_floor=0.7, correction_cap=1.3, gate_limit=0.1
    )
    found = gated(proximal, behaviour, MASK, options)
    expected = []
    for row, marks in enumerate(MASK.tolist()):
        places = [place for place, mark in enumerate(marks) if mark]
        logs = [float(proximal[row, place] - behaviour[row, place]) for place in places]
        pairs = [(math.exp(behaviour[row, place]), math.exp(proximal[row, place])) for place in places]
        kind = gate.partition("_")[2]
        stats = {
            "ratio": logs,
            "tv": [abs(p - q) for p, q in pairs],
            "kl": [p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q)) for p, q in pairs],
        }[kind]
        if gate.startswith("sequence"):
            stats = [sum(stats) / len(stats)] * len(stats)
        stays = [0.7 <= math.exp(s) <= 1.3 if kind == "ratio" else s <= 0.1 for s in stats]
        expected.append([math.exp(log) if stay else 0.0 for log, stay in zip(logs, stays, strict=True)])
    flat = [value for row in expected for value in row]
    assert found[MASK].tolist() == pytest.approx(flat, rel=1e-6)
    assert 0.0 in flat
    assert max(flat) > 1


def test_what_a_gate_leaves_out_counts_in_the_normaliser():
    """As with the mask of weights, and unlike `loss.reject`."""
    current = torch.tensor([[-1.0, -0.5, 0.0], [-1.0, -0.7, -2.0]], requires_grad=True)
    streams = Streams(torch.tensor([[-1.0, -0.5, 0.0], [-1.0, -2.7, -2.0]]), current.detach())
    options = WideLossConfig(
        correction="mask", correction_gate="sequence_ratio", correction_floor=0.9, correction_cap=1.1
    )
    weights = token_weights(MASK, "token", 3)
    wide_policy_loss(current, streams, torch.ones(2), MASK, weights, options).value.backward()
    assert current.grad.tolist() == [pytest.approx([-0.2, -0.2, 0.0]), [0.0, 0.0, 0.0]]


def test_a_deviation_may_be_that_of_the_differences():
    """ms-swift's reinforce_plus_plus: less the group's mean, over the batch's deviation of that."""
    options = WideLossConfig(
        advantage_deviation="differences", advantage_scale="batch", advantage_epsilon=0.0
    )
    found = wide_advantages([[0.0, 1.0], [5.0, 8.0]], [[1, 1], [1, 1]], options)
    spread = torch.tensor([-0.5, 0.5, -1.5, 1.5]).std()
    assert [v for row in found for v in row] == pytest.approx([v / spread for v in (-0.5, 0.5, -1.5, 1.5)])


def test_the_optimal_baseline_weighs_by_cost():
    """At each place, of those that are there; a lone one has none, nor have the last tokens of the only longest."""
    found = optimal_token([1.0, 0.0, 2.0], [[0.5, 0.5, 1.0], [1.0], [0.5, 1.5]])
    first = (1 * 0.5 + 2 * 0.5) / 2
    second = (1 * 1.0 + 2 * 2.0) / 3
    assert found[0] == pytest.approx([1 - first, 1 - second, 1.0])
    assert found[1] == pytest.approx([-first])
    assert found[2] == pytest.approx([2 - first, 2 - second])
    assert optimal_token([0.7], [[0.1, 0.2]]) == [[0.7, 0.7]]


def test_sums_of_squares_are_the_naive_ones():
    """The log-probs are the plain head's, in bits."""
    generator = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(shape, generator=generator) for shape in ((7, 4), (11, 4)))
    ids = torch.randint(11, (7,), generator=generator)
    logprobs, squares = logprobs_and_squares(hidden, weight, ids, temperature=0.7, chunk=3)
    assert torch.equal(logprobs, chunked_logprobs(hidden, weight, ids, temperature=0.7, chunk=3)[0])
    assert torch.allclose(squares, torch.softmax(hidden @ weight.T / 0.7, -1).square().sum(-1))


def test_a_run_with_the_optimal_baseline_is_recorded_and_replayed(short_run):
    """Each token has an advantage, in the record, too; a replay makes the same of the rewards, or others."""
    settings = {"loss.advantage_baseline": "optimal_token", "loss.advantage_scale": "none"}
    config = short_run(**settings, **{"train.steps": 2, "output.record_every": 1, "train.warmup_updates": 0})
    document = run.train(config, lambda entry: None)
    assert document["outcome"] == "ok", document["error"]
    folder = Path(document["metrics"]).parent
    recorded = read_step(folder, 1)
    assert recorded.entry["schema"] == SCHEMA_2
    for sample in recorded.samples:
        assert isinstance(sample, TokenSample)
        assert math.isclose(sample.advantage, sum(sample.advantages) / len(sample.advantages), abs_tol=1e-12)
    assert any(len(set(sample.advantages)) > 1 for sample in recorded.samples)
    again = replay(folder, 1)
    assert again["outcome"] == "equal"
    assert replay(folder, 1, None, ["--loss.advantage_baseline=optimal_token"])["loss"] == again["loss"]
    other = replay(folder, 1, None, ["--loss.advantage_baseline=group"])
    assert other["loss"] != again["loss"]
    lines = [json.loads(line) for line in Path(document["metrics"]).read_text().splitlines()]
    assert all(entry["grad_norm"] > 0 for entry in lines)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["loss.correction_gate=token_tv"], "set loss.correction = 'mask'"),
        (["loss.advantage_baseline=optimal_token"], "set loss.advantage_scale = 'none'"),
        (
            ["loss.advantage_baseline=optimal_token", "loss.advantage_scale=none", "model.dtype=bfloat16"],
            "use float32",
        ),
    ],
)
def test_what_contradicts_is_refused(settings, says):
    """By name."""
    with pytest.raises(ConfigError, match=says):
        load(None, [f"--{setting}" for setting in settings])
