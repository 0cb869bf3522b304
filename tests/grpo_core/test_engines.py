"""Engines are built by name and check inputs and outputs; completions in JSON keep every bit.

Capabilities in JSON may come from older and newer peers. A shared engine keeps the kind of an error. The transformers
engine is bit-identical when repeated, samples by inverse CDF, samples no id without a token, and gives no fingerprint
without weights. What every engine must do is in `conformance/suite.py`.
"""

import json
from contextlib import closing
from dataclasses import replace

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from grpo_core.config import ConfigError, ModelConfig
from grpo_core.machine.world import SharedEngine, World
from grpo_core.rollout.engine import (
    Capabilities,
    EngineError,
    EngineTimeoutError,
    check_answers,
    check_parameters,
)
from grpo_core.rollout.engine_factory import ENGINES, build_engine
from grpo_core.rollout.transformers_engine import sample_tokens
from grpo_core.rollout.wire import (
    decode_capabilities,
    decode_completions,
    encode_capabilities,
    encode_completions,
)
from grpo_core.settings import load
from grpo_core.tasks.model import make_tiny
from grpo_core.types import Completion, Request, SamplingParams
from tests.grpo_core.conftest import engine_config, read_lines, run_training

END = 11
PARAMS = SamplingParams(max_tokens=12, temperature=0.8, stop_ids=(END,))
# Prompts of several lengths, groups of three: r0..r2 share one, and so on.
PROMPTS = [(0, 1, 2, 10), (3, 10), (4, 5, 6, 7, 8, 10), (9, 9, 9, 10)]
REQUESTS = [Request(f"r{i}", PROMPTS[i // 3], seed=100 + i) for i in range(12)]


@pytest.fixture
def transformers_engine(model_dir):
    """Yield the transformers engine on the tiny model."""
    torch.set_num_threads(1)
    with closing(build_engine(engine_config(), model_dir)) as engine:
        yield engine


def test_repeated_requests_are_bit_identical(transformers_engine):
    """The conformance suite allows rounding of log-probs; the transformers engine must be exact."""
    assert transformers_engine.generate(REQUESTS, PARAMS) == transformers_engine.generate(REQUESTS, PARAMS)


def test_fingerprint_needs_weights(transformers_engine):
    """An engine that is asleep, or awake but not updated yet, refuses to give a fingerprint."""
    transformers_engine.sleep()
    with pytest.raises(EngineError, match="fingerprint: the engine is asleep; wake it first"):
        transformers_engine.fingerprint()
    transformers_engine.wake()
    with pytest.raises(EngineError, match="fingerprint: it lost its weights asleep; update them first"):
        transformers_engine.fingerprint()


def test_shared_engine_keeps_the_kind_of_an_error(transformers_engine, monkeypatch):
    """A time-out stays a time-out, which decides the exit code; tested in one process."""

    def time_out(*_):
        raise EngineTimeoutError("no answer")

    monkeypatch.setattr(transformers_engine, "generate", time_out)
    with pytest.raises(EngineTimeoutError, match="no answer"):
        SharedEngine(transformers_engine, World(), per_rank=False).generate(REQUESTS, PARAMS)


def test_model_with_a_nested_text_config_is_sampled(tmp_path):
    """The configuration of a model for text and images has no vocabulary size of its own."""
    text = {"vocab_size": 50, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    text |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
    text["head_dim"] = 16
    vision = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision |= {"image_size": 28, "patch_size": 14}
    config = AutoConfig.for_model("gemma3", text_config=text, vision_config=vision)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    with closing(build_engine(engine_config(), tmp_path)) as engine:
        (completion,) = engine.generate([Request("r", (1, 2, 3), 0)], SamplingParams(max_tokens=4))
    assert len(completion.ids) == 4


def test_inverse_cdf_sampling_follows_the_distribution():
    """Each token's share of the unit interval is its probability at the temperature."""
    logits = torch.tensor([2.0, 0.0, -1.0, float("-inf")])
    draws = (torch.arange(4000, dtype=torch.float64) + 0.5) / 4000
    ids, logprobs = sample_tokens(logits.expand(4000, 4) / 1.5, draws)
    expected = torch.softmax(logits / 1.5, -1)
    shares = torch.bincount(ids, minlength=4) / 4000
    torch.testing.assert_close(shares, expected, rtol=0, atol=5e-4)
    torch.testing.assert_close(logprobs.exp(), expected[ids], rtol=1e-6, atol=0)


GOOD = [Completion("a", (1, 2), (-0.5, -0.1), (0, 0), "stop"), Completion("b", (3,), (-1.0,), (0,), "length")]
PAIRED_REQUESTS = [Request("a", (0,), 1), Request("b", (0,), 2)]


def with_first(completion):
    """Return an answer with this completion in place of the first good one."""
    return encode_completions([completion, GOOD[1]])


def test_serialization_keeps_every_bit():
    exact = [Completion("a", (1,), (-0.1 - 2**-50,), (3,), "stop")]
    body = json.loads(json.dumps(encode_completions(exact)))
    assert decode_completions(body, PAIRED_REQUESTS[:1], "x") == exact


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (encode_completions(GOOD[:1]), "2 requests, 1 completions"),
        (encode_completions(GOOD[::-1]), "request a was answered with 'b'"),
        ({"completions": [{"request_id": "a"}]}, "the answer is not a list of completions"),
        ([], "the answer is not a list of completions"),
        (
            with_first(Completion("a", (), (), (), "stop")),
            "request a ended without a usable completion: 0 ids, reason 'stop'",
        ),
        (
            with_first(replace(GOOD[0], finish_reason="abort")),
            "request a ended without a usable completion: 2 ids, reason 'abort'",
        ),
        (with_first(Completion("a", (1,), (float("nan"),), (0,), "stop")), "log-probs that are none"),
        (with_first(Completion("a", (1,), (0.7,), (0,), "stop")), "log-probs that are none"),
    ],
)
def test_mismatched_completions_are_refused(answer, message):
    with pytest.raises(EngineError, match="x engine, generate") as caught:
        decode_completions(answer, PAIRED_REQUESTS, "x")
    assert message in str(caught.value)


def test_unexpected_parameters_are_refused_by_name():
    """The error names three and counts the rest. An integer parameter, which would be converted, is refused."""
    stored = {"a": (1, 2), "b": (3,), "c": (4,)}
    received = {name: torch.zeros(shape) for name, shape in stored.items()}
    check_parameters(dict(reversed(received.items())), stored, "x")
    second = {"a": torch.zeros(2, 1), "d": torch.zeros(5), "e": torch.zeros(6)}
    for wrong, message in (
        (second, "b is missing; c is missing; d is not in the model; and 2 more"),
        (received | {"b": received["b"].int()}, "b is of torch.int32"),
    ):
        with pytest.raises(EngineError) as caught:
            check_parameters(wrong, stored, "x")
        assert str(caught.value) == f"x engine, update_weights: nothing was loaded: {message}"


ABLE = Capabilities(seeds=True, fingerprint=True, sleep=True, truncation=True)


def test_capabilities_are_serialized_with_reasons():
    able = ABLE.without(sleep="it is behind a wire", update="nor can it be sent to")
    assert decode_capabilities(encode_capabilities(able), "x") == able


def test_protocol_accepts_older_and_newer_peers():
    """Missing fields get defaults; unknown fields are ignored."""
    actual = decode_capabilities({"seeds": True, "fingerprint": True, "sleep": True, "flies": True}, "x")
    assert actual == replace(ABLE, truncation=False)


@pytest.mark.parametrize(
    "body", [None, [], {}, {"seeds": True, "fingerprint": True, "sleep": False, "why_not": 3}]
)
def test_invalid_capabilities_are_refused(body):
    """The error names the engine."""
    with pytest.raises(EngineError, match="x engine: its capabilities can't be read"):
        decode_capabilities(body, "x")


def test_engine_names_match_the_build_table():
    """The settings accept the names of the table; the settings and `build_engine` refuse another name."""
    refusal = r"rollout\.engine = 'other': expected one of 'transformers', 'vllm'"
    with pytest.raises(ConfigError, match=refusal):
        load(None, ["--rollout.engine=other"])
    assert [load(None, [f"--rollout.engine={name}"]).rollout.engine for name in ENGINES] == list(ENGINES)
    with pytest.raises(ValueError, match="no engine is called 'other'"):
        build_engine(engine_config(engine="other"), "")


@pytest.mark.parametrize("mode", ["colocate", "server"])
def test_ids_without_a_token_are_never_sampled(short_run, tmp_path, mode):
    """Such ids have probability zero, so trainer and engine agree on the log-probs of all others."""
    make_tiny(tmp_path / "model", ModelConfig(), "abcdefghij", seed=0)
    wide = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    wide.resize_token_embeddings(64)
    with torch.no_grad():
        wide.lm_head.weight[13:] = wide.lm_head.weight[:13].repeat(4, 1)[:51]
    wide.save_pretrained(tmp_path / "model")
    document, _ = run_training(short_run(mode, **{"model.path": tmp_path / "model", "train.steps": 2}))
    assert max(token for line in read_lines(document["completions"]) for token in line["ids"]) < 13
    assert document["max_logprob_difference"] < 1e-5


def test_sampled_id_without_a_token_is_refused():
    """A completion with such an id is refused because no reward function could judge its text."""
    request = Request("r", (1,), seed=0)
    answer = Completion("r", (13,), (-1.0,), (0,), "stop")
    with pytest.raises(EngineError, match="outside of 0 to 12, which tokenizer and model have"):
        check_answers([answer], [request], "x", vocabulary=13)
