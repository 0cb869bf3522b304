"""Check training curves: rewards, gradients, KL, entropy, lengths and other metrics that a run logged.

`check_metrics` runs all checks; `check_learning` checks whether the metrics suffice to decide if the run learns. `audit
RUN`, `audit --watch` and the callback call both. Most checks look for an episode: the steps in which a symptom holds. A
check may also be undecided, skipped, or clean with a notice. A fault has the numbers, the first step, the last one if
the symptom ended, and the likely causes in order (from its check code, or `curve_causes.toml`). A cause names the
option to change in the run's framework, if it is known. Other checks of the audit take their causes from
`Curves.causes`, too.
"""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import compress, pairwise
from pathlib import Path
from typing import Any

import msgspec

from diagnostics import catalog
from diagnostics.audit.recorded import stats
from diagnostics.audit.recorded.run_data import MetricRow, MetricSeries
from diagnostics.audit.results import Note, Result, clean, code_of, fault, is_open, note, skipped, undecided
from diagnostics.catalog.model import LikelyCause
from diagnostics.frameworks import DISPLAY_NAMES, FRAMEWORKS
from diagnostics.logs.metrics import FUNCTION_METRIC, MAX_STEPS_PER_S, canonical_name, is_zero

MIN_STEPS = 8
"""Number of steps with a reward signal that are needed to decide whether a run learns."""
# Metrics of an update in which NaN is a fault.
_UPDATE = ("loss", "grad_norm", "kl", "entropy", "reward", "ratio", "probs_diff", "mismatch_kl", "reward_std")
# The k3 estimate of the KL of a model to itself, computed by another kernel in bfloat16.
_KL_FLOOR, _KL_ALARM = 0.002, 0.01
# Mismatch of engine and trainer: rounding floor, factor over the first steps, least alarm, alarm from step 1.
_MISMATCH_LIMITS = {
    "probs_diff": (1e-4, 10.0, 0.02, 0.05), "mismatch_kl": (1e-5, 20.0, 0.005, 0.1), "ratio": (0.01, 10.0, 0.2, 0.3),
}  # fmt: skip
MAX_FLAT_SHARE = 0.8
"""Largest share of groups with equal rewards that is no fault."""
_NOTICED_FLAT_SHARE = 0.3
_MIN_STEPS_FOR_TREND = 60
# Median reward from which a task counts as solved.
_SOLVED = 0.9
# Least mean square of the steps between successive rewards without a trend, in variances; independent rewards have 2.
_MIN_STEP_SQUARE = 1.0
# The least and the largest reward, and those of the advantages, of a step.
_RANGES = (("reward_min", "reward_max"), ("advantage_min", "advantage_max"))
# The mean of one reward function; functions that are usually 0, and those that may be learned late.
_FUNCTION_MEAN = re.compile(r"(?:train/)?rewards/([^/]+)/mean")
_PENALTY_NAME = re.compile(r"(?i)penal|punish|overlong|repet|length|cosine")
_FORMAT_NAME = re.compile(r"(?i)format|tag|xml|think|bonus|style|structure")
_CAUSE_FILE = Path(__file__).with_name("curve_causes.toml")
_CAUSES = msgspec.toml.decode(_CAUSE_FILE.read_bytes(), type=dict[str, list[LikelyCause]])


@dataclass(frozen=True)
class Episode:
    """The rows of a series from a symptom's first to its last; `open` if the symptom holds to the end."""

    rows: tuple[MetricRow, ...]
    open: bool = True


