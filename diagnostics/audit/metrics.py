"""One analysis of training curves, for `audit FILE`, `audit RUN`, `audit --watch` and the callback.

Each check looks for an episode: consecutive steps in which a symptom holds. It reports the numbers, the first and last
step, and the likely causes in order, each with the option to change in the framework that the metric names belong to.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

from diagnostics.audit.model import CLEAN, NOT_DECIDED, Note, Result, fault, note, skipped
from diagnostics.audit.recorded import stats
from diagnostics.audit.recorded.run_data import MetricRow, MetricSeries

PROBE, CURVES = "metrics", "curves"
MIN_STEPS = 8
"""Steps with a reward signal that are needed to say whether a run learns."""
_UPDATE = ("loss", "grad_norm", "kl", "entropy", "reward", "ratio", "probs_diff", "mismatch_kl", "reward_std")
# The k3 estimate of the KL of a model to itself, computed by another kernel in bfloat16.
_KL_FLOOR, _KL_ALARM = 0.002, 0.01
# Mismatch of engine and trainer: metric, rounding floor, factor over the first steps, least alarm, alarm from step 1.
_MISMATCH = (("probs_diff", 1e-4, 10.0, 0.02, 0.05), ("mismatch_kl", 1e-5, 20.0, 0.005, 0.1))
_MOST_FLAT = 0.9
_FLAT_STEPS = 60

# Causes in the order in which to try them; the option by framework, "" for all others.
Cause = tuple[str, dict[str, str]]
_CAUSES: dict[str, tuple[Cause, ...]] = {
    "reward": (
        ("the reward function never matches: print one completion and its reward",
         {"TRL": "log_completions=True", "verl": "trainer.rollout_data_dir=DIR", "ms-swift": "--log_completions true"}),
        ("completions are cut off before the answer",
         {"TRL": "max_completion_length", "verl": "data.max_response_length", "ms-swift": "--max_completion_length"}),
        ("all tasks are too hard or too easy for this model: filter or mix the data set",
         {"verl": "algorithm.filter_groups.enable=True", "ms-swift": "--dynamic_sample true"}),
    ),
    "entropy": (
        ("the upper clip bound keeps unlikely tokens from growing: raise it",
         {"TRL": "epsilon_high=0.28", "verl": "actor_rollout_ref.actor.clip_ratio_high=0.28",
          "ms-swift": "--epsilon_high 0.28", "": "clip-higher, 0.28"}),
        ("the learning rate is too high: divide it by 3",
         {"TRL": "learning_rate", "verl": "actor_rollout_ref.actor.optim.lr", "ms-swift": "--learning_rate"}),
        ("samples are drawn at a low temperature: use 1.0",
         {"TRL": "temperature=1.0", "verl": "actor_rollout_ref.rollout.temperature=1.0",
          "ms-swift": "--temperature 1.0"}),
        ("nothing keeps the policy near its start: add a small KL or entropy term",
         {"TRL": "beta=0.001", "verl": "actor_rollout_ref.actor.entropy_coeff=0.001", "ms-swift": "--beta 0.001"}),
    ),
    "kl": (
        ("the learning rate is too high: divide it by 3",
         {"TRL": "learning_rate", "verl": "actor_rollout_ref.actor.optim.lr", "ms-swift": "--learning_rate"}),
        ("the KL term is too weak: raise its coefficient",
         {"TRL": "beta", "verl": "actor_rollout_ref.actor.kl_loss_coef", "ms-swift": "--beta"}),
        ("gradients are not clipped",
         {"TRL": "max_grad_norm=0.2", "verl": "actor_rollout_ref.actor.grad_clip=0.2",
         "ms-swift": "--max_grad_norm 0.2"}),
    ),
    "clip": (
        ("engine and trainer compute different log-probs:"
         " audit the" " server first", {"": "audit --server URL --checkpoint DIR"}),
        ("too many updates on one generation",
         {"TRL": "num_iterations=1", "verl": "actor_rollout_ref.actor.ppo_epochs=1", "ms-swift": "--num_iterations 1"}),
        ("the learning rate is too high",
         {"TRL": "learning_rate", "verl": "actor_rollout_ref.actor.optim.lr", "ms-swift": "--learning_rate"}),
    ),
    "mismatch": (
        ("the engine holds other weights or samples"
         " with other" " parameters", {"": "audit --server URL --checkpoint DIR"}),
        ("engine and trainer use different precision: correct with importance sampling",
         {"TRL": "vllm_importance_sampling_correction=True", "verl": "algorithm.rollout_correction.rollout_is=token"}),
    ),
    "truncation": (
        ("the limit is too short for this task",
         {"TRL": "max_completion_length", "verl": "data.max_response_length", "ms-swift": "--max_completion_length"}),
        ("the model never emits its end token: check eos_token_id and the chat template", {}),
        ("long completions are rewarded: use a length-neutral loss or an overlong penalty",
         {"TRL": 'loss_type="dapo"', "verl": "actor_rollout_ref.actor.loss_agg_mode=token-mean",
          "ms-swift": "--loss_type dapo"}),
    ),
    "gradient": (
        ("one sample with an extreme ratio dominates: clip gradients",
         {"TRL": "max_grad_norm=0.2", "verl": "actor_rollout_ref.actor.grad_clip=0.2",
         "ms-swift": "--max_grad_norm 0.2"}),
        ("the advantage is divided by a tiny standard deviation: do not scale by it",
         {"TRL": 'scale_rewards="none"', "verl": "algorithm.norm_adv_by_std_in_grpo=False",
         "ms-swift": "--scale_rewards none"}),
    ),
    "no_gradient": (
        ("all completions are masked because they are truncated",
         {"TRL": "mask_truncated_completions=False", "ms-swift": "--overlong_filter false"}),
        ("no parameter requires a gradient, or gradient checkpointing drops it",
         {"TRL": 'gradient_checkpointing_kwargs={"use_reentrant": False}'}),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Episode:
    """Consecutive rows of a series in which a symptom holds."""

    rows: tuple[MetricRow, ...]
    open: bool

    @property
    def span(self) -> str:
        """Return the steps in words."""
        first, last = (_step_name(row) for row in (self.rows[0], self.rows[-1]))
        return f"since {first}" if self.open else f"from {first} to {last}"

    @property
    def count(self) -> int:
        """Return the number of steps."""
        return len(self.rows)


def _step_name(row: MetricRow) -> str:
    return f"step {row.step}" if row.step is not None else row.place


@dataclass(frozen=True)
class Curves:
    """The rows of one file of metrics, with lookups."""

    rows: tuple[MetricRow, ...]

    def select(self, *names: str) -> list[MetricRow]:
        """Return the rows that have finite values of all these metrics."""
        return [
            row for row in self.rows if all(math.isfinite(row.values.get(name, math.nan)) for name in names)
        ]

    def column(self, name: str) -> list[float]:
        """Return the finite values of a metric."""
        return [row.values[name] for row in self.select(name)]

    def episode(self, names: Sequence[str], holds: Callable[..., bool], least: int) -> Episode | None:
        """Return the longest run of rows in which `holds` is true of the named metrics."""
        rows = self.select(*names)
        best = start = end = 0
        for place, row in enumerate(rows, 1):
            if not holds(*(row.values[name] for name in names)):
                start = place
            elif place - start >= best:
                best, end = place - start, place
        if best < max(1, least):
            return None
        return Episode(tuple(rows[end - best : end]), end == len(rows))

    @cached_property
    def framework(self) -> str:
        """Return the framework that these metric names belong to, or an empty string."""
        names = {name for row in self.rows[:8] for name in row.printed}
        if any(name.startswith(("actor/", "critic/", "response_length/")) for name in names):
            return "verl"
        if any(name.startswith(("memory(GiB)", "train_speed(", "global_step/max_steps")) for name in names):
            return "ms-swift"
        trl = (
            "completions/",
            "completion_length",
            "frac_reward_zero_std",
            "clip_ratio/",
            "rewards/",
            "num_tokens",
        )
        return (
            "TRL" if any(name.startswith(trl) for name in names) or {"reward", "reward_std"} <= names else ""
        )

    def causes(self, symptom: str) -> tuple[Note, ...]:
        """Return the causes of a symptom in order, with this framework's option."""
        notes = []
        for place, (text, options) in enumerate(_CAUSES[symptom], 1):
            option = options.get(self.framework, options.get("", ""))
            shown = f"cause {place}: {text}" + (f" ({option})" if option else "")
            notes.append(Note("cause", shown, {"cause": text, "option": option, "framework": self.framework}))
        return tuple(notes)

    @property
    def peak_reward(self) -> float:
        """Return the highest mean reward of the run."""
        return max(self.column("reward"), default=math.inf)


