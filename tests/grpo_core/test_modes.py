"""The three rollout modes give the same numbers without staleness, and keep the staleness bound with it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from grpo_core import run
from grpo_core.learn.pool import StalenessError, staleness
from grpo_core.types import Completion


def trained(config) -> dict:
    """Train; return the summary with the metrics and completions read back."""
    document = run.train(config, lambda entry: None)
    assert document["outcome"] == "ok", document["error"]
    lines = {name: Path(document[name]).read_text().splitlines() for name in ("metrics", "completions")}
    return {
        **document,
        **{f"{name}_lines": [json.loads(line) for line in text] for name, text in lines.items()},
    }


def without_wall_times(document: dict) -> list[dict]:
    """Return the metrics that are not wall times."""
    entries = document["metrics_lines"]
    return [{k: v for k, v in entry.items() if not k.startswith("time/")} for entry in entries]


@pytest.mark.slow
def test_modes_are_bit_identical_without_staleness(short_run):
    """Parameters, metrics and completions of colocate, async at staleness 0, and server are equal."""
    settings = {"train.steps": 10, "train.warmup_updates": 0}
    colocate = trained(short_run("colocate", **settings))
    waiting = trained(short_run("async", **{"rollout.max_staleness": 0}, **settings))
    server = trained(short_run("server", **settings))
    assert len(colocate["completions_lines"]) == 10 * 16
    for mode in (waiting, server):
        assert mode["parameters"] == colocate["parameters"]
        assert mode["completions_lines"] == colocate["completions_lines"]
        assert without_wall_times(mode) == without_wall_times(colocate)
        assert mode["max_staleness"] == 0
        assert mode["syncs_proven_by_fingerprint"] == mode["syncs"] == 10


@pytest.mark.long
def test_modes_are_bit_identical_for_a_wide_model(short_run):
    """A wide model multiplies by oneDNN, in the trainer's process and in others."""
    settings = {"train.steps": 3, "model.hidden_size": 128, "model.layers": 2, "rollout.max_staleness": 0}
    runs = [trained(short_run(mode, **settings)) for mode in ("colocate", "async", "server")]
    assert {document["parameters"] for document in runs} == {runs[0]["parameters"]}
    assert [without_wall_times(document) for document in runs] == [without_wall_times(runs[0])] * 3
    assert runs[0]["max_logprob_difference"] < 1e-5


@pytest.mark.slow
def test_async_rollouts_are_at_most_one_version_old(short_run):
    """The first rollout is fresh, later ones a version old, as each token records; each sync is proven."""
    document = trained(short_run("async", **{"train.steps": 5}))
    assert [entry["staleness/max"] for entry in document["metrics_lines"]] == [0, 1, 1, 1, 1]
    assert [entry["policy_version"] for entry in document["metrics_lines"]] == [0, 1, 2, 3, 4]
    sampled_by = {entry["step"]: set(entry["versions"]) for entry in document["completions_lines"]}
    assert sampled_by == {1: {0}, 2: {0}, 3: {1}, 4: {2}, 5: {3}}
    assert document["max_staleness"] == 1
    assert document["syncs_proven"] == document["syncs"] == 4
    stale = document["metrics_lines"][-1]
    assert stale["logprob_difference/max"] > 10 * document["max_logprob_difference"]  # the age shows


def test_same_seed_gives_identical_runs(short_run):
    """A different seed gives a different run."""
    first, again = (trained(short_run(**{"output.name": name})) for name in ("first", "again"))
    reseeded = trained(short_run(**{"train.seed": 1}))
    assert first["parameters"] == again["parameters"] != reseeded["parameters"]


def test_trainer_and_engine_agree_on_every_token(short_run):
    """On fresh rollouts log-probs differ by rounding only, and the importance ratio is 1 up to it."""
    document = trained(short_run())
    assert document["max_logprob_difference"] < 1e-5
    for entry in document["metrics_lines"]:
        assert entry["importance_ratio/mean"] == pytest.approx(1.0, abs=1e-5)
        assert entry["ratio/mean"] == 1.0


def test_run_folder_contents(short_run):
    """One line a step and a completion, complete and consistent, and the settings."""
    document = trained(short_run(**{"loss.kl_coefficient": 0.1}))
    expected = {
        "reward/mean",
        "reward/std",
        "loss",
        "kl",
        "entropy",
        "clip_ratio",
        "grad_norm",
        "lr",
        "time/step_s",
    }
    assert [entry["step"] for entry in document["metrics_lines"]] == [1, 2, 3, 4]
    assert all(expected <= set(entry) for entry in document["metrics_lines"])
    assert document["metrics_lines"][-1]["kl"] > 0
    entry = document["completions_lines"][0]
    assert len(entry["ids"]) == len(entry["logprobs"]) == len(entry["versions"])
    assert entry["prompt"].endswith(">")
    folder = Path(document["metrics"]).parent
    assert json.loads((folder / "config.json").read_text())["train"]["steps"] == 4


def completion(*versions: int) -> Completion:
    """Return a completion whose tokens have these versions."""
    count = len(versions)
    return Completion("r", (1,) * count, (-1.0,) * count, versions, "length")


def test_staleness_is_counted_per_token():
    """A completion may span a weight update."""
    assert staleness([completion(3, 3, 4), completion(4)], 4, 1) == [1, 1, 0, 0]


@pytest.mark.parametrize(("version", "limit"), [(5, 0), (6, 1), (4, 3)])
def test_too_old_or_future_versions_are_refused(version, limit):
    with pytest.raises(StalenessError, match=r"request r: a token was sampled by version"):
        staleness([completion(4, 5)], version, limit)


def metrics_and_parameters(config) -> tuple[list[dict], str]:
    """Train; return the metrics without wall times, and the parameters."""
    document = trained(config)
    return without_wall_times(document), document["parameters"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "mode", ["colocate", *(pytest.param(mode, marks=pytest.mark.long) for mode in ("async", "server"))]
)
def test_evaluation_uses_the_trained_version_and_changes_nothing(short_run, mode):
    """One caller makes it between two rollouts, and it changes no parameter."""
    plain, parameters = metrics_and_parameters(short_run(mode))
    entries, evaluated = metrics_and_parameters(
        short_run(mode, **{"eval.every": 2, "eval.prompts": 6, "output.name": "evaluated"})
    )
    assert evaluated == parameters
    without_eval = [{k: v for k, v in entry.items() if not k.startswith("eval/")} for entry in entries]
    assert without_eval == plain
    versions = {entry["step"]: entry.get("eval/policy_version") for entry in entries}
    assert versions == {1: 0, 2: None, 3: 2, 4: None} if mode != "async" else versions[1] == 0
    assert all(0 <= entry["eval/reward/mean"] <= 1 for entry in entries if "eval/reward/mean" in entry)


@pytest.mark.slow
def test_rollouts_ahead_keep_the_staleness_bound(short_run):
    """The engine gets as many rollouts ahead as the bound allows, independent of time."""
    document = trained(short_run("async", **{"train.steps": 7, "rollout.max_staleness": 3}))
    assert [entry["staleness/max"] for entry in document["metrics_lines"]] == [0, 1, 2, 3, 1, 2, 3]
