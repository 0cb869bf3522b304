"""Checks of training curves find symptoms with value, first step and the option to change; healthy runs pass.

Metrics come from rows, or through the command line from trainer_state.json, JSON lines and logs.
"""

import json
import math
import random

import pytest

from diagnostics import safe_io
from diagnostics.__main__ import main
from diagnostics.audit.recorded import metric_files
from diagnostics.audit.recorded.metric_files import metric_row
from diagnostics.audit.recorded.run_data import MetricSeries
from diagnostics.audit.results import CLEAN, FAULT, NOT_DECIDED, SKIPPED, put_causes_first
from diagnostics.audit.training_curves import check_learning, check_metrics
from tests.diagnostics.audit_running.metric_lines import healthy_metrics


def results_of(change, steps=120, base=healthy_metrics):
    """Return the results by family of a run whose metrics of each step are changed."""
    rows = [metric_row(base(step) | change(step), f"metrics.jsonl:{step}") for step in range(1, steps + 1)]
    return {result.family: result for result in check_metrics((MetricSeries("metrics.jsonl", tuple(rows)),))}


def faults(change, *run):
    """Return the faults by family in a run whose metrics of each step are changed."""
    results = results_of(change, *run)
    return {family: result for family, result in results.items() if result.outcome == FAULT}


ZERO = dict.fromkeys(("reward", "reward_std", "loss", "grad_norm"), 0.0)
NO_SPREAD = dict.fromkeys(("reward_std", "frac_reward_zero_std"))
RANGE = {"reward": 1.0, "critic/score/min": 1.0, "critic/score/max": 1.0}
CASES = {
    "dead reward": (lambda _: ZERO, {"metrics/dead_reward"}),
    "constant reward": (lambda _: {"reward": 0.3, "reward_std": 0.0, "grad_norm": 0.0}, {"metrics/dead_reward"}),
    "dead reward without spread": (lambda _: {"reward": 0.0, "reward_std": None, "frac_reward_zero_std": None,
                                              "grad_norm": 0.0}, {"metrics/dead_reward"}),
    "dead reward with the gradient of a KL term": (lambda _: NO_SPREAD | {"reward": 0.0}, {"metrics/dead_reward"}),
    "equal rewards in all groups": (lambda _: NO_SPREAD | RANGE, {"metrics/dead_reward"}),
    "advantages of 0": (lambda _: NO_SPREAD | {"critic/advantages/min": 0.0, "critic/advantages/max": 0.0},
                        {"metrics/no_spread"}),
    "KL that grows from the first step": (lambda step: {"kl": 0.5 * (step - 1)}, {"curves/kl_explosion"}),
    "flat reward": (lambda step: {"reward": 0.3 + random.Random(step).gauss(0, 0.01)}, {"curves/flat_reward"}),
    "entropy collapse": (lambda step: {"entropy": max(0.002, 0.59 * math.exp(-step / 8))}, {"curves/entropy_collapse"}),
    "KL explosion": (lambda step: {"kl": 0.001 if step < 80 else 3.0}, {"curves/kl_explosion"}),
    "clip ratio 1": (lambda step: {"clip_ratio/region_mean": 1.0 if step > 60 else 0.1}, {"curves/clip"}),
    "zero-spread groups": (lambda _: {"frac_reward_zero_std": 0.958}, {"metrics/little_spread"}),
    "no spread": (lambda _: {"frac_reward_zero_std": 1.0, "grad_norm": 0.0}, {"metrics/no_spread"}),
    "length growth": (lambda step: {"completions/clipped_ratio": step / 120, "completions/mean_length": 100 + 8 * step},
     {"curves/truncation"}),
    "length growth without a better reward":
        (lambda step: {"completions/mean_length": 100 + 8 * step, "reward": 0.3 + step % 2}, {"curves/length_growth"}),
    "truncation": (lambda _: {"completions/clipped_ratio": 0.7}, {"curves/truncation"}),
    "all truncated": (lambda _: {"completions/clipped_ratio": 1.0}, {"metrics/all_cut"}),
    "gradient spikes": (lambda step: {"grad_norm": 500.0 if step % 40 == 39 else 0.5}, {"curves/gradient_spikes"}),
    "no gradient": (lambda step: {"grad_norm": 0.0 if 50 < step < 60 else 1.0, "frac_reward_zero_std": 0.0},
     {"metrics/no_gradient"}),
    "another reference": (lambda _: {"kl": 0.05}, {"metrics/reference"}),
    "learning rate 0": (lambda _: {"learning_rate": 0.0}, {"metrics/rate_zero"}),
    "NaN that stays": (lambda step: {"grad_norm": math.nan if step > 90 else 1.0}, {"metrics/nan"}),
    "NaN after one that recovered": (lambda step: {"grad_norm": math.nan if step == 10 or step > 60 else 1.0},
     {"metrics/nan"}),
    "two skipped steps of fp16": (lambda step: {"grad_norm": math.inf if step in {10, 119} else 1.0}, set()),
    "engine drifts": (lambda step: {"sampling/sampling_logp_difference/mean": 0.004 + 0.001 * step},
     {"metrics/drifting"}),
    "reward collapse": (lambda step: {"reward": 0.8 if step < 70 else 0.1}, {"curves/reward_collapse"}),
    "length collapse": (lambda step: {"completions/mean_length": 500 if step < 60 else 10}, {"curves/length_collapse"}),
    "entropy explosion": (lambda step: {"entropy": 0.4 if step < 60 else 6.0}, {"curves/entropy_explosion"}),
    "equal in groups": (lambda _: {"rewards/my_reward/std": 0.5} | ZERO | {"frac_reward_zero_std": 1.0},
     {"metrics/no_spread"}),
    "one reward function falls": (lambda step: {"rewards/acc/mean": 0.4 - step / 400, "reward": 0.3 + step / 200},
     {"curves/function_falls"}),
    "falling evaluation": (lambda step: {"eval_reward": 0.5 if step < 60 else 0.2}, {"curves/evaluation_falls"}),
}  # fmt: skip


