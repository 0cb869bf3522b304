"""Fixtures and helpers of the trainer tests: a tiny model, settings, short runs, servers, child processes, float64."""

import json
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from grpo_core import run
from grpo_core.config import Config, ModelConfig, RolloutConfig, TaskConfig
from grpo_core.learn.policy import Policy
from grpo_core.rollout.server import process
from grpo_core.settings import load
from grpo_core.tasks import model

SHORT = {
    "train.steps": 4, "train.prompts_per_step": 4, "sampling.group_size": 4, "rollout.timeout_s": 500,
    "output.completions_every": 1,
}  # fmt: skip


@pytest.fixture(scope="session", autouse=True)
def no_token():
    """Keep a token of the user out of these tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("GRPO_CORE_TOKEN", raising=False)
        yield


def read_lines(path) -> list[dict]:
    """Return the lines of a metrics or completions file, without wall times."""
    entries = [json.loads(line) for line in Path(path).read_text().splitlines()]
    return [{key: value for key, value in entry.items() if not key.startswith("time/")} for entry in entries]


def run_training(config) -> tuple[dict, list[dict]]:
    """Train; return the summary, and the metrics without wall times."""
    document = run.train(config, lambda _: None)
    assert document["outcome"] == "ok", document["error"]
    return document, read_lines(document["metrics"])


def make_config(settings) -> Config:
    """Return the configuration with these settings, by `section.key`."""
    return load(None, [f"--{key}={value}" for key, value in settings.items()])


def make_policy(model_dir, **settings) -> Policy:
    """Return a policy on a model with these settings, in this process alone."""
    return Policy(str(model_dir), make_config(settings))


def perturb(parameters, size: float = 0.05, seed: int = 0) -> None:
    """Add noise to all parameters, in place of training."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for value in parameters:
            value.add_(torch.randn(value.shape, generator=generator).to(value) * size)


@contextmanager
def own_server(forked_servers, model_dir, *options, program="grpo_core"):
    """Start `serve` without a token; yield its process and its address. The caller ends the process."""
    command = [program, "serve", "--allow-unauthenticated", f"--model.path={model_dir}", *options]
    process = forked_servers.start_server(command, threads=1)
    with process.stdin, process.stdout:
        yield process, SimpleNamespace(**json.loads(process.stdout.readline()))


def engine_config(max_length: int = 64, **rollout) -> Config:
    """Return the settings of an engine on the CPU."""
    options = RolloutConfig(device="cpu", timeout_s=500, **rollout)
    return Config(model=ModelConfig(max_length=max_length), rollout=options)


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory) -> Path:
    """Write the tiny model with seed 0; return its folder."""
    folder = tmp_path_factory.mktemp("model")
    model.make_tiny(folder, ModelConfig(), TaskConfig().letters, seed=0)
    return folder


@pytest.fixture(scope="session", autouse=True)
def forked_servers(trainer):
    """Let engines and runs fork their servers from the process of `trainer`; yield `trainer`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "start_child", trainer.start_server)
        yield trainer


@pytest.fixture
def float64():
    """Compute in float64, to compare closed forms."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def short_run(tmp_path):
    """Return a function that builds settings of a short run: `short_run("async", **{"train.steps": 2})`."""

    def build(mode: str = "colocate", **settings) -> Config:
        named = {"rollout.mode": mode, "output.dir": tmp_path, "output.name": mode}
        return make_config({**SHORT, **named, **settings})

    return build


@pytest.fixture
def children():
    """Return a function that lists the running child processes of a process: pid -> command line."""

    def children_of(pid: int) -> dict[int, str]:
        children = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
            except OSError:  # the process has just ended
                continue
            if int(parent) == pid and state != "Z":
                children[int(folder.name)] = command
        return children

    return children_of
