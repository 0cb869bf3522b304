"""The three rollout modes: the same numbers where nothing is stale, a bound where something may be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from grpo_core import run
from grpo_core.learn.pool import StalenessError, staleness
from grpo_core.types import Completion


def trained(config) -> dict:
    """The summary of a run, with its metrics and completions read back."""
    document = run.train(config, lambda entry: None)
    assert document["outcome"] == "ok", document["error"]
    lines = {name: Path(document[name]).read_text().splitlines() for name in ("metrics", "completions")}
    return {
        **document,
        **{f"{name}_lines": [json.loads(line) for line in text] for name, text in lines.items()},
    }


def numbers(document: dict) -> list[dict]:
    """The metrics that are no wall times."""
    entries = document["metrics_lines"]
    return [{k: v for k, v in entry.items() if not k.startswith("time/")} for entry in entries]


@pytest.mark.slow
def test_nothing_stale_means_the_same_bits_in_all_modes(short_run):
    """Parameters, metrics and completions of colocate, async at staleness 0, and server are bitwise equal."""
    settings = {"train.steps": 10, "train.warmup_updates": 0}
    colocate = trained(short_run("colocate", **settings))
    waiting = trained(short_run("async", **{"rollout.max_staleness": 0}, **settings))
    server = trained(short_run("server", **settings))
    assert len(colocate["completions_lines"]) == 10 * 16
    for mode in (waiting, server):
        assert mode["parameters"] == colocate["parameters"]
        assert mode["completions_lines"] == colocate["completions_lines"]
        assert numbers(mode) == numbers(colocate)
        assert mode["max_staleness"] == 0
        assert mode["syncs_proven_by_fingerprint"] == mode["syncs"] == 10


@pytest.mark.long
def test_a_wide_model_has_the_same_bits_in_all_modes(short_run):
    """One that multiplies by oneDNN, in the trainer, in an engine of its process and in one of another."""
    settings = {"train.steps": 3, "model.hidden_size": 128, "model.layers": 2, "rollout.max_staleness": 0}
    runs = [trained(short_run(mode, **settings)) for mode in ("colocate", "async", "server")]
    assert {document["parameters"] for document in runs} == {runs[0]["parameters"]}
    assert [numbers(document) for document in runs] == [numbers(runs[0])] * 3
    assert runs[0]["max_logprob_difference"] < 1e-5


@pytest.mark.slow
def test_async_is_one_version_ahead_and_never_more(short_run):
    """The first rollout is fresh, each later one a version old, and every token says so; each sync is proven."""
    document = trained(short_run("async", **{"train.steps": 5}))
    assert [entry["staleness/max"] for entry in document["metrics_lines"]] == [0, 1, 1, 1, 1]
    assert [entry["policy_version"] for entry in document["metrics_lines"]] == [0, 1, 2, 3, 4]
    sampled_by = {entry["step"]: set(entry["versions"]) for entry in document["completions_lines"]}
    assert sampled_by == {1: {0}, 2: {0}, 3: {1}, 4: {2}, 5: {3}}
    assert document["max_staleness"] == 1
    assert document["syncs_proven"] == document["syncs"] == 4
    stale = document["metrics_lines"][-1]
    assert stale["logprob_difference/max"] > 10 * document["max_logprob_difference"]  # the age shows


def test_a_run_repeats_itself(short_run):
    """One seed always gives the same bits; another seed gives others."""
    first, again = (trained(short_run(**{"output.name": name})) for name in ("first", "again"))
    reseeded = trained(short_run(**{"train.seed": 1}))
    assert first["parameters"] == again["parameters"] != reseeded["parameters"]


def test_trainer_and_engine_agree_on_every_token(short_run):
    """Fresh rollouts: log-probs differ by rounding, and the importance ratio is 1 up to it."""
    document = trained(short_run())
    assert document["max_logprob_difference"] < 1e-5
    for entry in document["metrics_lines"]:
        assert entry["importance_ratio/mean"] == pytest.approx(1.0, abs=1e-5)
        assert entry["ratio/mean"] == 1.0


def test_what_is_written_down(short_run):
    """One line a step and a completion, complete and consistent; the settings beside them."""
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
    """A completion whose tokens are from these versions."""
    count = len(versions)
    return Completion("r", (1,) * count, (-1.0,) * count, versions, "length")


def test_staleness_is_counted_per_token():
    """A completion may span a weight update."""
    assert staleness([completion(3, 3, 4), completion(4)], 4, 1) == [1, 1, 0, 0]


@pytest.mark.parametrize(("version", "limit"), [(5, 0), (6, 1), (4, 3)])
def test_tokens_too_old_or_from_the_future_are_refused(version, limit):
    """This does not depend on the request."""
    with pytest.raises(StalenessError, match=r"request r: a token was sampled by version"):
        staleness([completion(4, 5)], version, limit)


def without_times(config) -> tuple[list[dict], str]:
    """The metrics of a run that are no wall times, and its parameters."""
    document = trained(config)
    return numbers(document), document["parameters"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "mode", ["colocate", *(pytest.param(mode, marks=pytest.mark.long) for mode in ("async", "server"))]
)
def test_evaluation_is_pinned_and_changes_nothing(short_run, mode):
    """It has the version that the step trains, comes from one owner between two rollouts, and moves no parameter."""
    plain, parameters = without_times(short_run(mode))
    entries, evaluated = without_times(
        short_run(mode, **{"eval.every": 2, "eval.prompts": 6, "output.name": "evaluated"})
    )
    assert evaluated == parameters
    without_eval = [{k: v for k, v in entry.items() if not k.startswith("eval/")} for entry in entries]
    assert without_eval == plain
    versions = {entry["step"]: entry.get("eval/policy_version") for entry in entries}
    assert versions == {1: 0, 2: None, 3: 2, 4: None} if mode != "async" else versions[1] == 0
    assert all(0 <= entry["eval/reward/mean"] <= 1 for entry in entries if "eval/reward/mean" in entry)


@pytest.mark.slow
def test_deeper_ahead_is_older_and_never_too_old(short_run):
    """The engine gets as many rollouts at once as the bound allows; the clock decides nothing."""
    document = trained(short_run("async", **{"train.steps": 7, "rollout.max_staleness": 3}))
    assert [entry["staleness/max"] for entry in document["metrics_lines"]] == [0, 1, 2, 3, 1, 2, 3]