@pytest.mark.parametrize(("change", "families"), CASES.values(), ids=CASES)
def test_symptom_is_found(change, families):
    """The symptom's fault is found, and no other except `metrics/unlike` and `curves/flat_reward`.

    Two skipped steps of fp16 are no symptom.
    """
    reported = set(faults(change))
    assert families <= reported <= families | {"metrics/unlike", "curves/flat_reward"}


def test_constant_mean_reward_is_not_decided_without_its_spread():
    constant = {"reward": 1.0} | NO_SPREAD
    assert results_of(lambda _: constant)["metrics/dead_reward"].outcome == NOT_DECIDED
    spread = {"critic/score/min": 0.0, "critic/score/max": 2.0}
    assert "metrics/dead_reward" not in results_of(lambda _: constant | spread)


def solve_task(step):
    """Return the metrics of a task whose groups have no spread and no gradient once it is solved."""
    if step > 90:
        return {"reward": 1.0, "reward_std": 0.0, "frac_reward_zero_std": 1.0, "grad_norm": 0.0}
    return {"reward": 0.005 * step, "frac_reward_zero_std": 0.2}


def with_curriculum(step, start, level):
    """Return rewards that rise, fall every 60 steps, and rise again; the evaluation is logged every 10 steps."""
    reward = start + level * (step % 60) / 120 + random.Random(step).gauss(0, 0.02)
    return {"reward": reward, "eval_reward": reward if step % 10 == 1 else None}


