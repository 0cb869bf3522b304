"""In bfloat16, gradients and the parts in `model.float32_parts` stay in float32, and tied weights are trained.

All rollout modes train the same parameters. The engine's dtype may differ from the trainer's.
"""

from pathlib import Path

import pytest
import torch

from grpo_core.config import ModelConfig, TaskConfig
from grpo_core.learn.batch import completion_batch
from grpo_core.tasks.model import make_tiny
from grpo_core.types import Completion
from tests.gpu.devices import DEVICES
from tests.grpo_core.conftest import make_policy, run_training

TOLERANT = {"rollout.sync_tolerance": 0.2}


def policies(model_dir, device: str = "cpu", **settings):
    """Return the float32 policy and the mixed-precision policy with the same weights."""
    where = {"train.device": device, "model.path": model_dir}
    mixed = {"model.dtype": "bfloat16", "rollout.dtype": "float32", **settings}
    return make_policy(model_dir, **where), make_policy(model_dir, **where, **mixed)


def some_rows(device: str = "cpu"):
    """Return four completions of two prompts."""

    def complete(*ids):
        return Completion("", ids, (-1.0,) * len(ids), (0,) * len(ids), "stop")

    first, second = (1, 2, 3, 10), (4, 5, 10)
    rows = [(first, complete(1, 2, 3, 11)), (second, complete(4, 5, 11))]
    return completion_batch([*rows, (first, complete(2, 2)), (second, complete(9))], device)


def gradient(policy, device: str = "cpu") -> torch.Tensor:
    """Return the gradient of the mean log-prob over all trained weights."""
    policy.logprobs(some_rows(device), 1.0)[0].mean().backward()
    return torch.cat([value.grad.flatten() for _, value in policy.trained_parameters()])


@pytest.mark.parametrize("device", DEVICES)
def test_bfloat16_logprobs_and_gradients_are_close_to_float32(model_dir, device):
    """Log-probs differ by less than 0.05, the gradient's norm by 2 %; these and the weights are float32."""
    plain, mixed = policies(model_dir, device)
    with torch.no_grad():
        ours, theirs = (policy.logprobs(some_rows(device), 1.0)[0] for policy in (mixed, plain))
    assert ours.dtype == torch.float32
    assert 0 < (ours - theirs).abs().max() < 0.05
    actual, expected = gradient(mixed, device), gradient(plain, device)
    assert actual.dtype == torch.float32
    assert torch.nn.functional.cosine_similarity(actual, expected, dim=0) > 0.999
    assert torch.isclose(actual.norm(), expected.norm(), rtol=0.02)
    assert {value.dtype for _, value in mixed.trained_parameters()} == {torch.float32}


def test_micro_batch_gradients_accumulate_in_float32(model_dir):
    """Three passes give three times the gradient, which bfloat16 would round."""
    _, mixed = policies(model_dir)
    once, _ = gradient(mixed).clone(), gradient(mixed)
    assert torch.equal(gradient(mixed), 3 * once)


@pytest.mark.parametrize(
    ("parts", "kept"), [("head,norms", {"lm_head", "norm"}), ("head", {"lm_head"}), ("", set())]
)
def test_only_named_parts_stay_in_float32(model_dir, parts, kept):
    """All other parts have the compute dtype."""
    _, mixed = policies(model_dir, **{"model.float32_parts": parts})
    float32_names = {
        name
        for name, value in mixed.low_precision_copy.module.named_parameters()
        if value.dtype == torch.float32
    }
    assert all(any(part in name for part in kept) for name in float32_names)
    assert {part for part in kept if any(part in name for name in float32_names)} == kept


def test_engine_dtype_may_differ_from_trainer_dtype(short_run):
    """A bfloat16 engine differs from a float32 trainer by more than rounding; the run reports it."""
    settings = {**TOLERANT, "train.steps": 2}
    exact, _ = run_training(short_run(**settings))
    different, _ = run_training(
        short_run(**settings, **{"rollout.dtype": "bfloat16", "output.name": "apart"})
    )
    assert exact["max_logprob_difference"] < 1e-5 < different["max_logprob_difference"]
    assert different["syncs_proven_by_fingerprint"] == 2


def tied_model(folder: Path) -> Path:
    """Write a small Llama whose output layer is its embedding, with the tiny model's tokenizer."""
    from transformers import AutoConfig, LlamaForCausalLM

    make_tiny(folder, ModelConfig(), TaskConfig().letters, seed=0)
    config = AutoConfig.from_pretrained(folder)
    config.tie_word_embeddings = True
    torch.manual_seed(0)
    for path in folder.glob("*.safetensors"):
        path.unlink()
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def test_model_dtype_alone_is_bit_identical_in_every_mode(short_run):
    """Colocate, async and server mode train the same parameters bit for bit.

    The engine takes the trainer's dtype, and the default tolerance fits it.
    """
    settings = {"model.dtype": "bfloat16", "rollout.max_staleness": 0, "train.steps": 2}
    parameters = set()
    for mode in ("colocate", "async", "server"):
        document, _ = run_training(short_run(mode, **settings))
        assert document["syncs_proven_by_fingerprint"] == document["syncs"] == 2
        assert 1e-6 < document["max_logprob_difference"] < 0.2
        parameters.add(document["parameters"])
    assert len(parameters) == 1


@pytest.mark.parametrize(
    "more",
    [{}, {"model.lora_rank": 2, "loss.kl_coefficient": 0.1, "model.gradient_checkpointing": "true"}],
    ids=lambda more: ",".join(more) or "alone",
)
def test_bfloat16_trains_a_tied_model(short_run, tmp_path, more):
    """Also with adapters and a reference: the first KL is 0, because policy and reference have the same dtype."""
    if "model.lora_rank" in more:
        pytest.importorskip("peft")
    settings = {"model.dtype": "bfloat16", "model.path": tied_model(tmp_path / "tied"), **more}
    _, metrics = run_training(short_run(**settings))
    assert metrics[0]["kl"] == 0
    assert all(entry["grad_norm"] > 0 for entry in metrics if entry["reward/zero_variance_groups"] < 1)


def test_tied_weight_sums_both_gradients(tmp_path):
    """The gradient has the direction of the float32 policy's: their cosine is above 0.999."""
    actual, expected = map(gradient, reversed(policies(tied_model(tmp_path))))
    assert torch.nn.functional.cosine_similarity(actual, expected, dim=0) > 0.999
