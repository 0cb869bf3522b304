"""Weight syncs update the decoder's fused weights, which join projections with a common input (q/k/v, gate/up).

A refused sync changes nothing. test_prompt_sharing.py compares the decoder's logits with the model's.
"""

import pytest
import torch

from grpo_core.config import ModelConfig
from grpo_core.learn.policy import inject_adapters, merged_parameters
from grpo_core.rollout.engine import EngineError
from grpo_core.rollout.llama_decoder import LlamaDecoder
from grpo_core.rollout.transformers_engine import TransformersEngine
from grpo_core.types import Request, SamplingParams
from tests.grpo_core.test_prompt_sharing import PROMPTS, build_model

KINDS = [
    ("llama", {}),
    ("llama", {"attention_bias": True, "mlp_bias": True}),
    ("mistral", {"tie_word_embeddings": True, "num_key_value_heads": 1}),
    ("qwen2", {}),  # has biases only for queries, keys and values
    ("qwen3", {"tie_word_embeddings": True}),
]
REQUESTS = [Request(f"r{place}", (1, 2, 3, place // 2), seed=place) for place in range(4)]
PARAMS = SamplingParams(max_tokens=5)


def other_weights(model):
    """Return other, nonzero weights and biases of the same names."""
    generator = torch.Generator().manual_seed(1)
    shapes = [(name, value.shape) for name, value in model.named_parameters()]
    return [(name, torch.randn(shape, generator=generator) / 8) for name, shape in shapes]


def decode_logits(model, tokens=3):
    """Return the logits after the tokens, from a fresh decoder."""
    decoder = LlamaDecoder(model, PROMPTS, room=tokens)
    for token in range(tokens):
        decoder.append(torch.full((len(PROMPTS),), token + 4))
    return decoder.logits_BV


@pytest.mark.parametrize(("kind", "settings"), KINDS)
def test_sync_updates_fused_weights(kind, settings):
    """After new weights, the logits equal a fresh model's bit for bit, and transformers' up to rounding."""
    model, fresh = build_model(kind, **settings), build_model(kind, **settings)
    with torch.inference_mode():
        before = decode_logits(model)
    with torch.no_grad():
        for changed in (model, fresh):
            for name, value in other_weights(changed):
                changed.get_parameter(name).copy_(value)
        logits_after = decode_logits(model)
        assert not torch.equal(logits_after, before)
        assert torch.equal(logits_after, decode_logits(fresh))
        for row, prompt in enumerate(PROMPTS):
            logits = fresh(torch.tensor([[*prompt, 4, 5, 6]])).logits[0, -1]
            torch.testing.assert_close(logits_after[row], logits, rtol=0, atol=1e-4)


@pytest.fixture
def folder(tmp_path):
    """Write a checkpoint; return its folder."""
    build_model("qwen2").save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_synced_engine_samples_like_a_fresh_one(folder):
    """A synced engine samples like a fresh one, also after sleep and with non-contiguous tensors."""
    engine, fresh = (TransformersEngine(folder, max_model_len=32) for _ in range(2))
    sent = other_weights(engine._model)
    fresh.update_weights(sent, 1)
    expected = fresh.generate(REQUESTS, PARAMS)
    engine.update_weights([(name, value * 2) for name, value in sent], 0)
    older = engine.generate(REQUESTS, PARAMS)
    assert [completion.logprobs for completion in older] != [completion.logprobs for completion in expected]
    engine.update_weights([(name, value.t().contiguous().t()) for name, value in sent], 1)
    assert engine.generate(REQUESTS, PARAMS) == expected
    engine.sleep()
    assert all(not value.untyped_storage().nbytes() for value in engine._model.parameters())
    engine.wake()
    engine.update_weights(sent, 1)
    assert engine.generate(REQUESTS, PARAMS) == expected
    assert engine.fingerprint() == fresh.fingerprint()


def test_merged_lora_updates_fused_weights(folder):
    """An engine with merged adapters of queries and the MLP computes the logits of a model with merged weights."""
    trained = build_model("qwen2")
    with torch.random.fork_rng(devices=[]):
        inject_adapters(trained, ModelConfig(lora_rank=2, lora_targets=("q_proj", "up_proj")), 0)
    for name, value in trained.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(value, std=0.5)
    engine, plain = TransformersEngine(folder, max_model_len=32), build_model("qwen2")
    engine.generate(REQUESTS, PARAMS)
    engine.update_weights(merged_parameters(trained), 0)
    with torch.no_grad():
        plain.load_state_dict(dict(merged_parameters(trained)))
        assert torch.equal(decode_logits(engine._model), decode_logits(plain))
        assert not torch.equal(decode_logits(plain), decode_logits(build_model("qwen2")))


def test_partial_sync_changes_nothing(folder):
    """A sync without the keys' weight, or with another shape, leaves the samples as they were."""
    engine = TransformersEngine(folder, max_model_len=32)
    sent = dict(other_weights(engine._model))
    engine.update_weights(sent.items(), 0)
    expected, key = engine.generate(REQUESTS, PARAMS), "model.layers.0.self_attn.k_proj.weight"
    for wrong in ({key: None}, {key: sent[key][:1]}):
        changed = {name: wrong.get(name, value * 2) for name, value in sent.items()}
        with pytest.raises(EngineError, match="k_proj"):
            engine.update_weights([(name, value) for name, value in changed.items() if value is not None], 1)
        assert engine.generate(REQUESTS, PARAMS) == expected
