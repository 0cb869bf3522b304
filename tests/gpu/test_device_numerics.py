"""On each device log-probs and the direction of gradients match float64, and sampled tokens match the CPU's.

Gradients are deterministic, samples do not depend on the batch, chunks limit the memory of log-probs (on a GPU), and
attention has finite gradients.
"""

import pytest
import torch

from grpo_core.learn.logprobs import chunked_logprobs, completion_logprobs
from grpo_core.machine.process_setup import make_deterministic
from grpo_core.rollout.transformers_engine import TransformersEngine, sample_tokens
from grpo_core.tasks.model import load_model
from grpo_core.types import Request, SamplingParams
from tests.gpu.devices import DEVICES, on_gpu
from tests.grpo_core.test_prompt_sharing import build_model

POSITIONS, WIDTH, VOCABULARY = 60, 32, 300
PROMPTS = ((1, 2, 3), (1, 2, 3), (4, 5, 6, 7, 8), (4, 5, 6, 7, 8))


@pytest.fixture(autouse=True)
def deterministic():
    """Use one thread and deterministic kernels, as a run does by default."""
    make_deterministic(1)


def output_layer(device, dtype):
    """Return hidden states, an output layer and token ids that are the same on every device."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(POSITIONS, WIDTH, generator=generator)
    weight = torch.randn(VOCABULARY, WIDTH, generator=generator) * 0.2
    ids = torch.randint(VOCABULARY, (POSITIONS,), generator=generator)
    hidden, weight = (value.to(device, dtype).requires_grad_() for value in (hidden, weight))
    return hidden, weight, ids.to(device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("chunk", [16, 1000])
def test_chunked_logprobs_and_gradient_directions_match_float64(device, dtype, chunk):
    """Log-probs equal float64's up to a tolerance by dtype; gradients have nearly the same direction as float64's."""
    hidden, weight, ids = output_layer(device, dtype)
    values, _ = chunked_logprobs(hidden, weight, ids, temperature=0.7, chunk=chunk)
    values.sum().backward()
    plain, layer = (value.detach().cpu().double().requires_grad_() for value in (hidden, weight))
    logits = plain @ layer.T / 0.7
    expected = torch.log_softmax(logits, -1).gather(-1, ids.cpu()[:, None])[:, 0]
    expected.sum().backward()
    tolerance = 1e-4 if dtype is torch.float32 else 0.05
    actual = values.detach().cpu().double()
    torch.testing.assert_close(actual, expected.detach(), rtol=tolerance, atol=tolerance)
    for value, exact in ((hidden, plain), (weight, layer)):
        gradient = value.grad.cpu().double().flatten()
        assert torch.cosine_similarity(gradient, exact.grad.flatten(), 0) > 1 - tolerance**2


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_backward_pass_is_deterministic(device, dtype):
    """Two backward passes give equal gradients, and every operation has a deterministic kernel."""
    grads = []
    for _ in range(2):
        model = build_model("llama").to(device, dtype)
        rows = [[*prompt, 9, 10, 11][:8] + [0] * (5 - len(prompt)) for prompt in PROMPTS]
        ids = torch.tensor(rows, device=device)
        prompts = torch.tensor([len(prompt) for prompt in PROMPTS], device=device)
        lengths = torch.tensor([3, 2, 3, 1], device=device)
        values, _ = completion_logprobs(model, ids, prompts, lengths, temperature=1.0, chunk=4)
        values.sum().backward()
        grads.append(torch.cat([value.grad.flatten().float() for value in model.parameters()]))
    assert torch.equal(*grads)
    assert grads[0].abs().sum() > 0


@pytest.mark.parametrize("device", DEVICES)
def test_sampled_tokens_match_the_cpu(device):
    """Tokens are the CPU's, for one row or many, also where the random number is 0 or close to 1.

    Log-probs are nearly the CPU's, and no token of probability zero is sampled.
    """
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(64, VOCABULARY, generator=generator) * 3
    logits[:, ::3] = -torch.inf
    draw = torch.rand(64, generator=generator, dtype=torch.float64)
    draw[:2] = torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)
    expected, logprobs = sample_tokens(logits / 0.9, draw)
    ids, device_logprobs = sample_tokens(logits.to(device) / 0.9, draw.to(device))
    assert torch.equal(ids.cpu(), expected)
    assert torch.isfinite(device_logprobs).all()
    torch.testing.assert_close(device_logprobs.cpu(), logprobs, rtol=1e-4, atol=1e-5)
    for row in (0, 1, 40):
        alone, _ = sample_tokens(logits[row : row + 1].to(device) / 0.9, draw[row : row + 1].to(device))
        assert alone.item() == expected[row].item()


@pytest.mark.parametrize("device", DEVICES)
def test_samples_do_not_depend_on_the_batch(model_dir, device):
    """Requests together, alone, and in another order give the same tokens."""
    engine = TransformersEngine(model_dir, max_model_len=64, device=device)
    parameters = dict(load_model(model_dir).named_parameters())
    engine.update_weights(parameters.items(), 0)
    params = SamplingParams(max_tokens=12, temperature=1.0)
    requests = [Request(f"r{i}", prompt, seed=i) for i, prompt in enumerate(PROMPTS)]
    together = engine.generate(requests, params)
    reversed_order = engine.generate(requests[::-1], params)[::-1]
    alone = [engine.generate([request], params)[0] for request in requests]
    ids = [[completion.ids for completion in batch] for batch in (together, reversed_order, alone)]
    assert ids[0] == ids[1] == ids[2]


@on_gpu
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_chunks_limit_peak_memory(backward):
    """In chunks, the peak is at most 10 % of that of all logits at once, or 45 % with the backward pass."""
    peaks = []
    for chunk in (256, None):
        hidden = torch.randn(6144, 256, device="cuda", requires_grad=backward)
        weight = (torch.randn(32000, 256, device="cuda") * 0.02).requires_grad_(backward)
        ids = torch.randint(32000, (6144,), device="cuda")
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        with torch.set_grad_enabled(backward):
            if chunk is None:
                values = torch.log_softmax(hidden @ weight.T, -1).gather(-1, ids[:, None])[:, 0]
            else:
                values, _ = chunked_logprobs(hidden, weight, ids, temperature=1.0, chunk=chunk)
            if backward:
                values.sum().backward()
        peaks.append(torch.cuda.max_memory_allocated() - before)
    assert peaks[0] <= (0.45 if backward else 0.10) * peaks[1]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("length", [128, 192], ids=str)
def test_gradients_of_very_negative_attention_scores_are_finite(device, length):
    """Masked attention whose scores are all near -120 has finite gradients; cuDNN's backward pass returned NaN."""
    generator = torch.Generator().manual_seed(0)
    query, key, value = torch.randn(3, 1, 1, length, 64, generator=generator).mul(0.1).unbind()
    query[..., 0], key[..., 0] = 1.0, -120 * 64**0.5
    inputs = [tensor.to(device, torch.bfloat16).requires_grad_() for tensor in (query, key, value)]
    mask = torch.ones(length, length, dtype=torch.bool, device=device).tril()[None, None]
    torch.nn.functional.scaled_dot_product_attention(*inputs, attn_mask=mask).sum().backward()
    assert all(bool(tensor.grad.isfinite().all()) for tensor in inputs)