def check_metrics(series: Sequence[MetricSeries]) -> list[Result]:
    """Run all checks on all files; the first finding of each family is kept."""
    if not any(len(each.rows) for each in series):
        need = "metrics of the run: trainer_state.json, metrics.jsonl, an event file or a log"
        return [skipped(topic, PROBE, "want_metrics", need) for topic in (PROBE, CURVES)]
    faults: dict[str, Result] = {}
    for each in series:
        for result in _faults(Curves(each.rows)):
            faults.setdefault(result.family, result)
    results = list(faults.values())
    count = sum(len(each.rows) for each in series)
    if not any(result.topic == PROBE for result in results):
        results.append(Result(PROBE, CLEAN, PROBE, count=count))
    if not any(result.topic == CURVES for result in results):
        longest = max(len(each.rows) for each in series)
        if longest < MIN_STEPS:
            need = "metrics of {least} steps or more; there are {count}"
            results.append(skipped(CURVES, CURVES, "want_steps", need, least=MIN_STEPS, count=longest))
        else:
            results.append(Result(CURVES, CLEAN, CURVES, count=longest))
    return results


def check_learning(series: Sequence[MetricSeries], rewards: Sequence[Result] = ()) -> Result:
    """Decide whether the run's reward signal could be checked at all; without it no audit of a run is clean.

    Args:
        series: Metrics of the run.
        rewards: Results of the checks of recorded rewards, which decide it too.
    """
    best = max((Curves(each.rows) for each in series), key=_signal_steps, default=Curves(()))
    steps = _signal_steps(best)
    if steps < MIN_STEPS and any(result.outcome == CLEAN for result in rewards):
        return Result("learning", CLEAN, PROBE, count=rewards[0].count, decisive=True)
    if steps < MIN_STEPS:
        need = "reward with reward_std, grad_norm or zero-spread share of {least} steps or more; there are {count}"
        return skipped("learning", PROBE, "want_reward", need, decisive=True, least=MIN_STEPS, count=steps)
    values = best.column("reward")
    part = max(2, len(values) // 8)
    first, last = stats.median(values[:part]), stats.median(values[-part:])
    seen = [note("reward", "reward went from {first:.3g} to {last:.3g} in {count} logged steps",
                 first=first, last=last, count=len(values))]  # fmt: skip
    if flat := best.column("all_alike"):
        seen.append(_gradient_share(stats.mean(flat)))
    return Result("learning", CLEAN, PROBE, count=steps, evidence=tuple(seen), decisive=True)


def _signal_steps(curves: Curves) -> int:
    return max(len(curves.select("reward", name)) for name in ("reward_std", "grad_norm", "all_alike"))


def _gradient_share(flat: float) -> Note:
    return note("no_gradient_share", "{share:.0%} of rollouts produced no gradient: all rewards of"
                                     " their group" " are equal",
                share=flat)  # fmt: skip


def _faults(curves: Curves) -> Iterator[Result]:
    for check in _CHECKS:
        if result := check(curves):
            yield result


def _report(family: str, message: str, code: str, episode: Episode, *names: str, evidence: Sequence[Note] = (),
            **values: Any) -> Result:  # fmt: skip
    """Build the fault of an episode; `names` are the metrics to quote from its first row."""
    row = episode.rows[0]
    quoted = {name: row.values[name] for name in names}
    numbers = ", ".join(f"{name} {value:.4g}" for name, value in quoted.items())
    line = (Note("metric_line", numbers, quoted, row.place),) if numbers else ()
    values = (
        quoted
        | {"span": episode.span, "count": episode.count, "place": row.place, "open": episode.open}
        | values
    )
    probe = CURVES if family.startswith(CURVES) else PROBE
    return fault(
        family, probe, message, code, values=values, count=episode.count, evidence=(*line, *evidence)
    )


def _not_a_number(curves: Curves) -> Result | None:
    """Check for NaN in a metric of the update that never recovers."""
    for name in _UPDATE:
        rows = [row for row in curves.rows if name in row.values]
        bad = next((place for place, row in enumerate(rows) if not math.isfinite(row.values[name])), None)
        if bad is not None and not any(math.isfinite(row.values[name]) for row in rows[bad:]):
            episode = Episode(tuple(rows[bad:]), open=True)
            return _report("metrics/nan", "{name} is NaN or infinite {span}, and never recovers", "NUM027", episode,
                           name, name=name)  # fmt: skip
    return None


def _trained_nothing(curves: Curves) -> Result | None:
    """Check the summary of a run for more steps a second than a GRPO step can take."""
    for row in curves.rows:
        rate, runtime = (row.printed.get(f"train_{name}", 0.0) for name in ("steps_per_second", "runtime"))
        if runtime and rate > 100:
            message = (
                "nothing was trained: {steps:.0f} steps in {runtime:.3g} s; the run resumed at its last step"
            )
            return fault("metrics/trained_nothing", PROBE, message, values={"steps": rate * runtime,
                "runtime": runtime},
                         count=1, evidence=(note("metric_line", "train_runtime {runtime:.4g} s", row.place,
                         runtime=runtime),
                         Note("cause", "cause 1: resume_from_checkpoint names the last step: raise max_steps or the"
                              " number of epochs, or start without it")))  # fmt: skip
    return None


def _dead_reward(curves: Curves) -> Result | None:
    """Check for steps in which all rewards are equal, so that no rollout has an advantage."""
    name = "reward_std" if curves.select("reward", "reward_std") else "all_alike"
    flat = 0.0 if name == "reward_std" else 1.0
    episode = curves.episode(("reward", name), lambda _reward, value: value == flat, 6)
    if episode is None and not curves.select("reward_std") and not curves.select("all_alike"):
        first = curves.column("reward")[:1]
        names = ("reward", "grad_norm") if curves.select("grad_norm") else ("reward", "loss")
        episode = curves.episode(names, lambda reward, value: value == 0 and reward in first, 6)
        name = names[1]
    if episode is None:
        return None
    rewards = [row.values["reward"] for row in episode.rows]
    solved = min(rewards) >= curves.peak_reward and min(curves.column("reward")) < curves.peak_reward
    if solved:
        return None
    constant = min(rewards) == max(rewards)
    message = ("the reward is {reward:.3g} for every completion {span}: no gradient in {count} of {steps} steps"
               if constant else "no group has rewards that differ {span}: no gradient in"
                                " {count} of" " {steps} steps")  # fmt: skip
    family = "metrics/dead_reward" if constant else "metrics/no_spread"
    return _report(family, message, "REW004", episode, "reward", name, steps=len(curves.select("reward")),
                   evidence=(_gradient_share(episode.count / len(curves.select("reward"))),
                   *curves.causes("reward")))  # fmt: skip


def _zero_spread_groups(curves: Curves) -> Result | None:
    """Check for steps in which most groups have no spread of rewards."""
    values = curves.column("all_alike")
    if len(values) < 6 or _dead_reward(curves):
        return None
    rewards = curves.column("reward")
    if rewards and stats.median(rewards[-10:]) >= 0.9 and rewards[-1] > min(rewards):
        return None  # solved
    episode = curves.episode(("all_alike",), lambda share: share >= 1, 6)
    if episode is not None:
        return _report("metrics/no_spread", "no group has rewards that differ {span}: no gradient in {count} steps",
                       "REW004", episode, "all_alike", evidence=curves.causes("reward"))  # fmt: skip
    share = stats.median(values[-20:])
    if share < _MOST_FLAT:
        return None
    rows = curves.select("all_alike")[-20:]
    return _report("metrics/little_spread", "{share:.0%} of groups have no reward spread in the last {count} steps:"
                   " their rollouts produce no gradient", "REW004", Episode(tuple(rows), open=True), "all_alike",
                   share=share,
                   evidence=(_gradient_share(stats.mean(values)), *curves.causes("reward")))  # fmt: skip


def _no_gradient(curves: Curves) -> Result | None:
    """Check for a gradient of 0 in steps whose rewards differ."""
    if curves.column("lr") and not any(curves.column("lr")):
        return None  # a learning rate of 0 is reported by itself
    least = 3 if not any(curves.column("grad_norm")) else 4
    mixed = Curves(tuple(row for row in curves.rows if row.values.get("all_alike", 0) < 1))
    episode = mixed.episode(("grad_norm", "reward_std"), lambda norm, spread: norm == 0 and spread > 0, least)
    if episode is None:
        return None
    return _report("metrics/no_gradient", "rewards differ (reward_std {reward_std:.3g}), and the gradient is 0 {span}"
                   " ({count} steps)", "NUM046", episode, "grad_norm", "reward_std",
                   evidence=curves.causes("no_gradient"))  # fmt: skip


def _zero_learning_rate(curves: Curves) -> Result | None:
    rows = curves.select("lr")
    if len(rows) < 3 or any(curves.column("lr")):
        return None
    return _report("metrics/rate_zero", "the learning rate is 0 in all {count} logged steps", "CFG128",
                   Episode(tuple(rows), open=True), "lr")  # fmt: skip


def _reference_kl(curves: Curves) -> Result | None:
    """Check the KL before the first update, when the policy is its own reference."""
    rows = curves.select("kl")
    if not rows or rows[0].step is None or rows[0].step > 1 or abs(rows[0].values["kl"]) <= _KL_FLOOR:
        return None
    first = abs(rows[0].values["kl"])
    if first >= _KL_ALARM:
        message = (
            "the KL to the reference is {kl:.3g} before the first update: the reference is another model"
        )
        return _report("metrics/reference", message, "NUM045", Episode(tuple(rows[:1]), open=False), "kl")
    need = note("want_dtype", "the engine's type: rounding alone makes {floor:g} in bfloat16, a fault {alarm:g}",
                floor=_KL_FLOOR, alarm=_KL_ALARM)  # fmt: skip
    return Result("metrics/reference", NOT_DECIDED, PROBE, residual=first, floor=_KL_FLOOR, alarm=_KL_ALARM, count=1,
                  needed=(need,))  # fmt: skip


def _truncation(curves: Curves) -> Result | None:
    """Check for completions that are cut at the length limit."""
    rows = curves.select("capped")
    if len(rows) >= 3 and all(row.values["capped"] == 1 for row in rows):
        return _report("metrics/all_cut", "every completion of all {count} logged steps ends at the length limit",
            "CFG127",
                       Episode(tuple(rows), open=True), "capped", evidence=curves.causes("truncation"))  # fmt: skip
    episode = curves.episode(("capped",), lambda share: 0.5 <= share <= 1, MIN_STEPS)
    if episode is None or not episode.open:
        return None
    growth = _change(curves, "length")
    grown = growth is not None and growth[1] > 2 * max(1.0, growth[0])
    text = "; mean length grew from {first:.0f} to {last:.0f} tokens" if grown else ""
    first, last = growth or (0.0, 0.0)
    family = "curves/length_growth" if grown else "curves/truncation"
    share = stats.median([row.values["capped"] for row in episode.rows])
    return _report(family, "{share:.0%} of completions are cut at the length limit {span}" + text, "", episode,
        "capped",
                   share=share, first=first, last=last, evidence=curves.causes("truncation"))  # fmt: skip


def _mismatch(curves: Curves) -> Result | None:
    """Check the difference of engine and trainer: above any precision, or growing over the run's first steps."""
    for name, floor, factor, least, alarm in _MISMATCH:
        values = [abs(value) for value in curves.column(name)]
        if len(values) < 3:
            continue
        rows = tuple(curves.select(name))
        if stats.median(values[:MIN_STEPS]) > alarm:
            return _report("metrics/unlike", "engine and trainer disagree from the start: {name} {now:.3g}", "NUM043",
                           Episode(rows, open=True), name, name=name, now=stats.median(values),
                           evidence=curves.causes("mismatch"))  # fmt: skip
        began, now = stats.median(values[:MIN_STEPS]), stats.median(values[-MIN_STEPS:])
        limit = max(least, factor * max(began, floor))
        if len(values) >= 2 * MIN_STEPS and now >= limit:

            def is_far(value: float, bound: float = limit) -> bool:
                return abs(value) >= bound

            late = _onset(rows, name, is_far)
            return _report("metrics/drifting", "engine and trainer drift apart {span}: {name} went from {first:.2g} to"
                           " {last:.2g}", "NUM043", late, name, name=name, first=began, last=now,
                           evidence=curves.causes("mismatch"))  # fmt: skip
    return None


def _ratio_drift(curves: Curves) -> Result | None:
    episode = curves.episode(("ratio",), lambda value: value <= 0 or abs(math.log(value)) > 0.1, MIN_STEPS)
    if episode is None or not episode.open:
        return None
    value = stats.median([row.values["ratio"] for row in episode.rows])
    return _report("curves/ratio_drift", "the importance ratio is {value:.3g} on average {span}; 1 is expected",
        "NUM043",
                   episode, "ratio", value=value, evidence=curves.causes("mismatch"))  # fmt: skip


def _clip_ratio(curves: Curves) -> Result | None:
    episode = curves.episode(("clip",), lambda value: 0.9 <= value <= 1, 5)
    if episode is None:
        return None
    return _report("curves/clip", "{clip:.0%} of tokens are clipped {span}: they get no gradient", "", episode, "clip",
                   evidence=curves.causes("clip"))  # fmt: skip


def _change(curves: Curves, name: str) -> tuple[float, float] | None:
    """Return the median of a metric in the first and in the last eighth of the run."""
    values = curves.column(name)
    if len(values) < MIN_STEPS:
        return None
    part = max(3, len(values) // 8)
    return stats.median(values[:part]), stats.median(values[-part:])


def _onset(rows: Sequence[MetricRow], name: str, holds: Callable[[float], bool]) -> Episode:
    """Return the rows from the step on after which a metric mostly fulfils a condition."""
    start = len(rows) - 1
    misses = 0
    for place in range(len(rows) - 1, -1, -1):
        if holds(rows[place].values[name]):
            start, misses = place, 0
            continue
        misses += 1
        if misses > 2:
            break
    return Episode(tuple(rows[start:]), open=True)


def _entropy_collapse(curves: Curves) -> Result | None:
    change = _change(curves, "entropy")
    if change is None or change[0] <= 0.02 or change[1] >= 0.1 * change[0]:
        return None
    late = _onset(curves.select("entropy"), "entropy", lambda value: value < 0.1 * change[0])
    return _report("curves/entropy_collapse", "entropy collapsed from {first:.3g} to {last:.2g} {span}", "", late,
        "entropy",
                   first=change[0], last=change[1], evidence=curves.causes("entropy"))  # fmt: skip


def _kl_explosion(curves: Curves) -> Result | None:
    change = _change(curves, "kl")
    if change is None or change[1] <= 1 or change[1] <= 20 * max(change[0], 1e-3):
        return None
    late = _onset(curves.select("kl"), "kl", lambda value: value > 0.25 * change[1])
    return _report("curves/kl_explosion", "the KL to the reference went from {first:.2g} to {last:.3g} {span}", "",
        late,
                   "kl", first=change[0], last=change[1], evidence=curves.causes("kl"))  # fmt: skip


def _gradient_spikes(curves: Curves) -> Result | None:
    """Check for gradient norms far above the median of the 20 steps before."""
    rows = curves.select("grad_norm")
    spikes = []
    for place in range(MIN_STEPS, len(rows)):
        usual = stats.median([row.values["grad_norm"] for row in rows[max(0, place - 20) : place]])
        if usual > 0 and rows[place].values["grad_norm"] > 20 * usual:
            spikes.append((rows[place].values["grad_norm"] / usual, rows[place]))
    if not spikes or (len(spikes) < 3 and max(times for times, _ in spikes) < 100):
        return None
    most, row = max(spikes, key=lambda spike: spike[0])
    return _report("curves/gradient_spikes", "{spikes} gradient spikes; the largest,"
                                             " {grad_norm:.3g}, is" " {times:.0f} times"
                   " the usual norm", "", Episode((row,), open=False), "grad_norm", spikes=len(spikes), times=most,
                   evidence=curves.causes("gradient"))  # fmt: skip


def _flat_reward(curves: Curves) -> Result | None:
    """Check for a reward without any trend over the whole run, below its possible best."""
    rows = curves.select("reward")
    values = curves.column("reward")
    if len(rows) < _FLAT_STEPS or stats.median(values) >= 0.9 or _dead_reward(curves):
        return None
    slope, error, residual = stats.fit_line([float(place) for place in range(len(values))], values)
    rise, noise = abs(slope) * len(values), math.sqrt(residual)
    if not math.isfinite(rise) or (error and abs(slope) > 2.5 * error) or rise > max(0.5 * noise, 0.01):
        return None
    spread = stats.median(curves.column("reward_std"))
    return _report("curves/flat_reward", "the reward does not move: {level:.3g} in all {count} logged steps", "",
                   Episode(tuple(rows), open=True), "reward", level=stats.median(values), slope=slope, noise=noise,
                   reward_std=spread, evidence=curves.causes("reward"))  # fmt: skip


def _reward_collapse(curves: Curves) -> Result | None:
    values = curves.column("reward")
    if len(values) < 3 * MIN_STEPS:
        return None
    smooth = [stats.median(values[place : place + MIN_STEPS]) for place in range(len(values) - MIN_STEPS + 1)]
    peak, last = max(smooth), smooth[-1]
    noise = stats.median([abs(b - a) for a, b in pairwise(values)])
    if peak <= 0 or last > 0.5 * peak or peak - last < 5 * noise:
        return None
    late = _onset(curves.select("reward"), "reward", lambda value: value <= 0.5 * peak)
    return _report("curves/reward_collapse", "the reward fell from {peak:.3g} to {last:.3g} {span}", "", late, "reward",
                   peak=peak, last=last, evidence=curves.causes("kl"))  # fmt: skip


_CHECKS: tuple[Callable[[Curves], Result | None], ...] = (
    _not_a_number, _trained_nothing, _reference_kl, _dead_reward, _zero_spread_groups, _no_gradient,
    _zero_learning_rate,
    _truncation, _mismatch, _ratio_drift, _clip_ratio, _entropy_collapse, _kl_explosion, _gradient_spikes, _flat_reward,
    _reward_collapse,
)  # fmt: skip
