"""The three rollout modes give the same numbers without staleness; async keeps the staleness bound.

Trainer and engine agree on log-probs, and evaluation changes nothing.
"""

import pytest

from grpo_core.learn.group_pool import StalenessError, staleness
from grpo_core.types import Completion
from tests.grpo_core.conftest import read_lines, run_training


@pytest.mark.slow
def test_modes_are_bit_identical_without_staleness(short_run):
    """Parameters, metrics and completions of colocate, async at staleness 0, and server are equal.

    On fresh rollouts trainer and engine agree on log-probs up to rounding. Another seed gives another first step.
    tests/gpu/test_runs.py repeats a run with the same seed.
    """
    settings = {"train.steps": 5, "train.warmup_updates": 0}
    colocate, metrics = run_training(short_run("colocate", **settings))
    completions = read_lines(colocate["completions"])
    assert len(completions) == 5 * 16
    for mode in ("async", "server"):
        document, mode_metrics = run_training(short_run(mode, **{"rollout.max_staleness": 0}, **settings))
        assert document["parameters"] == colocate["parameters"]
        assert read_lines(document["completions"]) == completions
        assert mode_metrics == metrics
        assert document["max_staleness"] == 0
        assert document["syncs_proven_by_fingerprint"] == document["syncs"] == 5
    assert colocate["max_logprob_difference"] < 1e-5
    for entry in metrics:
        assert entry["importance_ratio/mean"] == pytest.approx(1.0, abs=1e-5)
        assert entry["ratio/mean"] == 1.0
    _, (reseeded,) = run_training(
        short_run(**{**settings, "train.steps": 1, "train.seed": 1, "output.name": "reseeded"})
    )
    assert reseeded != metrics[0]


@pytest.mark.long
def test_modes_are_bit_identical_for_a_wide_model(short_run):
    """Parameters and metrics are also equal for a model so wide that torch multiplies by oneDNN."""
    settings = {"train.steps": 3, "model.hidden_size": 128, "model.layers": 2, "rollout.max_staleness": 0}
    runs = [run_training(short_run(mode, **settings)) for mode in ("colocate", "async", "server")]
    assert {document["parameters"] for document, _ in runs} == {runs[0][0]["parameters"]}
    assert [metrics for _, metrics in runs] == [runs[0][1]] * 3
    assert runs[0][0]["max_logprob_difference"] < 1e-5


@pytest.mark.slow
def test_async_rollouts_are_at_most_one_version_old(short_run):
    """The first rollout is fresh, later ones a version old, as each token records; each sync is proven."""
    document, metrics = run_training(short_run("async", **{"train.steps": 5}))
    assert [entry["staleness/max"] for entry in metrics] == [0, 1, 1, 1, 1]
    assert [entry["policy_version"] for entry in metrics] == [0, 1, 2, 3, 4]
    sampled_by = {entry["step"]: set(entry["versions"]) for entry in read_lines(document["completions"])}
    assert sampled_by == {1: {0}, 2: {0}, 3: {1}, 4: {2}, 5: {3}}
    assert document["max_staleness"] == 1
    assert document["syncs_proven"] == document["syncs"] == 4
    assert metrics[-1]["logprob_difference/max"] > 10 * document["max_logprob_difference"]  # the age shows


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


@pytest.mark.slow
@pytest.mark.parametrize(
    "mode", ["colocate", *(pytest.param(mode, marks=pytest.mark.long) for mode in ("async", "server"))]
)
def test_evaluation_uses_the_trained_version_and_changes_nothing(short_run, mode):
    """Evaluation uses the version to be trained (in async mode checked for step 1); other numbers do not change."""
    document, plain = run_training(short_run(mode))
    settings = {"eval.every": 2, "eval.prompts": 6, "output.name": "evaluated"}
    evaluated, entries = run_training(short_run(mode, **settings))
    assert evaluated["parameters"] == document["parameters"]
    without_eval = [{k: v for k, v in entry.items() if not k.startswith("eval/")} for entry in entries]
    assert without_eval == plain
    versions = {entry["step"]: entry.get("eval/policy_version") for entry in entries}
    assert versions == {1: 0, 2: None, 3: 2, 4: None} if mode != "async" else versions[1] == 0
    assert all(0 <= entry["eval/reward/mean"] <= 1 for entry in entries if "eval/reward/mean" in entry)


@pytest.mark.slow
def test_rollouts_ahead_keep_the_staleness_bound(short_run):
    """The engine gets several rollouts at a time, so staleness rises to the bound of 3 and starts at 1 again."""
    _, metrics = run_training(short_run("async", **{"train.steps": 7, "rollout.max_staleness": 3}))
    assert [entry["staleness/max"] for entry in metrics] == [0, 1, 2, 3, 1, 2, 3]
