"""The policy trains adapters or all weights, gives engines merged weights, and saves a checkpoint for transformers.

The reference policy and temporary parameters leave it as it was; gradient checkpointing changes no gradient. Unknown
adapter layers are refused.
"""

import functools
import json
from pathlib import Path

import pytest
import torch

from grpo_core.config import ConfigError
from grpo_core.modes import temporary_state
from grpo_core.tasks.model import load_model
from tests.grpo_core.conftest import make_policy, perturb, run_training
from tests.grpo_core.test_update import batch

three_rows = functools.partial(batch, (1.0,) * 3)  # their prompts differ


def test_adapters_start_neutral_and_are_merged_for_engines(model_dir, tmp_path):
    """New adapters do not change log-probs; trained ones give those of a plain model with the merged weights."""
    adapted, plain = make_policy(model_dir, **{"model.lora_rank": 4}), make_policy(model_dir)
    assert {name.rpartition(".lora_")[1] for name, _ in adapted.trained_parameters()} == {".lora_"}
    assert torch.equal(adapted.logprobs(three_rows(), 1.0)[0], plain.logprobs(three_rows(), 1.0)[0])
    perturb([value for _, value in adapted.trained_parameters()])
    assert not torch.allclose(adapted.logprobs(three_rows(), 1.0)[0], plain.logprobs(three_rows(), 1.0)[0])
    merged = dict(adapted.engine_tensors())
    parameters = dict(plain.causal.named_parameters())
    shapes, expected = ({n: v.shape for n, v in tensors.items()} for tensors in (merged, parameters))
    assert shapes == expected
    with torch.no_grad():
        for name, value in parameters.items():
            value.copy_(merged[name])
    torch.testing.assert_close(
        adapted.logprobs(three_rows(), 1.0)[0], plain.logprobs(three_rows(), 1.0)[0], atol=1e-5, rtol=0
    )


def test_adapter_reference_is_the_base_model(model_dir):
    """The reference's log-probs are the plain model's, and computing them leaves the adapters on."""
    adapted = make_policy(model_dir, **{"model.lora_rank": 4, "loss.kl_coefficient": 0.1})
    perturb([value for _, value in adapted.trained_parameters()])
    before = adapted.logprobs(three_rows(), 1.0)[0]
    expected = make_policy(model_dir).logprobs(three_rows(), 1.0)[0]
    assert torch.equal(adapted.reference.logprobs(three_rows(), 1.0), expected)
    assert torch.equal(adapted.logprobs(three_rows(), 1.0)[0], before)


def test_only_adapters_are_trained(short_run):
    """Only projections change, and every sync is proven."""
    document, _ = run_training(
        short_run(**{"model.lora_rank": 4, "train.learning_rate": 0.02, "train.steps": 2})
    )
    assert document["syncs_proven_by_fingerprint"] == 2
    folder = Path(document["metrics"]).parent
    before, after = load_model(folder / "model"), load_model(folder / "policy")
    moved = {
        name
        for (name, a), (_, b) in zip(before.named_parameters(), after.named_parameters(), strict=True)
        if not torch.equal(a, b)
    }
    assert moved
    assert all("_proj" in name for name in moved)


def test_unknown_adapter_layers_are_refused(model_dir):
    """The error has the key and the names."""
    with pytest.raises(ConfigError, match=r"model.lora_targets = \['nothing'\]: "):
        make_policy(model_dir, **{"model.lora_rank": 4, "model.lora_targets": "nothing"})


def test_gradient_checkpointing_changes_no_gradient(model_dir):
    """A layer runs twice, and the gradients are equal."""
    gradients, calls = [], []
    for recompute in ("false", "true"):
        model = make_policy(model_dir, **{"model.gradient_checkpointing": recompute})
        count = [0]
        model.causal.model.layers[0].mlp.register_forward_pre_hook(
            lambda *_, count=count: count.__setitem__(0, count[0] + 1)
        )
        model.logprobs(three_rows(), 1.0)[0].sum().backward()
        gradients.append([value.grad for _, value in model.trained_parameters()])
        calls.append(count[0])
    assert calls == [1, 2]
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_temporary_state_is_undone(model_dir):
    """The policy has the older parameters within the block, and the newer ones after it."""
    trained = make_policy(model_dir)
    old, digest = {name: value.clone() for name, value in trained.state().items()}, trained.fingerprint()
    perturb(trained.causal.parameters())
    now = trained.fingerprint()
    with temporary_state(trained, old):
        assert trained.fingerprint() == digest
    assert trained.fingerprint() == now != digest


def test_final_checkpoint_loads_in_transformers(short_run):
    """The final checkpoint has the final parameters and the tokenizer."""
    document, _ = run_training(short_run(**{"train.steps": 2}))
    folder = Path(document["metrics"]).parent / "policy"
    assert make_policy(folder).fingerprint() == document["parameters"]
    assert json.loads((folder / "tokenizer_config.json").read_text())["eos_token"] == "<end>"
