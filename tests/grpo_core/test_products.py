"""Matrix products by oneDNN against PyTorch's own: value, gradient, the same bits twice; and who takes which.

All of it twice: with this PyTorch's oneDNN, and as in a PyTorch that has none.
"""

import runpy

import pytest
import torch
from torch import nn

from grpo_core import products
from grpo_core.learn import logprobs
from grpo_core.learn.logprobs import chunked_logprobs
from grpo_core.tasks.model import load_model, make_tiny
from tests.grpo_core.test_logprobs import naive


@pytest.fixture(autouse=True, params=["oneDNN", "none"])
def there(request, monkeypatch):
    """Whether the operator is there."""
    if request.param == "none":
        monkeypatch.setattr(products, "_THERE", False)
    elif not products._THERE:
        pytest.skip("this PyTorch has no oneDNN")
    return products._THERE


def gradients(layer, x, upstream):
    """What comes out, and of the input, the weight and the bias the gradients."""
    x = x.clone().requires_grad_()
    layer.zero_grad()
    out = layer(x)
    out.backward(upstream)
    return [out.detach(), x.grad, *(value.grad for value in layer.parameters())]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(70, 128), (3, 40, 128), (64, 128)])
def test_a_layer_is_the_usual_one_up_to_rounding(bias, shape):
    """In value and in every gradient, for inputs of one and of several rows; and the same bits again."""
    torch.manual_seed(0)
    usual = nn.Linear(128, 96, bias=bias)
    x, upstream = torch.randn(shape), torch.randn(*shape[:-1], 96)
    expected = gradients(usual, x, upstream)
    fast = products.faster(nn.Sequential(usual))
    assert type(usual) is products.OneLinear
    found = gradients(fast, x, upstream)
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-4)
    assert all(map(torch.equal, found, gradients(fast, x, upstream)))
    with torch.no_grad():
        assert torch.equal(usual(x), found[0])


@pytest.mark.parametrize(
    ("tokens", "outs", "taken"),
    [(64, 8, True), (63, 8, False), (16, 704, True), (16, 352, False), (3, 9000, False)],
)
def test_a_few_tokens_through_a_small_matrix_are_left_to_pytorch(monkeypatch, there, tokens, outs, taken):
    """From where on oneDNN is the faster of the two."""
    asked = []
    monkeypatch.setattr(products, "product", lambda x, w: asked.append(x.shape) or nn.functional.linear(x, w))
    layer = products.faster(nn.Sequential(nn.Linear(128, outs, bias=False)))
    with torch.no_grad():
        layer(torch.ones(tokens, 128))
    assert bool(asked) == (taken and there)


def test_it_is_looked_for(monkeypatch):
    """A PyTorch built without oneDNN, and one whose oneDNN has no such operator."""
    with monkeypatch.context() as patch:
        patch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
        assert not runpy.run_path(products.__file__)["_THERE"]
    monkeypatch.setattr(torch.ops, "mkldnn", object())
    assert not runpy.run_path(products.__file__)["_THERE"]


def test_inputs_that_lie_otherwise_in_memory(monkeypatch):
    """Transposed, cut and repeated ones, and gradients such as a sum's; without oneDNN, PyTorch's own product."""
    usual = nn.Linear(128, 64, bias=False)
    fast = products.faster(nn.Sequential(nn.Linear(128, 64, bias=False)))
    fast[0].weight.data.copy_(usual.weight.data)
    inputs = [torch.randn(128, 66).T, torch.randn(66, 256)[:, ::2], torch.randn(1, 128).expand(66, 128)]
    for x in inputs:
        torch.testing.assert_close(fast(x), usual(x), rtol=1e-5, atol=1e-5)
        fast.zero_grad()
        fast(x).sum().backward()
        usual.zero_grad()
        usual(x).sum().backward()
        torch.testing.assert_close(fast[0].weight.grad, usual.weight.grad, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(
        fast(inputs[0][:3]), fast(inputs[0])[:3], rtol=1e-5, atol=1e-5
    )  # the usual way
    monkeypatch.setattr(products, "_THERE", False)
    assert torch.equal(fast(inputs[0]), usual(inputs[0]))


@pytest.mark.parametrize("kind", [torch.float64, torch.bfloat16])
def test_other_types_are_as_usual(kind):
    """Float64 to the bit, and bfloat16."""
    usual = nn.Linear(128, 64).to(kind)
    expected = gradients(usual, torch.ones(66, 128, dtype=kind), torch.ones(66, 64, dtype=kind))
    found = gradients(
        products.faster(nn.Sequential(usual)), torch.ones(66, 128, dtype=kind), torch.ones(66, 64, dtype=kind)
    )
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-2 if kind == torch.bfloat16 else 1e-12, atol=0)


@pytest.mark.parametrize("chunk", [1, 3, 7, 100])
def test_log_probs_with_kept_probabilities_are_the_naive_ones(chunk):
    """Value, entropy and both gradients, up to float32's rounding; and the same bits again."""
    torch.manual_seed(0)
    hidden, weight, upstream = torch.randn(14, 128) / 8, torch.randn(50, 128), torch.randn(14)
    ids = torch.randint(0, 50, (14,))
    results = []
    for way in (naive, chunked_logprobs, chunked_logprobs):
        h, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        how = (0.7,) if way is naive else ()
        named = {} if way is naive else {"temperature": 0.7, "chunk": chunk}
        values, entropies = way(h, w, ids, *how, **named)
        (values * upstream).sum().backward()
        results.append([values.detach(), entropies.detach(), h.grad, w.grad])
    for expected, found in zip(*results[:2], strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert all(map(torch.equal, *results[1:]))
    assert torch.equal(weight, w.detach())


def test_only_what_is_small_enough_is_kept(monkeypatch):
    """Over the limit, and below the width, each chunk's logits are computed twice, as ever."""
    seen = []
    original = logprobs.logprobs_of_chunk

    def watched(*given):
        seen.append(len(given[0]))
        return original(*given)

    monkeypatch.setattr(logprobs, "logprobs_of_chunk", watched)
    monkeypatch.setattr(logprobs, "KEPT", 60)
    for count, width in ((10, 128), (11, 128), (10, 64)):
        hidden = torch.randn(count, width, requires_grad=True)
        ids = torch.zeros(count, dtype=torch.long)
        values, _ = chunked_logprobs(hidden, torch.randn(6, width), ids, temperature=1.0, chunk=100)
        values.sum().backward()
        seen.append(-1)
    assert seen == [-1, 11, 11, -1, 10, 10, -1]


@pytest.mark.parametrize(("width", "fast"), [(64, False), (128, True)])
def test_wide_models_take_it(tmp_path, width, fast):
    """On a CPU: the shipped task's own model stays as it was."""
    from grpo_core.config import ModelConfig

    make_tiny(tmp_path, ModelConfig(hidden_size=width), "abc", 0)
    kinds = {type(layer) for layer in load_model(tmp_path).modules() if isinstance(layer, nn.Linear)}
    assert kinds == {products.OneLinear if fast else nn.Linear}
