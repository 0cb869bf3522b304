"""Prompts that are computed once per group give the log-probs and gradients of single rows, for four kinds of model.

The logits of `LlamaDecoder` and `EqualLengthDecoder` equal the model's. `can_share` refuses unsupported models.
"""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from grpo_core.learn.logprobs import can_share, completion_logprobs
from grpo_core.rollout.llama_decoder import LlamaDecoder
from grpo_core.rollout.transformers_engine import EqualLengthDecoder
from tests.gpu.devices import ON_GPU

SIZES = {
    "vocab_size": 50, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "initializer_range": 0.1, "tie_word_embeddings": False,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
}  # fmt: skip
PROMPTS = [(1, 2, 3), (1, 2, 3), (4, 5, 6, 7, 8, 9, 10), (1, 2, 3), (11,), (4, 5, 6, 7, 8, 9, 10)]
LENGTHS = [5, 1, 3, 4, 2, 5]
COMPLETIONS = [[(7 * row + 3 * place) % 50 for place in range(length)] for row, length in enumerate(LENGTHS)]


def build_model(kind: str, **settings):
    """Return a random model."""
    torch.manual_seed(0)
    sizes = SIZES | {"head_dim": 16, "sliding_window": None} | settings
    if kind == "gpt2":
        sizes = {"vocab_size": 50, "n_embd": 64, "n_layer": 2, "n_head": 4}
        sizes |= {"bos_token_id": 0, "eos_token_id": 0}
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **sizes)).eval()


def logprobs_and_gradient(model, rows):
    """Return the summed log-probs of the rows' completions in one call, and the gradient of all parameters."""
    width = max(len(PROMPTS[row]) + LENGTHS[row] for row in rows)
    ids = [[*PROMPTS[row], *COMPLETIONS[row]] for row in rows]
    values, _ = completion_logprobs(
        model,
        torch.tensor([line + [0] * (width - len(line)) for line in ids]),
        torch.tensor([len(PROMPTS[row]) for row in rows]),
        torch.tensor([LENGTHS[row] for row in rows]),
        temperature=0.7,
        chunk=4,
    )
    model.zero_grad()
    values.sum().backward()
    return values.sum(1).detach(), torch.cat([value.grad.reshape(-1).clone() for value in model.parameters()])


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("rows", [range(6), (0, 1, 3), (1, 1)])
def test_prompt_sharing_matches_single_rows(kind, rows):
    """Rows in one call share prompts of equal or different lengths; their sums equal those of each row alone."""
    model = build_model(kind)
    assert can_share(model)
    together, gradient = logprobs_and_gradient(model, rows)
    alone = [logprobs_and_gradient(model, [row]) for row in rows]
    torch.testing.assert_close(together, torch.cat([values for values, _ in alone]), rtol=0, atol=1e-5)
    torch.testing.assert_close(gradient, sum(gradients for _, gradients in alone), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("prompts", [PROMPTS, PROMPTS[:2], PROMPTS[2:3], [PROMPTS[2]] * 3])
@pytest.mark.parametrize(
    ("key_heads", "device"), [(2, "cpu"), (4, "cpu"), pytest.param(2, "cuda", marks=ON_GPU)]
)
def test_decoding_matches_the_models_logits(kind, prompts, key_heads, device):
    """The logits agree at each token, for prompts of equal or different lengths, with and without shared key heads."""
    model = build_model(kind, num_key_value_heads=key_heads).to(device)
    tolerance = 1e-5 if device == "cpu" else 2e-3
    with torch.no_grad():
        decoder = LlamaDecoder(model, prompts, room=5)
        for place in range(5):
            for row, prompt in enumerate(prompts):
                prefix = [*prompt, *((11 * row + 5 * at) % 50 for at in range(place))]
                expected = model(torch.tensor([prefix], device=device)).logits[0, -1]
                torch.testing.assert_close(decoder.logits_BV[row], expected, rtol=0, atol=tolerance)
            ids = [(11 * row + 5 * place) % 50 for row in range(len(prompts))]
            decoder.append(torch.tensor(ids, device=device))


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("gpt2", {}),
        ("mistral", {"sliding_window": 4}),
        ("llama", {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}}),
        ("llama", {"attn_implementation": "flex_attention"}),
    ],
)
def test_unsupported_models_do_not_share_prompts(kind, settings):
    """`can_share` refuses them; `EqualLengthDecoder` has the model's logits (not tested for flex_attention)."""
    model = build_model(kind, **settings)
    assert not can_share(model)
    if "attn_implementation" in settings:
        return
    with torch.no_grad():
        decoder = EqualLengthDecoder(model, [(1, 2, 3, 4), (5, 6, 7, 8), (1, 2, 3, 4)])
        decoder.append(torch.tensor([9, 10, 11]))
        expected = model(torch.tensor([[1, 2, 3, 4, 9], [5, 6, 7, 8, 10], [1, 2, 3, 4, 11]])).logits[:, -1]
    torch.testing.assert_close(decoder.logits_BV, expected, rtol=0, atol=1e-5)