HEALTHY = {
    "solved task": solve_task,
    "rising evaluation": lambda step: {"eval_reward": 0.3 + step / 1000 + 0.1 * (step % 2)},
    "short noisy evaluation":
        lambda step: {"eval_reward": (0.3, 0.45, 0.28)[step // 40 % 3]} if step % 40 == 0 else {},
    "length growth with the reward": lambda step: {"completions/mean_length": 100 + 8 * step},
    "curriculum": lambda step: with_curriculum(step, 0.3, 0.8),
    "curriculum with a small fall": lambda step: with_curriculum(step, 0.25, 0.3),
    # Neither is the mean difference, or the KL to the reference.
    "maximum difference, KL to the old policy":
        lambda _: {"training/rollout_probs_diff_max": 0.4, "actor/ppo_kl": 1.4, "kl": None},
}  # fmt: skip


@pytest.mark.parametrize("change", HEALTHY.values(), ids=HEALTHY)
def test_unusual_healthy_curves_have_no_fault(change):
    assert faults(change) == {}


@pytest.mark.parametrize("seed", range(20))
def test_random_healthy_runs_have_no_fault(seed):
    generator = random.Random(seed)
    assert faults(lambda _: {}, 200, lambda step: healthy_metrics(step, generator)) == {}


def test_fault_names_its_first_step_and_the_option_of_the_framework():
    """A fault has its first step, and the option to change under the name of the framework that wrote the metrics."""
    result = faults(lambda step: {"entropy": 0.6 if step < 50 else 0.002})["curves/entropy_collapse"]
    assert (result.code, "since step 50" in result.message) == ("NUM902", True)
    causes = [observed.text for observed in result.evidence if observed.name == "cause"]
    assert causes[0].startswith("cause 1:")
    assert "epsilon_high=0.28" in causes[0]
    verl = {f"actor/{name}": 1.0 for name in ("pg_loss", "lr")}
    result = faults(lambda step: verl | {"actor/entropy": 0.6 if step < 50 else 0.002, "entropy": None})
    options = [fact.values.get("option", "") for fact in result["curves/entropy_collapse"].evidence]
    assert options[1].startswith("actor_rollout_ref.")


def test_share_of_rollouts_without_gradient_is_reported():
    half = {"frac_reward_zero_std": 0.5}
    rows = [metric_row(healthy_metrics(step) | half, "", step) for step in range(1, 61)]
    result = check_learning((MetricSeries("metrics.jsonl", tuple(rows)),))
    assert result.outcome == CLEAN
    assert "50% of rollouts produced no gradient" in result.evidence[0].text


@pytest.mark.parametrize("metrics", [{}, {"reward": 0.3, "grad_norm": 0.5}], ids=["no reward", "flat reward"])
def test_metrics_that_do_not_show_whether_the_run_learns_are_not_clean(metrics):
    rows = [metric_row({"loss": 0.1, "step": step} | metrics, "", step) for step in range(1, 31)]
    assert check_learning((MetricSeries("metrics.jsonl", tuple(rows)),)).outcome == SKIPPED


@pytest.mark.parametrize("name", ["trainer_state.json", "state.txt", "anything"])
def test_trainer_state_is_recognised_under_any_name(tmp_path, capsys, name):
    history = [{"step": step, "learning_rate": 1e-6} | ZERO for step in range(1, 101)]
    (tmp_path / name).write_text(json.dumps({"log_history": history, "global_step": 100}))
    assert main(["audit", str(tmp_path / name)]) == 1
    assert "no gradient in 100 of 100 steps" in capsys.readouterr().out


SUMMARY = {"train_runtime": 0.0176, "train_steps_per_second": 71590.9, "train_loss": 0.5}
STEPS = [{"loss": 1.2 - step / 10, "reward": 0.1 * step} for step in range(3)]


@pytest.mark.parametrize("steps", [[], STEPS], ids=["summary only", "a fast toy run that logged its steps"])
def test_implausible_training_speed_is_reported_if_no_steps_were_logged(tmp_path, capsys, steps):
    (tmp_path / "run.log").write_text("\n".join(map(str, [*steps, SUMMARY])))
    main(["audit", str(tmp_path / "run.log")])
    is_reported = "nothing was trained: 1260 steps in 0.0176 s" in capsys.readouterr().out
    assert is_reported is not bool(steps)


def test_log_of_ms_swift_gets_its_options_and_no_search_for_a_line_that_is_named(tmp_path, capsys):
    """The trainer follows from a metric without a canonical name; the fix for NaN starts after the named line."""
    common = {
        "loss": 0.0,
        "reward": 0.3,
        "reward_std": 0.4,
        "completions/mean_length": 9.0,
        "memory(GiB)": 56.7,
    }
    for grad_norm, shown in (
        ("0.0", "--gradient_checkpointing_kwargs"),
        ("nan", "Fix: ms-swift: --resume_from"),
    ):
        lines = [str(common | {"grad_norm": float(grad_norm if step > 3 else 0)}) for step in range(12)]
        (tmp_path / "run.log").write_text("\n".join(lines))
        main(["audit", str(tmp_path / "run.log")])
        assert shown in capsys.readouterr().out


@pytest.mark.parametrize("padding", [0, 900])
def test_whole_log_is_read_up_to_a_limit(tmp_path, capsys, monkeypatch, padding):
    """A collapse after a thousand steps is found; above the limit it is not, and the middle is reported as unread."""
    monkeypatch.setattr(metric_files, "_HEAD_BYTES", 800 * safe_io.KIB)
    monkeypatch.setattr(metric_files, "_TAIL_BYTES", 25 * safe_io.KIB)
    with (tmp_path / "train.log").open("w", encoding="utf-8") as log:
        for step in range(1200):
            entropy, reward = 0.6 if step < 1100 else 0.001, 0.3 + step / 4000
            log.write(
                f"step:{step} - actor/entropy:{entropy} - critic/score/mean:{reward}\n{'.' * padding}\n"
            )
    main(["audit", str(tmp_path), "--verbose"])
    printed = capsys.readouterr().out
    assert ("entropy fell from 0.6 to 0.001" in printed) == (padding == 0)
    assert ("only the first 8 MiB and the last 256 KiB were read" in printed) == (padding > 0)


@pytest.mark.parametrize("name", ["length collapse", "entropy explosion", "falling evaluation"])
def test_metric_that_left_its_level_has_its_first_step(name):
    change, families = CASES[name]
    (result,) = faults(change).values()
    assert {result.family} == families
    assert "step 60" in result.message


@pytest.mark.parametrize(("last", "families"), [(30, {"metrics/rate_zero"}), (118, set())])
def test_learning_rate_of_0_long_before_the_end_is_a_fault(last, families):
    faulty = faults(lambda step: {"learning_rate": 1e-6 if step < last else 0.0})
    assert set(faulty) == families
    assert all("since step 30: 91 of 120 steps" in result.message for result in faulty.values())


@pytest.mark.parametrize(("name", "families"), [("actor/kl_loss", set()), ("kl", {"metrics/reference"})])
def test_kl_of_the_first_step_is_a_fault_except_in_verl(name, families):
    """verl logs one line for several updates, so its first KL is not from before the first update."""
    assert (
        set(faults(lambda _: {}, 20, lambda step: {"step": step, name: 0.05, "reward": 0.1 * step}))
        == families
    )


VERL_ROW = '{{"step": {step}, "data": {{"critic/score/mean": {reward}, "actor/grad_norm": 0.3}}}}\n'
EASYR1_ROW = (
    '{{"step": {step}, "actor": {{"grad_norm": 0.3}}, "critic": {{"score": {{"mean": {reward}}}}}}}\n'
)
EASYR1_BLOCK = """(Runner pid=1) Step {step}
(Runner pid=1) actor:
(Runner pid=1)   grad_norm: 0.3
(Runner pid=1) critic:
(Runner pid=1)   score:
(Runner pid=1)     mean: {reward}
"""


@pytest.mark.parametrize(
    ("name", "row"),
    [("run.jsonl", VERL_ROW), ("metrics", VERL_ROW), ("folder", VERL_ROW), ("run.jsonl", EASYR1_ROW),
     ("run.log", EASYR1_BLOCK)],
)  # fmt: skip
def test_metrics_of_verl_and_easyr1_are_read(tmp_path, capsys, name, row):
    path = tmp_path / "run.jsonl" if name == "folder" else tmp_path / name
    steps = range(1, 101)
    path.write_text("".join(row.format(step=n, reward=0.6 if n < 70 else 0.01) for n in steps))
    assert main(["audit", str(tmp_path if name == "folder" else path)]) == 1
    assert "the reward fell from 0.6 to 0.01 since step 70" in capsys.readouterr().out


def test_numbers_without_a_known_name_are_not_checked(tmp_path, capsys):
    """The exit code is 3, and the output names the file, although another file has known metrics."""
    (tmp_path / "train.log").write_text("\n".join(str(healthy_metrics(step)) for step in range(1, 41)))
    (tmp_path / "other.jsonl").write_text(json.dumps({"a": 1, "b": 2, "c": 3}) + "\n")
    assert main(["audit", str(tmp_path)]) == 3
    assert "other.jsonl" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("zero", "outcome"), [("MathAccuracy", NOT_DECIDED), ("Format", CLEAN), ("repetition_penalty", "")]
)
def test_reward_function_that_is_always_zero_is_judged_by_its_name(zero, outcome):
    """A zero of an accuracy is undecided, of a format is clean, and of a penalty gives no result."""
    means = {f"rewards/{zero}/mean": 0.0, "rewards/other/mean": 0.4}
    result = results_of(lambda _: means).get("metrics/zero_function")
    assert (result.outcome if result else "") == outcome


def test_steps_without_a_reward_make_no_gradient_spikes():
    """With a sparse reward, the KL term alone makes the usual gradient; spikes among steps with a reward are found."""

    def sparse(step):
        is_dead = step % 3 > 0
        return {"reward": 0.0 if is_dead else 0.01 + step / 1000, "reward_std": None, "frac_reward_zero_std": None,
                "grad_norm": 0.002 if is_dead else 0.2}  # fmt: skip

    assert faults(sparse) == {}
    faulty = faults(lambda step: sparse(step) | ({"grad_norm": 50.0} if step in {60, 75, 90} else {}))
    assert list(faulty) == ["curves/gradient_spikes"]
    assert faulty["curves/gradient_spikes"].values["times"] == 250


def test_one_dead_reward_is_not_reported_as_two_causes():
    """The fall of the reward is a consequence of the dead reward, and gives no other causes."""
    results = results_of(lambda step: ZERO if step > 60 else {"reward": 0.6}).values()
    dead, fall = (result for result in put_causes_first(*results) if result.outcome == FAULT)
    assert (dead.family, fall.family) == ("metrics/dead_reward", "curves/reward_collapse")
    assert fall.evidence[0].text == f"probably a consequence of: {dead.message}"
    assert "cause" in {fact.name for fact in dead.evidence}
    assert "cause" not in {fact.name for fact in fall.evidence}


def test_cause_does_not_begin_after_its_consequence():
    def change(step):
        truncated = {"completions/clipped_ratio": 1.0} if step > 70 else {}
        return truncated | {"reward": max(0.0, 0.8 - step / 75)}

    fall = next(it for it in put_causes_first(*results_of(change).values()) if it.code == "NUM904")
    assert fall.values["start"] < 70
    assert {fact.name for fact in fall.evidence} == {"metric_line", "cause"}


def test_causes_come_before_a_bad_reward_which_has_no_advice_of_its_own():
    change = lambda step: {"learning_rate": 0.0, "reward": 0.5 + random.Random(step).gauss(0, 0.01)}  # noqa: E731
    ordered = put_causes_first(*reversed(faults(change).values()))
    assert [result.family for result in ordered] == ["metrics/rate_zero", "curves/flat_reward"]
    assert "cause" not in {fact.name for fact in ordered[1].evidence}
    assert "the learning rate is 0" in ordered[1].evidence[0].text


@pytest.mark.parametrize(
    ("line", "expected", "code"),
    [
        ("{'loss': 0.000, 'grad_norm': 0.000, 'reward': 0.000, 'reward_std': 0.000}", "the reward is 0 for every", 1),
        ("step:%d - critic/score/mean:0.%d - actor/lr:0.000 - actor/grad_norm:0.3", "a learning rate with more", 0),
        ("step:%d - critic/score/mean:0.%d - actor/lr:0.0 - actor/grad_norm:0.3", "the learning rate is 0", 1),
    ],
    ids=["dead reward", "learning rate 0.000", "learning rate 0.0"],
)  # fmt: skip
def test_rounded_zero_is_a_fault_only_of_a_constant_reward(tmp_path, capsys, line, expected, code):
    """A constant reward is dead whatever its digits; a learning rate is 0 if printed as 0.0; 0.000 is not checked."""
    lines = [line % (step, 30 + step) if "%" in line else line for step in range(40)]
    (tmp_path / "train.log").write_text("\n".join(lines))
    assert main(["audit", str(tmp_path)]) == code
    assert expected in capsys.readouterr().out
