"""Chunked log-probs equal the naive computation in value and gradient, and compute the logits of one chunk at a time.

They equal the model's own, and padding does not change them.
"""

import pytest
import torch

from grpo_core.learn import logprobs
from grpo_core.learn.logprobs import chunked_logprobs, completion_logprobs
from grpo_core.tasks.model import load_model


def naive_logprobs(hidden, weight, ids, temperature):
    """Return log-probs and entropy from all logits at once."""
    everything = torch.log_softmax(hidden @ weight.T / temperature, -1)
    return everything.gather(-1, ids[:, None])[:, 0], -(everything.exp() * everything).sum(-1)


@pytest.mark.parametrize("chunk", [1, 3, 7, 100])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_chunked_logprobs_match_naive(chunk, temperature):
    """Values and gradients agree in float64 to 1e-12, whether or not the chunk size divides the positions."""
    generator = torch.Generator().manual_seed(0)
    hidden, weight, upstream = (
        torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((14, 5), (11, 5), (14,))
    )
    ids = torch.randint(0, 11, (14,), generator=generator)
    results = []
    for way in ("naive", "chunked"):
        h, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        if way == "naive":
            values, entropies = naive_logprobs(h, w, ids, temperature)
        else:
            values, entropies = chunked_logprobs(h, w, ids, temperature=temperature, chunk=chunk)
        (values * upstream).sum().backward()
        results.append((values.detach(), entropies.detach(), h.grad, w.grad))
    for expected, actual in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


def test_logits_are_computed_in_chunks(monkeypatch):
    """No call of the output layer exceeds a chunk; the backward pass computes all chunks but the last again."""
    chunk_sizes = []
    original = logprobs.logprobs_of_chunk

    def watched(hidden, *rest):
        chunk_sizes.append(len(hidden))
        return original(hidden, *rest)

    monkeypatch.setattr(logprobs, "logprobs_of_chunk", watched)
    hidden = torch.randn(10, 4, requires_grad=True)
    ids = torch.zeros(10, dtype=torch.long)
    values, _ = chunked_logprobs(hidden, torch.randn(6, 4), ids, temperature=1.0, chunk=4)
    assert chunk_sizes == [4, 4, 2]
    values.sum().backward(retain_graph=True)
    assert chunk_sizes == [4, 4, 2, 4, 4]
    first = hidden.grad.clone()
    values.sum().backward()
    torch.testing.assert_close(hidden.grad, 2 * first)


def test_empty_batch_gives_empty_logprobs():
    tensors = torch.randn(0, 4), torch.randn(6, 4), torch.zeros(0, dtype=torch.long)
    values, entropies = chunked_logprobs(*tensors, temperature=1.0, chunk=4)
    assert (values.shape, entropies.shape) == ((0,), (0,))


def test_padding_does_not_change_logprobs(model_dir):
    """A completion's log-probs are the same alone and next to a longer one, for three padding ids."""
    model = load_model(model_dir)
    short, long = [0, 1, 10, 3, 11], [2, 3, 4, 10, 5, 6, 7, 8, 11]

    @torch.no_grad()
    def logprobs_of(*tensors):
        return completion_logprobs(model, *map(torch.tensor, tensors), temperature=0.9, chunk=3)[0]

    alone = logprobs_of([short], [3], [2])
    for pad in (0, 11, 12):  # an ordinary letter, the end token, the pad token
        padded = logprobs_of([short + [pad] * 4, long], [3, 4], [2, 5])
        torch.testing.assert_close(padded[0, :2], alone[0], rtol=0, atol=1e-5)
        assert padded[0, 2:].tolist() == [0.0, 0.0, 0.0]


def test_logprobs_match_the_model(model_dir):
    """The token at position p is predicted at p - 1, at the sampling temperature."""
    model = load_model(model_dir)
    ids = torch.tensor([[0, 1, 2, 10, 4, 5, 11]])
    with torch.no_grad():
        lengths = torch.tensor([4]), torch.tensor([3])
        actual, _ = completion_logprobs(model, ids, *lengths, temperature=0.5, chunk=2)
        everything = torch.log_softmax(model(ids).logits / 0.5, -1)
    expected = torch.stack([everything[0, 3, 4], everything[0, 4, 5], everything[0, 5, 11]])
    torch.testing.assert_close(actual[0], expected, rtol=0, atol=1e-5)
