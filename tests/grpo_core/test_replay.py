"""Replaying a recorded step gives equal bits, the first difference, or the numbers of other settings or a dialect.

Parameters and settings that can't be used are refused.
"""

import dataclasses
import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from grpo_core.config import ConfigError
from grpo_core.learn.advantages import group_advantages
from grpo_core.learn.batch import make_batch
from grpo_core.learn.policy import Policy
from grpo_core.learn.update import Updater
from grpo_core.machine.process_setup import make_deterministic
from grpo_core.machine.world import World
from grpo_core.records.recording import EXACT, Recorder, digest_like, gradient_digest, read_step
from grpo_core.records.replay import replay
from grpo_core.rollout.weights.digest import sha256_digest
from grpo_core.settings import load
from grpo_core.types import Completion, Prompt, Request, Sample
from tests.case_files import each_case, read_cases
from tests.grpo_core.conftest import run_training

CASES = read_cases(__file__, "replayed_settings.yaml")

SETTINGS = ["--train.micro_batch=3", "--train.iterations=2", "--train.warmup_updates=0"]
SETTINGS += ["--loss.kl_coefficient=0.1"]


def sample_step(step):
    """Return two groups of four samples with random ids and log-probs, a function of the step."""
    generator = torch.Generator().manual_seed(step)
    rewards = torch.rand(8, generator=generator, dtype=torch.float64).tolist()
    flat = [a for group in group_advantages([rewards[:4], rewards[4:]]) for a in group]
    samples = []
    for i, (reward, advantage) in enumerate(zip(rewards, flat, strict=True)):
        length = 1 + i % 5
        ids = torch.randint(0, 12, (length,), generator=generator).tolist()
        logprobs = (-2.5 + torch.rand(length, generator=generator)).tolist()
        answer = Completion(f"{i // 4}.{i}", tuple(ids), tuple(logprobs), (step,) * length, "length")
        samples.append(Sample(Prompt(f"{i // 4}", "", (1, 2, 10 + i // 4)), answer, "", reward, advantage))
    return samples


def record_gradient(seen: list):
    """Return a hook that appends the loss and the gradient digest of a step's first update to `seen`."""
    return lambda policy, loss: seen.append((loss, gradient_digest(policy)))


@pytest.fixture(scope="module")
def recorded_run(model_dir, tmp_path_factory):
    """Return a folder with two recorded steps, and the policy of each as a parameter file and as a checkpoint."""
    folder = tmp_path_factory.mktemp("run")
    make_deterministic(1)
    config = load(None, [f"--model.path={model_dir}", *SETTINGS])
    policy = Policy(str(model_dir), config)
    updater, recorder = Updater(policy, config, World()), Recorder(folder, config)
    for step in (1, 2):
        save_file(policy.state(), folder / f"{step}.safetensors")
        policy.causal.save_pretrained(folder / f"policy-{step}")
        version, digest, samples = updater.updates, policy.fingerprint(), sample_step(step)
        observed = []
        updater.update(make_batch(samples), record_gradient(observed))
        requests = [Request(s.completion.request_id, s.prompt.ids, 0) for s in samples]
        result = {"loss": observed[0][0], "gradient": observed[0][1], "policy": digest}
        recorder.write(step, version, samples, requests, result)
    return folder


def record_again(recorded_run, folder, samples, **result) -> None:
    """Record the first step of a run into a folder, with other samples or another result."""
    recorded = read_step(recorded_run, 1)
    requests = [Request(s.completion.request_id, s.prompt.ids, 0) for s in samples]
    Recorder(folder, recorded.config).write(1, 0, samples, requests, {**recorded.entry["result"], **result})


def test_replay_is_bit_identical(recorded_run):
    """The policy may be a parameter file or a checkpoint; for the first step also the run's model."""
    for step, policy in [(1, None), (1, "1.safetensors"), (2, "2.safetensors"), (2, "policy-2")]:
        document = replay(recorded_run, step, policy and recorded_run / policy)
        assert (document["outcome"], document["first_difference"]) == ("equal", None)
        assert document["loss"] == document["recorded_loss"] != 0
        assert document["gradient"] == document["recorded_gradient"]


def test_digest_covers_the_unclipped_gradient(model_dir):
    """The digest is of the unclipped gradients of all trained parameters, also as `update` passes them on."""
    config = load(None, ["--train.max_grad_norm=1e-3", "--train.micro_batch=3"])
    batch = make_batch(sample_step(1))
    policy = Policy(str(model_dir), config)
    updater = Updater(policy, config, World())
    loss = updater.compute_gradients(batch)
    gradients = {name: value.grad.clone() for name, value in policy.trained_parameters()}
    assert gradient_digest(policy) == digest_like(EXACT, gradients.items())
    assert gradient_digest(policy, "0" * 64) == sha256_digest(gradients.items())
    assert torch.cat([value.reshape(-1) for value in gradients.values()]).norm() > 1e-2
    assert updater.updates == 0
    observed = []
    metrics = updater.update(batch, record_gradient(observed))
    assert observed == [(loss, digest_like(EXACT, gradients.items()))]
    assert metrics["loss"] == loss


def test_wrong_policy_is_the_first_difference(recorded_run):
    document = replay(recorded_run, 2, recorded_run / "policy-1")
    assert (document["outcome"], document["first_difference"]) == ("different", "policy")


@pytest.mark.parametrize(("key", "value"), [("loss", 0.5), ("gradient", "00" * 32)])
def test_changed_result_is_named(recorded_run, tmp_path, key, value):
    """The replay names a loss, or only a gradient, that isn't the recorded one."""
    record_again(recorded_run, tmp_path, read_step(recorded_run, 1).samples, **{key: value})
    document = replay(tmp_path, 1)
    assert (document["outcome"], document["first_difference"]) == ("different", key)
    assert document[f"recorded_{key}"] == value


def test_smallest_logprob_change_changes_the_gradient(recorded_run, tmp_path):
    recorded = read_step(recorded_run, 1)
    first = recorded.samples[0]
    value = torch.tensor(first.completion.logprobs[0])
    next_values = (float(torch.nextafter(value, torch.tensor(0.0))), *first.completion.logprobs[1:])
    completion = dataclasses.replace(first.completion, logprobs=next_values)
    changed = dataclasses.replace(first, completion=completion)
    record_again(recorded_run, tmp_path, [changed, *recorded.samples[1:]])
    assert replay(tmp_path, 1)["gradient"] != recorded.entry["result"]["gradient"]


@each_case(CASES["loss_settings"])
def test_replay_with_another_loss(recorded_run, model_dir, overrides, options):
    """The loss is that of a trainer with these settings or this dialect, with advantages of the recorded rewards.

    A dialect replaces the recorded settings of the loss, here the KL.
    """
    document = replay(recorded_run, 1, None, overrides)
    samples = sample_step(1)
    rewards = [sample.reward for sample in samples]
    flat = [a for g in group_advantages([rewards[:4], rewards[4:]], **options) for a in g]
    batch = make_batch([dataclasses.replace(s, advantage=a) for s, a in zip(samples, flat, strict=True)])
    settings = SETTINGS[:-1] if "--loss.dialect" in overrides else SETTINGS
    config = load(None, [*settings, *overrides])
    policy = Policy(str(model_dir), config)
    loss = Updater(policy, config, World()).compute_gradients(batch)
    assert (document["loss"], document["gradient"]) == (loss, gradient_digest(policy))
    assert document["recorded_loss"] == replay(recorded_run, 1)["loss"] != document["loss"]
    assert (document["outcome"], document["first_difference"]) == ("different", "loss")
    assert document["overrides"] == overrides


def test_recorded_advantages_are_used_unchanged(recorded_run, tmp_path):
    """Only advantage settings and dialects replace them: a program's advantages may not follow from its settings."""
    samples = [dataclasses.replace(sample, advantage=2.0) for sample in read_step(recorded_run, 1).samples]
    record_again(recorded_run, tmp_path, samples)
    twice = replay(tmp_path, 1)["loss"]
    assert twice != replay(recorded_run, 1)["loss"]
    assert replay(tmp_path, 1, None, ["--loss.clip_low=0.2"])["loss"] == twice
    computed_again = replay(tmp_path, 1, None, ["--loss.advantage_scale=group"])
    assert computed_again["loss"] == replay(recorded_run, 1)["loss"]


@pytest.mark.parametrize("change", ["missing", "unknown", "shape", "not safetensors", "gone", "pipe"])
def test_unusable_parameters_are_refused(recorded_run, tmp_path, change):
    """The error is one line that names the file."""
    path = tmp_path / "policy.safetensors"
    tensors = load_file(recorded_run / "1.safetensors")
    if change == "missing":
        del tensors["causal.lm_head.weight"]
    elif change == "unknown":
        tensors["causal.more.weight"] = torch.zeros(1)
    elif change == "shape":
        tensors["causal.lm_head.weight"] = torch.zeros(1)
    if change == "not safetensors":
        path.write_bytes(b"no")
    elif change == "pipe":
        os.mkfifo(path)
    elif change != "gone":
        save_file(tensors, path)
    with pytest.raises(ConfigError, match=r"policy\.safetensors") as caught:
        replay(recorded_run, 1, path)
    assert "\n" not in str(caught.value)


def change_record(recorded_run, tmp_path, settings=None, numbers=None):
    """Copy a run's first recorded step, with other settings or numbers and a fitting checksum."""
    shutil.copytree(recorded_run, tmp_path / "run")
    lines = (recorded_run / "rollouts.jsonl").read_text().splitlines()
    entry = json.loads(lines[0])
    for name, value in (settings or {}).items():
        section, key = name.split(".")
        entry["settings"][section][key] = value
    path = tmp_path / "run" / entry["file"]
    save_file({**load_file(path), **(numbers or {})}, path)
    entry["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    (tmp_path / "run" / "rollouts.jsonl").write_text(json.dumps(entry) + "\n")
    return tmp_path / "run"


@each_case(CASES["recorded_settings"])
def test_unusable_recorded_settings_are_refused(recorded_run, tmp_path, settings, message):
    """Excessive threads, hub names and settings that cannot be computed here are refused in one line."""
    folder = change_record(recorded_run, tmp_path, settings)
    with pytest.raises(ConfigError, match=message) as caught:
        replay(folder, 1, recorded_run / "1.safetensors")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        (lambda ids: ids + 2**40, r"\d{13}"),
        (lambda ids: ids - 50, r"-\d+"),
        (lambda ids: ids + 0.5, r"\d+\.5"),
        (lambda ids: ids[:, None], r"\[\d+\]"),
    ],
    ids=["greater", "negative", "float", "nested"],
)
def test_unusable_token_ids_are_refused(recorded_run, tmp_path, change, shown):
    """The error shows the first recorded id that is none of the model."""
    ids = torch.tensor(read_step(recorded_run, 1).numbers["prompt_ids"])
    folder = change_record(recorded_run, tmp_path, numbers={"prompt_ids": change(ids).contiguous()})
    with pytest.raises(ConfigError, match=rf"token id {shown} was recorded, and the model has"):
        replay(folder, 1, recorded_run / "1.safetensors")


def test_recorded_steps_of_a_run_replay(short_run):
    """The policy, here adapters, is found in the run's own folder; a step whose checkpoint is gone is refused.

    tests/gpu/test_runs.py replays a run without adapters.
    """
    settings = {"output.record_every": 1, "checkpoint.keep": 9, "train.iterations": 2, "model.lora_rank": 4}
    document, _ = run_training(short_run(**settings))
    folder = Path(document["metrics"]).parent
    assert {replay(folder, step)["outcome"] for step in (1, 2, 4)} == {"equal"}
    shutil.rmtree(folder / "checkpoints" / "step-00000002")
    with pytest.raises(ConfigError, match=r"step 3 started from policy version 4, and no checkpoint kept"):
        replay(folder, 3)
