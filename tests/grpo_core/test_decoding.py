"""Layers that read the same are one product: a weight sync reaches it, to the bit, in every kind of model."""

import pytest
import torch

from grpo_core.config import ModelConfig
from grpo_core.learn.policy import inject, merged
from grpo_core.rollout.decoding import Decoder
from grpo_core.rollout.embedded import TransformersEngine
from grpo_core.rollout.engine import EngineError
from grpo_core.types import Request, SamplingParams
from tests.grpo_core.test_sharing import PROMPTS, built

KINDS = [
    ("llama", {}),
    ("llama", {"attention_bias": True, "mlp_bias": True}),
    ("mistral", {"tie_word_embeddings": True, "num_key_value_heads": 1}),
    ("qwen2", {}),  # with biases of queries, keys and values alone
    ("qwen3", {"tie_word_embeddings": True}),
]
REQUESTS = [Request(f"r{place}", (1, 2, 3, place // 2), seed=place) for place in range(4)]
PARAMS = SamplingParams(max_tokens=5)


def other(model):
    """Other weights and biases of the same names, none of them zero."""
    generator = torch.Generator().manual_seed(1)
    return [
        (name, torch.randn(value.shape, generator=generator) / 8) for name, value in model.named_parameters()
    ]


def decoded(model, tokens=3):
    """The logits behind some tokens, by a decoder made now."""
    decoder = Decoder(model, PROMPTS, room=tokens)
    for token in range(tokens):
        decoder.append(torch.full((len(PROMPTS),), token + 4))
    return decoder.logits_BV


@pytest.mark.parametrize(("kind", "settings"), KINDS)
def test_what_is_written_into_the_parts_decodes(kind, settings):
    """To the bit as in a model that never held anything else, and up to rounding as transformers has it."""
    model, fresh = built(kind, **settings), built(kind, **settings)
    with torch.inference_mode():
        before = decoded(model)
    with torch.no_grad():
        for item in (model, fresh):
            for name, value in other(item):
                item.get_parameter(name).copy_(value)
        actual = decoded(model)
        assert not torch.equal(actual, before)
        assert torch.equal(actual, decoded(fresh))
        for row, prompt in enumerate(PROMPTS):
            logits = fresh(torch.tensor([[*prompt, 4, 5, 6]])).logits[0, -1]
            torch.testing.assert_close(actual[row], logits, rtol=0, atol=1e-4)


@pytest.fixture
def folder(tmp_path):
    """Make a checkpoint folder."""
    built("qwen2").save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_an_engine_samples_what_one_that_never_held_older_weights_does(folder):
    """Behind a sync between two calls, one behind sleeping, and one whose tensors lie otherwise in memory."""
    engine, fresh = (TransformersEngine(folder, max_model_len=32) for _ in range(2))
    sent = other(engine._model)
    fresh.update_weights(sent, 1)
    expected = fresh.generate(REQUESTS, PARAMS)
    engine.update_weights([(name, value * 2) for name, value in sent], 0)
    older = engine.generate(REQUESTS, PARAMS)
    assert [item.logprobs for item in older] != [item.logprobs for item in expected]
    engine.update_weights([(name, value.t().contiguous().t()) for name, value in sent], 1)
    assert engine.generate(REQUESTS, PARAMS) == expected
    engine.sleep()
    assert all(not value.untyped_storage().nbytes() for value in engine._model.parameters())
    engine.wake()
    engine.update_weights(sent, 1)
    assert engine.generate(REQUESTS, PARAMS) == expected
    assert engine.fingerprint() == fresh.fingerprint()


def test_a_partial_sync_changes_nothing(folder):
    """Without the keys' weight, or with one of another shape, what was sampled is sampled again."""
    engine = TransformersEngine(folder, max_model_len=32)
    sent = dict(other(engine._model))
    engine.update_weights(sent.items(), 0)
    expected, key = engine.generate(REQUESTS, PARAMS), "model.layers.0.self_attn.k_proj.weight"
    for wrong in ({key: None}, {key: sent[key][:1]}):
        changed = {name: wrong.get(name, value * 2) for name, value in sent.items()}
        with pytest.raises(EngineError, match="k_proj"):
            engine.update_weights([(name, value) for name, value in changed.items() if value is not None], 1)
        assert engine.generate(REQUESTS, PARAMS) == expected


def test_merged_adapters_reach_the_product(folder):
    """Adapters of the queries only, or of the fused MLP as well, give the result of a model with merged weights."""
    trained = built("qwen2")
    with torch.random.fork_rng(devices=[]):
        inject(trained, ModelConfig(lora_rank=2, lora_targets=("q_proj", "up_proj")), 0)
    for name, value in trained.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(value, std=0.5)
    engine, plain = TransformersEngine(folder, max_model_len=32), built("qwen2")
    engine.generate(REQUESTS, PARAMS)
    engine.update_weights(merged(trained), 0)
    with torch.no_grad():
        plain.load_state_dict(dict(merged(trained)))
        assert torch.equal(decoded(engine._model), decoded(plain))
        assert not torch.equal(decoded(plain), decoded(built("qwen2")))