@dataclass(frozen=True)
class Curves:
    """The rows of one metrics file, with searches for episodes, and `report`, which makes a fault of an episode."""

    rows: tuple[MetricRow, ...]

    def select(self, *names: str) -> tuple[MetricRow, ...]:
        """Return the rows that have finite values of all these metrics."""
        finite = (all(math.isfinite(row.values.get(name, math.nan)) for name in names) for row in self.rows)
        return tuple(compress(self.rows, finite))

    def column(self, name: str) -> list[float]:
        """Return the finite values of a metric."""
        return [row.values[name] for row in self.select(name)]

    def longest_episode(self, names: Sequence[str], holds: Callable[..., bool], least: int) -> Episode | None:
        """Return the longest episode of at least `least` rows in which `holds` is true of the metrics, or None."""
        rows = self.select(*names)
        best = start = end = 0
        for index, row in enumerate(rows, 1):
            if not holds(*(row.values[name] for name in names)):
                start = index
            elif index - start >= best:
                best, end = index - start, index
        return None if best < max(1, least) else Episode(rows[end - best : end], end == len(rows))

    def last_episode(self, name: str, holds: Callable[[float], bool]) -> Episode:
        """Return the rows at the end in which `holds` is true of a metric, with gaps of at most two rows.

        If there are none, return the last row.
        """
        rows = self.select(name)
        start = stats.start_of_last_run([holds(row.values[name]) for row in rows])
        return Episode(rows[min(start, len(rows) - 1) :])

    def departure(self, name: str, holds: Callable[[float], bool]) -> Episode:
        """Return the last episode, extended back to the step at which the metric left the range of its first values."""
        rows, late = self.select(name), self.last_episode(name, holds)
        values = [row.values[name] for row in rows]
        early = values[: max(MIN_STEPS, len(values) // 8)]
        center, level = stats.median(early), stats.median(values[-len(late.rows) :])
        width = 6 * stats.median([abs(value - center) for value in early]) + 0.02 * abs(level - center)
        start, sign = len(rows) - len(late.rows), 1 if level > center else -1
        while start and sign * (values[start - 1] - center) > width:
            start -= 1
        return Episode(rows[start:])

    def first_and_last_level(self, name: str) -> tuple[float, float]:
        """Return the medians of a metric's first and last eighth (at least 3 values each); zeros for fewer than 8."""
        values = self.column(name)
        part = max(3, len(values) // 8)
        long_enough = len(values) >= MIN_STEPS
        return (stats.median(values[:part]), stats.median(values[-part:])) if long_enough else (0.0, 0.0)

    def count_signal_steps(self) -> int:
        """Return the largest number of steps with a reward and one of `reward_std`, `grad_norm` and `all_alike`."""
        return max(len(self.select("reward", name)) for name in ("reward_std", "grad_norm", "all_alike"))

    @cached_property
    def framework(self) -> str:
        """The framework that the metric names of the first 8 rows belong to, or an empty string."""
        names = {name for row in self.rows[:8] for name in row.printed}
        found = {row.framework for row in self.rows[:8]}
        # TRL is the first of them; ms-swift prints TRL's metrics, too.
        for framework in reversed(FRAMEWORKS.values()):
            if framework.name in found or any(name.startswith(framework.metric_prefixes) for name in names):
                return framework.name
        return "trl" if {"reward", "reward_std"} <= names else ""

    def causes(self, symptom: str) -> list[Note]:
        """Return the likely causes of a symptom as notes in order, with this framework's option if there is one.

        The symptom is a family of results whose check code lists causes, or a key of `curve_causes.toml`.
        """
        notes, framework = [], DISPLAY_NAMES.get(self.framework, "")
        check = catalog.load_checks().get(code_of(symptom))
        causes = check.causes if check else _CAUSES.get(symptom, ())
        logged = {
            name: any(self.column(name)) for name in {entry.needs for entry in causes} if self.column(name)
        }
        for number, entry in enumerate((entry for entry in causes if logged.get(entry.needs, True)), 1):
            option = entry.option.get(self.framework, entry.option.get("any", ""))
            line = f"cause {number}: {entry.cause}" + (f" ({option})" if option else "")
            values = {"cause": entry.cause, "option": option, "framework": framework}
            notes.append(Note("cause", line, values))
        return notes

    def report(
        self, episode: Episode | None, key: str, *quoted: str, causes: str = "", **values: Any
    ) -> Result | None:
        """Return an episode as a fault; None without an episode.

        Args:
            episode: The steps in which the symptom holds.
            key: Key of the message, which may use the quoted metrics, `span`, `count` and the values.
            quoted: Metrics to quote from the first step.
            causes: Key of the possible causes, which become evidence, if it is not that of the message.
            values: Further values for the message.
        """
        if episode is None:
            return None
        row, last, count = episode.rows[0], episode.rows[-1], len(episode.rows)
        numbers = {name: row.values[name] for name in quoted}
        names = {canonical_name(name): name for name in reversed(list(row.printed))}
        text = ", ".join(f"{names.get(name, name)} {value:.4g}" for name, value in numbers.items())
        places = [entry.place for entry in self.rows]
        first, end = (
            f"logged step {places.index(entry.place) + 1}" if entry.step is None else f"step {entry.step}"
            for entry in (row, last)
        )
        span = f"since {first}" if episode.open else f"from {first} to {end}"
        steps = {"span": span, "count": count, "place": row.place, "open": episode.open}
        steps["start"] = places.index(row.place)
        values = numbers | steps | values
        evidence = (Note("metric_line", text, numbers, row.place), *self.causes(causes or key))
        return fault(key, values, count=count, evidence=evidence)


def check_metrics(series: Sequence[MetricSeries]) -> list[Result]:
    """Run all checks on all files; return the first result of each family.

    Each of the topics `metrics` and `curves` without a fault or an undecided check gets a result of its own: clean, or
    skipped if there are no metrics, or fewer than 8 steps for curves.
    """
    longest = max((len(entry.rows) for entry in series), default=0)
    if not longest:
        return [skipped(topic, "want_metrics") for topic in ("metrics", "curves")]
    faults: dict[str, Result] = {}
    for curves in (Curves(entry.rows) for entry in series):
        for result in (*(check(curves) for check in _CHECKS), *_shifts(curves)):
            if result:
                faults.setdefault(result.family, result)
    results = list(faults.values())
    topics = {result.topic for result in results if result.is_fault or is_open(result)}
    if "metrics" not in topics:
        results.append(clean("metrics", count=sum(len(entry.rows) for entry in series)))
    if "curves" not in topics and longest < MIN_STEPS:
        results.append(skipped("curves", "want_steps:curves", least=MIN_STEPS, count=longest))
    elif "curves" not in topics:
        results.append(clean("curves", count=longest))
    return results


def check_learning(series: Sequence[MetricSeries], recorded: Sequence[Result] = ()) -> Result:
    """Check that the metrics suffice to decide whether the run learns.

    They need rewards with a signal in 8 steps or more, which rise or are high, or 60 steps, which
    `_reward_without_trend` checks. The result is clean or skipped, never a fault; a skipped one makes the audit
    incomplete.

    Args:
        series: Metrics of the run.
        recorded: Results of the checks of recorded rewards; a clean one suffices, too.
    """
    best = max((Curves(entry.rows) for entry in series), key=Curves.count_signal_steps, default=Curves(()))
    steps = best.count_signal_steps()
    if steps < _MIN_STEPS_FOR_TREND and any(result.is_clean for result in recorded):
        return clean("learning", count=recorded[0].count, decisive=True)
    if steps < MIN_STEPS:
        return skipped("learning", "want_reward", decisive=True, least=MIN_STEPS, count=steps)
    rewards, flat = best.column("reward"), best.column("all_alike")
    if steps < _MIN_STEPS_FOR_TREND and not (
        _rises(rewards) or stats.median(rewards[-MIN_STEPS:]) >= _SOLVED
    ):
        return skipped("learning", "want_trend", decisive=True, least=_MIN_STEPS_FOR_TREND, count=steps)
    share = stats.mean(flat) if flat else 0.0
    facts = (note("notice:no_gradient", share=share),) if share >= _NOTICED_FLAT_SHARE else ()
    return clean("learning", count=steps, evidence=facts, decisive=True)


def _trained_nothing(curves: Curves) -> Result | None:
    """Find a run's summary with more steps per second than a trainer can do, because the run had ended before.

    Logged steps and a loss in the summary mean a fast toy run, which is no fault. Without that loss, the logged steps
    may be those of the resumed state.
    """
    has_steps = any("train_steps_per_second" not in row.printed for row in curves.rows)
    for row in curves.rows:
        rate, runtime = (row.printed.get(f"train_{name}", 0.0) for name in ("steps_per_second", "runtime"))
        if runtime and rate > MAX_STEPS_PER_S and not (has_steps and row.printed.get("train_loss")):
            evidence = (note("metric_line:runtime", row.place, runtime=runtime), *curves.causes("resume"))
            values = {"steps": rate * runtime, "runtime": runtime}
            return fault("metrics/trained_nothing", values, count=1, evidence=evidence)
    return None


def _reference_kl(curves: Curves) -> Result | None:
    """Check the KL before the first update, when the policy is its own reference; undecided if rounding may explain it.

    verl and EasyR1 are skipped, because their first step has several updates.
    """
    rows = () if curves.framework in {"verl", "easyr1"} else curves.select("kl")
    first = abs(rows[0].values["kl"]) if rows and rows[0].step in (0, 1) else 0.0
    if first <= _KL_FLOOR:
        return None
    if first >= _KL_ALARM:
        return curves.report(Episode(rows[:1], open=False), "metrics/reference", "kl")
    need = note("want_dtype", floor=_KL_FLOOR, alarm=_KL_ALARM)
    return undecided("metrics/reference", need, residual=first, floor=_KL_FLOOR, alarm=_KL_ALARM, count=1)


def _not_a_number(curves: Curves) -> Result | None:
    """Find the first metric of the update that is NaN or infinite to the end of the run.

    If it recovered from such values before, the last ones count only if they are at least six in a row.
    """
    for name in _UPDATE:
        rows = [row for row in curves.rows if name in row.values]
        finite = [index for index, row in enumerate(rows) if math.isfinite(row.values[name])]
        bad = rows[finite[-1] + 1 if finite else 0 :]
        if bad and (len(bad) >= 6 or len(bad) + len(finite) == len(rows)):
            return curves.report(Episode(tuple(bad)), "metrics/nan", name, name=name)
    return None


def _steps_without_reward_spread(curves: Curves) -> tuple[Episode, tuple[str, ...]] | None:
    """Find steps in which all rewards of each group are equal; also return the metrics that show it.

    Without such a metric, a reward of 0 in all steps counts, or a constant one with a gradient or loss of 0. None if
    there are fewer than six such steps in a row, or the task is solved.
    """
    rewards = curves.column("reward")
    ranges = [pair for pair in _RANGES if curves.select("reward", *pair)]
    names: Sequence[tuple[str, ...]] = [("grad_norm",) if curves.select("reward", "grad_norm") else ("loss",)]
    holds: Callable[..., bool] = lambda reward, value: value == 0 and reward == rewards[0]  # noqa: E731
    if curves.select("reward", "reward_std"):
        # A constant reward shows that a spread printed as 0.000 is 0.
        names = [("reward_std",)]
        holds = lambda reward, spread: is_zero(spread) or (spread == 0 and reward == rewards[0])  # noqa: E731
    elif curves.select("reward", "all_alike"):
        names, holds = [("all_alike",)], lambda _reward, share: share == 1
    elif ranges:
        names, holds = ranges, lambda _reward, least, largest: least == largest
    elif all(map(is_zero, rewards)):
        # A KL term makes a gradient without any reward.
        names, holds = [()], lambda _reward: True
    for quoted in (("reward", *entry) for entry in names):
        episode = curves.longest_episode(quoted, holds, 6)
        if episode and not min(row.values["reward"] for row in episode.rows) >= max(rewards) > min(rewards):
            return episode, quoted
    return None  # there are none, or the task is solved


def _no_reward_spread(curves: Curves) -> Result | None:
    """Find a dead reward, steps without any reward spread, or a large share of groups without one at the run's end.

    A solved task, whose last rewards are high, has no fault. A constant mean alone decides nothing, unless it is 0.
    """
    rewards, episode = curves.column("reward"), None
    quoted: tuple[str, ...] = ("all_alike",)
    options: dict[str, Any] = {"causes": "reward_spread"}
    if flat := _steps_without_reward_spread(curves):
        episode, quoted = flat
        printed = (item for row in episode.rows for item in row.printed.items())
        # The spread of a reward function over all groups is not 0.
        if any(value for name, value in printed if name.endswith("/std") and FUNCTION_METRIC.fullmatch(name)):
            options["causes"] = "equal_in_groups"
        elif len({row.values["reward"] for row in episode.rows}) == 1:
            options |= {"steps": len(rewards), "causes": "reward"}
            return curves.report(episode, "metrics/dead_reward", *quoted, **options)
    elif rewards and stats.median(rewards[-10:]) >= _SOLVED and rewards[-1] > min(rewards):
        return None  # the task is solved
    if episode := episode or curves.longest_episode(quoted, lambda share: share >= 1, 6):
        return curves.report(episode, "metrics/no_spread", *quoted, **options)
    is_constant = len(rewards) >= MIN_STEPS and len(set(rewards)) == 1
    if is_constant and not any(map(curves.column, ("reward_std", "all_alike", *_RANGES[0]))):
        need = note("want_spread:constant", reward=rewards[0], count=len(rewards))
        return undecided("metrics/dead_reward", need, count=len(rewards))
    rows = curves.select("all_alike")[-20:]
    share = stats.median([row.values["all_alike"] for row in rows])
    if len(rows) < 6 or share <= MAX_FLAT_SHARE:
        return None
    return curves.report(Episode(rows), "metrics/little_spread", *quoted, **options, share=share)


def _no_gradient(curves: Curves) -> Result | None:
    """Find a gradient of 0 in successive steps whose rewards differ, unless all learning rates are 0."""
    if curves.column("lr") and all(map(is_zero, curves.column("lr"))):
        return None
    least = 4 if any(curves.column("grad_norm")) else 3
    mixed = Curves(tuple(row for row in curves.rows if row.values.get("all_alike", 0) < 1))
    names = ("grad_norm", "reward_std")
    episode = mixed.longest_episode(names, lambda norm, spread: is_zero(norm) and spread > 0, least)
    return curves.report(episode, "metrics/no_gradient", *names, causes="no_gradient")


def _zero_learning_rate(curves: Curves) -> Result | None:
    """Find a learning rate that is 0 in all steps (3 or more), or in the last tenth of the run (8 steps or more).

    Skipped if it was printed as 0.000 in all steps, which may be rounded.
    """
    rows = curves.select("lr")
    if any(curves.column("lr")):
        late = curves.longest_episode(("lr",), is_zero, max(MIN_STEPS, len(rows) // 10))
        late = late if late and late.open else None
        return curves.report(late, "metrics/rate_zero:ends", "lr", causes="rate_ends", steps=len(rows))
    if len(rows) < 3:
        return None
    if not all(map(is_zero, curves.column("lr"))):
        return skipped("metrics/rate_zero", "want_digits", printed="0.000")
    return curves.report(Episode(rows), "metrics/rate_zero", "lr")


def _truncation(curves: Curves) -> Result | None:
    """Find completions that are cut at the length limit: all of the run, or at least half of them to its end."""
    rows = curves.select("capped")
    options: dict[str, Any] = {"causes": "curves/truncation"}
    if len(rows) >= 3 and set(curves.column("capped")) == {1}:
        return curves.report(Episode(rows), "metrics/all_cut", "capped", **options)
    episode = curves.longest_episode(("capped",), lambda share: 0.5 <= share <= 1, MIN_STEPS)
    if episode is None or not episode.open:
        return None
    first, last = curves.first_and_last_level("length")
    is_grown = last > 2 * max(1.0, first)
    growth = f"; mean length grew from {first:.0f} to {last:.0f} tokens" if is_grown else ""
    options |= {"growth": growth, "share": stats.median([row.values["capped"] for row in episode.rows])}
    return curves.report(episode, "curves/truncation", "capped", **options)


def _mismatch(curves: Curves) -> Result | None:
    """Find a mismatch of engine and trainer that is large from the start, or becomes much larger during the run."""
    for name, (floor, factor, least, alarm) in _MISMATCH_LIMITS.items():
        equal = 1.0 if name == "ratio" else 0.0  # the value if both compute the same
        column = curves.column(name)
        values = [abs(value - equal) for value in column]
        first, last = stats.median(values[:MIN_STEPS]), stats.median(values[-MIN_STEPS:])
        limit = max(least, factor * max(first, floor))
        options: dict[str, Any] = {"name": name}
        if len(values) >= 3 and first > alarm:
            options |= {"now": stats.median(column)}
            return curves.report(Episode(curves.select(name)), "metrics/unlike", name, **options)
        if len(values) >= 2 * MIN_STEPS and last >= limit:
            late = curves.departure(name, lambda value, bound=limit, at=equal: abs(value - at) >= bound)  # type: ignore[misc]
            options |= {"first": stats.median(column[:MIN_STEPS]), "last": stats.median(column[-MIN_STEPS:])}
            return curves.report(late, "metrics/drifting", name, **options)
    return None


def _clip_ratio(curves: Curves) -> Result | None:
    """Find five or more successive steps in which at least 90 % of tokens are clipped."""
    episode = curves.longest_episode(("clip",), lambda value: 0.9 <= value <= 1, 5)
    return curves.report(episode, "curves/clip", "clip")


# Metric, family of the fault; whether the medians of the first and the last eighth of the run show it, and whether a
# value does.
_SHIFTS: tuple[tuple[str, str, Callable[..., bool], Callable[..., bool]], ...] = (
    ("entropy", "curves/entropy_collapse",
     lambda first, last: first > 0.02 and last < 0.1 * first, lambda first, _, value: value < 0.1 * first),
    ("entropy", "curves/entropy_explosion",
     lambda first, last: last >= max(3 * first, first + 1) and first > 0, lambda _, last, value: value > 0.5 * last),
    ("length", "curves/length_collapse",
     lambda first, last: first >= 40 and last < 0.15 * first, lambda first, _, value: value < 0.3 * first),
    ("kl", "curves/kl_explosion",
     lambda first, last: last > min(max(1, 20 * first), max(10, 5 * first)),
     lambda _, last, value: value > 0.25 * last),
)  # fmt: skip


def _shifts(curves: Curves) -> Iterator[Result | None]:
    """Find collapse and explosion of entropy, collapse of the length, and explosion of the KL (`_SHIFTS`)."""
    for name, family, is_fault, holds in _SHIFTS:
        first, last = curves.first_and_last_level(name)
        if is_fault(first, last):
            late = curves.departure(name, partial(holds, first, last))
            yield curves.report(late, family, name, first=first, last=last)


def _gradient_spikes(curves: Curves) -> Result | None:
    """Find gradient norms above 20 times the median of the 20 steps before: three, or one of at least 100 times.

    Steps without a reward signal are left out, because the KL term alone makes a far smaller gradient.
    """
    lowest = min(curves.column("reward"), default=0.0)
    no_signal = {"all_alike": 1, "reward_std": 0, "reward": lowest}.items()
    mixed = (row for row in curves.rows if all(row.values.get(name) != value for name, value in no_signal))
    learning = Curves(tuple(mixed))
    rows, values = learning.select("grad_norm"), learning.column("grad_norm")
    usual = [stats.median(values[max(0, index - 20) : index]) for index in range(len(values))]
    places = [index for index in range(MIN_STEPS, len(values)) if usual[index] > 0]
    ratios = [(values[index] / usual[index], index) for index in places]
    spikes, (times, index) = sum(ratio > 20 for ratio, _ in ratios), max(ratios, default=(0.0, 0))
    if not spikes or (spikes < 3 and times < 100):
        return None
    episode = Episode((rows[index],), open=False)
    return curves.report(episode, "curves/gradient_spikes", "grad_norm", spikes=spikes, times=times)


def _reward_without_trend(curves: Curves) -> Result | None:
    """Find a median reward below 0.9 without a trend over the whole run, which has at least 60 steps.

    Rewards that rise and fall by parts, as with a curriculum, have a trend: their steps are small beside their spread.
    """
    rows, values = curves.select("reward"), curves.column("reward")
    level = stats.median(values)
    if len(rows) < _MIN_STEPS_FOR_TREND or level >= _SOLVED or _steps_without_reward_spread(curves):
        return None
    slope, error, residual = stats.fit_line([float(index) for index in range(len(values))], values)
    rise, noise = abs(slope) * len(values), math.sqrt(residual)
    if not math.isfinite(rise) or (error and abs(slope) > 2.5 * error) or rise > max(0.5 * noise, 0.01):
        return None
    if stats.fsum((b - a) ** 2 for a, b in pairwise(values)) < _MIN_STEP_SQUARE * residual * len(values):
        return None
    measured: dict[str, Any] = {"level": level, "slope": slope, "noise": noise}
    measured |= {"lowest": min(values), "highest": max(values)}
    causes = "" if abs(level) > 0.02 else "reward"
    return curves.report(Episode(rows), "curves/flat_reward", "reward", causes=causes, **measured)


def _rises(values: Sequence[float]) -> bool:
    """Return whether values have a rising trend that is no chance."""
    slope, error, _ = stats.fit_line([float(index) for index in range(len(values))], values)
    return slope > 2 * error


def _length_growth(curves: Curves) -> Result | None:
    """Find a mean completion length that grew to three times its first level or more while the reward did not rise."""
    first, last = curves.first_and_last_level("length")
    before, after = curves.first_and_last_level("reward")
    rewards = curves.column("reward")
    if not 0 < 3 * first <= last or len(rewards) < 3 * MIN_STEPS or after >= _SOLVED or _rises(rewards):
        return None
    late = curves.departure("length", lambda value: value > 0.5 * last)
    levels: dict[str, Any] = {"first": first, "last": last, "before": before, "after": after}
    return None if _truncation(curves) else curves.report(late, "curves/length_growth", "length", **levels)


def _peak_and_last(values: list[float], width: int) -> tuple[float, float, float]:
    """Return the largest and the last median of `width` successive values, and the median step between two values."""
    smooth = [stats.median(values[index : index + width]) for index in range(len(values) - width + 1)]
    return max(smooth), smooth[-1], stats.median([abs(b - a) for a, b in pairwise(values)])


def _reward_collapse(curves: Curves) -> Result | None:
    """Find a smoothed reward that fell to half of its peak or lower, far beyond its noise."""
    values = curves.column("reward")
    if len(values) < 3 * MIN_STEPS:
        return None
    peak, last, noise = _peak_and_last(values, MIN_STEPS)
    if peak <= 0 or last > 0.5 * peak or peak - last < 5 * noise:
        return None
    late = curves.departure("reward", lambda value: value <= 0.5 * peak)
    return curves.report(late, "curves/reward_collapse", "reward", peak=peak, last=last)


def _evaluation_falls(curves: Curves) -> Result | None:
    """Find an evaluation reward that fell clearly below its best, while the training reward rose in the same steps."""
    values, rows = curves.column("eval_reward"), curves.select("eval_reward")
    if len(values) < 5 or len(curves.column("reward")) < MIN_STEPS:
        return None
    best, now, noise = _peak_and_last(values, 3)
    fall = values[values.index(max(values)) :]
    if len(fall) >= 5 and all(after < before for before, after in pairwise(fall)):
        noise = 0.0  # few evaluations, of which each is worse than the one before
    index = max(index for index in range(len(rows) - 2) if stats.median(values[index : index + 3]) == best)
    # Training rewards around the best evaluation: both fall together when a curriculum makes the problems harder.
    start, end = (curves.rows.index(row) for row in (rows[index], rows[index + 2]))
    around = Curves(curves.rows[max(0, start - MIN_STEPS // 2) : end + MIN_STEPS // 2]).column("reward")
    first, last = stats.median(around), curves.first_and_last_level("reward")[1]
    if now >= best - max(0.2 * abs(best), 2 * noise) or not around or last - first < 0.25 * (best - now):
        return None
    late = Curves(rows[index:]).last_episode("eval_reward", lambda value: value < best - 0.25 * (best - now))
    options: dict[str, Any] = {"best": best, "now": now, "first": first, "last": last}
    return curves.report(late, "curves/evaluation_falls", "eval_reward", **options)


def _function_falls(curves: Curves) -> Result | None:
    """Find a reward function whose mean fell to half or less, far beyond its noise, while the total reward rose."""
    first, last = curves.first_and_last_level("reward")
    names = {name for row in curves.rows for name in row.printed if _FUNCTION_MEAN.fullmatch(name)}
    for name in sorted(names) if last > first else ():
        rows = (replace(row, values={name: row.printed[name]}) for row in curves.rows if name in row.printed)
        one = Curves(tuple(rows))
        before, after = one.first_and_last_level(name)
        noise = stats.median([abs(b - a) for a, b in pairwise(one.column(name))])
        if len(one.rows) >= 3 * MIN_STEPS and 0 < before >= 2 * after and before - after > 5 * noise:
            late = one.departure(name, lambda value, limit=0.5 * before: value <= limit)  # type: ignore[misc]
            levels: dict[str, Any] = {"name": name, "before": before, "after": after, "last": last}
            return curves.report(late, "curves/function_falls", name, **levels)
    return None


def _zero_reward_function(curves: Curves) -> Result | None:
    """Note reward functions that are 0 in the whole run, of at least 20 steps, while others are not.

    The result is clean with a notice if their names are those of format rewards, otherwise undecided. Penalties are
    left out.
    """
    means: dict[str, list[float]] = {}
    for row in curves.select("reward"):
        for name, value in row.printed.items():
            if match := _FUNCTION_MEAN.fullmatch(name):
                means.setdefault(match[1], []).append(value)
    zero = [name for name, values in means.items() if len(values) >= 20 and all(map(is_zero, values))]
    zero = [name for name in zero if not _PENALTY_NAME.search(name)]
    nonzero = [name for name, values in means.items() if any(values)]
    if not zero or not nonzero:
        return None
    values: dict[str, Any] = {"name": zero[0], "count": len(means[zero[0]]), "others": nonzero[0]}
    fields = {"count": values["count"], "evidence": (note("notice:zero_function", **values),)}
    if all(map(_FORMAT_NAME.search, zero)):
        return clean("metrics/zero_function", **fields)
    return undecided("metrics/zero_function", note("want_matching_reward", **values), **fields)


_CHECKS: tuple[Callable[[Curves], Result | None], ...] = (
    _trained_nothing, _reference_kl, _not_a_number, _no_reward_spread, _no_gradient, _zero_learning_rate,
    _truncation, _length_growth, _mismatch, _clip_ratio, _evaluation_falls, _function_falls, _gradient_spikes,
    _reward_without_trend, _reward_collapse, _zero_reward_function,
)  # fmt: skip
