"""Dynamic sampling replaces groups without a reward signal, up to a number of rollouts.

The overlong filter counts truncated samples, and changes the gradient but not the mean reward.
"""

import pytest

from grpo_core.config import Config
from grpo_core.learn.group_pool import GroupPool
from grpo_core.types import Completion, Prompt, Request, Sample
from tests.grpo_core.conftest import run_training


def rollout(number, rewards):
    """Return the groups and the requests of a rollout, with one group for each list of rewards."""
    groups, requests = [], []
    for place, values in enumerate(rewards):
        prompt, samples = Prompt(f"{number}.{place}", "", (1,)), []
        for index, reward in enumerate(values):
            requests.append(Request(f"{prompt.id}.{index}", prompt.ids, 0))
            completion = Completion(requests[-1].id, (1,), (-1.0,), (0,), "stop")
            samples.append(Sample(prompt, completion, "", reward, 0.0))
        groups.append(samples)
    return groups, requests


@pytest.fixture
def pool(short_run):
    """Return a pool with three groups of two samples per step and at most two further rollouts."""
    settings = {"sampling.dynamic": "true", "sampling.max_resample_times": 2, "train.prompts_per_step": 3}
    return GroupPool(short_run(**{"sampling.group_size": 2, **settings}))


def fill(pool, *rollouts):
    """Add rollouts given by their rewards; assert that the pool is not ready before each."""
    for number, rewards in enumerate(rollouts):
        assert not pool.ready()
        pool.add(*rollout(number, rewards), [0])


def selected_ids(pool):
    """Return the ids of the prompts of the next step."""
    return [group[0].prompt.id for group in pool.select()]


def test_groups_without_signal_are_replaced(pool):
    """Groups of further prompts replace groups without a signal, in request order; surplus groups are dropped."""
    fill(pool, [(0, 1), (1, 1), (0, 0)], [(0, 1), (1, 0), (0, 1)])
    assert pool.ready()
    assert selected_ids(pool) == ["0.0", "1.0", "1.1"]
    metrics = pool.metrics()
    assert (metrics["resample/rounds"], metrics["resample/exhausted"]) == (1, 0.0)
    # Metrics cover everything that was sampled; the selected groups alone would always look half solved.
    assert metrics["reward/mean"] == pytest.approx(6 / 12)
    assert metrics["reward/zero_variance_groups"] == pytest.approx(2 / 6)


def test_exhausted_resampling_fills_the_step(pool):
    """After the last rollout the step is filled, groups with a signal first, and `resample/exhausted` is set."""
    fill(pool, [(1, 1), (0, 1), (1, 1)], [(1, 1), (1, 1), (1, 1)], [(1, 1), (1, 1), (1, 0)])
    assert pool.ready()
    assert selected_ids(pool) == ["0.1", "2.2", "0.0"]
    assert (pool.metrics()["resample/rounds"], pool.metrics()["resample/exhausted"]) == (2, 1.0)


def test_without_dynamic_sampling_a_step_is_its_rollout():
    """Without dynamic sampling a step has all groups of its rollout in order, also those without a signal."""
    pool = GroupPool(Config())
    fill(pool, [(1, 1), (0, 1), (0, 0)])
    assert pool.ready()
    assert selected_ids(pool) == ["0.0", "0.1", "0.2"]
    assert "resample/rounds" not in pool.metrics()


@pytest.mark.slow
@pytest.mark.long
def test_dynamic_sampling_is_the_same_in_all_modes(short_run):
    """With dynamic sampling all modes have the same metrics, and some steps resample."""
    settings = {"sampling.dynamic": "true", "sampling.group_size": 2, "rollout.max_staleness": 0}
    runs = [run_training(short_run(mode, **settings))[1] for mode in ("colocate", "async", "server")]
    assert runs[0] == runs[1] == runs[2]
    assert sum(entry["resample/rounds"] for entry in runs[0]) > 0


def test_resampling_ahead_keeps_the_staleness_bound(short_run):
    """If steps take several rollouts, the staleness of async mode stays within its bound."""
    settings = {"sampling.dynamic": "true", "sampling.group_size": 2, "rollout.max_staleness": 2}
    _, entries = run_training(short_run("async", **{**settings, "train.steps": 6}))
    assert 0 < max(entry["staleness/max"] for entry in entries) <= 2
    assert sum(entry["resample/rounds"] for entry in entries) > 0


def test_overlong_filter_counts_truncated_samples_and_changes_the_gradient(short_run):
    """The mean reward stays the same, and so does the mean ratio, which covers only tokens with a gradient."""
    settings = {"sampling.max_tokens": 4, "task.max_length": 3, "train.steps": 1}
    _, (plain,) = run_training(short_run(**settings))
    options = {"sampling.overlong_filter": "true", "output.name": "filtered"}
    _, (filtered,) = run_training(short_run(**settings, **options))
    assert plain["reward/mean"] == filtered["reward/mean"]
    assert filtered["completions/filtered"] == plain["completions/truncated"] > 0
    assert plain["completions/filtered"] == 0
    assert plain["ratio/mean"] == filtered["ratio/mean"] == 1.0
    assert filtered["grad_norm"] != plain["grad_norm"]
