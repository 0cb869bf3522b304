"""Sampling obeys top_p, top_k, min_p and repetition_penalty; log-probs are those of the truncated distribution.

An engine that can't truncate is refused.
"""

import json
import math
from dataclasses import replace

import pytest
import torch

from grpo_core import run
from grpo_core.config import ConfigError
from grpo_core.rollout.engine import check_answers
from grpo_core.rollout.sampling_distribution import SamplingDistribution
from grpo_core.rollout.transformers_engine import TransformersEngine
from grpo_core.rollout.vllm_requests import sampling_arguments
from grpo_core.rollout.wire import decode_requests, encode_requests
from grpo_core.tasks.model import load_model
from grpo_core.types import Request, SamplingParams
from tests.grpo_core.conftest import read_lines, run_training

NONE = SamplingParams(max_tokens=8)
CHANGES = [
    {"top_k": 3}, {"top_p": 0.7}, {"min_p": 0.3, "temperature": 0.3}, {"repetition_penalty": 1.7},
    {"top_k": 5, "top_p": 0.6, "repetition_penalty": 0.8, "temperature": 0.7},
    {"top_k": 4, "min_p": 0.8, "temperature": 1.5},
]  # fmt: skip


def test_repetition_penalty_applies_to_prompt_and_completion():
    """A positive logit is divided and a negative one multiplied, once per id."""
    logits, params = torch.tensor([[1.0, -1.0, 2.0, -2.0]]), replace(NONE, repetition_penalty=2.0)
    distribution = SamplingDistribution(params, [(0, 1, 1)])
    assert distribution.logits(logits).tolist() == [[0.5, -2.0, 2.0, -2.0]]
    distribution.append(torch.tensor([2]))
    distribution.append(torch.tensor([2]))
    assert distribution.logits(logits).tolist() == [[0.5, -2.0, 1.0, -2.0]]


@pytest.mark.parametrize("changes", [*CHANGES, {"top_k": 99}, {"top_p": 1e-9}])
def test_distribution_matches_transformers(changes):
    """The logits equal those of transformers' processors, applied in the order of `generate`."""
    from transformers.generation import logits_process as peer

    params = replace(NONE, **changes)
    logits = torch.randn(6, 11, generator=torch.Generator().manual_seed(0)) * 2
    ids = torch.randint(11, (6, 4), generator=torch.Generator().manual_seed(1))
    expected = logits
    penalty = params.repetition_penalty
    for applies, processor in (
        (penalty != 1, lambda: peer.RepetitionPenaltyLogitsProcessor(penalty)),
        (True, lambda: peer.TemperatureLogitsWarper(params.temperature)),
        (params.top_k, lambda: peer.TopKLogitsWarper(params.top_k)),
        (params.top_p < 1, lambda: peer.TopPLogitsWarper(params.top_p)),
        (params.min_p, lambda: peer.MinPLogitsWarper(params.min_p)),
    ):
        expected = processor()(ids, expected) if applies else expected
    actual = SamplingDistribution(params, list(map(tuple, ids.tolist()))).logits(logits)
    assert torch.equal(actual, expected)


@pytest.mark.parametrize("changes", CHANGES)
def test_engine_reports_truncated_logprobs(model_dir, changes):
    """Each log-prob equals the one computed from the model's logits after the tokens before it."""
    engine, params = TransformersEngine(model_dir, max_model_len=32), replace(NONE, **changes)
    requests = [Request(f"r{index}", (1, 2, index % 3), seed=index) for index in range(6)]
    completions = check_answers(engine.generate(requests, params), requests, "transformers")
    model, known = load_model(model_dir), engine._known_ids
    for request, completion in zip(requests, completions, strict=True):
        for index, (token, logprob) in enumerate(zip(completion.ids, completion.logprobs, strict=True)):
            before = request.prompt_ids + completion.ids[:index]
            with torch.no_grad():
                logits = model(torch.tensor([before])).logits[:, -1, :known]
            expected = SamplingDistribution(params, [before]).logits(logits).log_softmax(-1)[0, token]
            assert logprob == pytest.approx(float(expected), abs=1e-5)
    assert engine.generate(requests, NONE) != completions


def test_engines_get_truncation_parameters():
    """vLLM gets -1 for no top_k; grpo_core's server gets the parameters by JSON."""
    params, request = SamplingParams(4, 0.7, (3,), 0.9, 5, 0.0, 1.1), Request("r", (1,), seed=0)
    names = ("top_p", "top_k", "min_p", "repetition_penalty")
    arguments = sampling_arguments(params, request)
    assert [arguments[name] for name in names] == [0.9, 5, 0.0, 1.1]
    assert [sampling_arguments(NONE, request)[name] for name in names] == [1.0, -1, 0.0, 1.0]
    body = json.loads(json.dumps(encode_requests([request], params)))
    assert decode_requests(body) == ([request], params)


@pytest.mark.parametrize("mode", ["colocate", "server"])
def test_run_trains_on_truncated_logprobs(short_run, mode):
    """Sampled tokens are likelier in the truncated distribution, so the first importance ratios are below 1."""
    document, (entry,) = run_training(short_run(mode, **{"sampling.top_k": 3, "train.steps": 1}))
    assert entry["importance_ratio/max"] < 1
    # The probability of the three likeliest of thirteen ids, which is above 3 / 13.
    assert entry["importance_ratio/mean"] == pytest.approx(3 / 12, abs=0.1)
    assert document["max_logprob_difference"] < 1e-3  # of the proofs
    samples = read_lines(document["completions"])
    assert min(value for sample in samples for value in sample["logprobs"]) > math.log(0.1)


def test_engine_without_truncation_is_refused(short_run, monkeypatch):
    """An older server would ignore the parameters."""
    able = TransformersEngine.capabilities
    monkeypatch.setattr(TransformersEngine, "capabilities", able.without(truncation="it is old"))
    config = short_run(**{"sampling.min_p": 0.1})
    message = r"sampling.min_p = 0.1: the transformers engine samples at a temperature"
    with pytest.raises(ConfigError, match=message):
        run.train(config, lambda _: None)
