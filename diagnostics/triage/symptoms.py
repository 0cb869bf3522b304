"""Find symptoms in the metrics of a log, each with its possible causes, likeliest first.

`find_symptoms` returns them. A metric shows that something is wrong, but not why. The causes in symptoms.toml are
hypotheses, each with the test that would confirm it. The bounds follow the frameworks' documentation and checks, some
with a margin. `has_recovered` reports whether NaN metrics became numbers again.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from diagnostics.logs.metrics import MAX_STEPS_PER_S, MetricRow
from diagnostics.triage.log_facts import Hit

# Rows that show a symptom, each with the metrics that show it.
Matches = list[tuple[MetricRow, tuple[str, ...]]]


@dataclass(frozen=True)
class Cause:
    """A possible cause.

    Attributes:
        code: Code of the known issue; empty if no entry describes the cause.
        settles: The test that would confirm or exclude it.
    """

    code: str
    settles: str


class SymptomRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An entry of symptoms.toml.

    Attributes:
        name: Name of the symptom.
        meaning: Meaning for the run.
        find: Key of `_FINDERS`: the function that finds the rows with the symptom.
        causes: Possible causes, likeliest first.
        at_once: Whether one row is enough.
        implied_by: The `find` of the symptoms that include this one.
    """

    name: str
    meaning: str
    find: str
    causes: tuple[Cause, ...]
    at_once: bool = False
    implied_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class Symptom:
    """A symptom that metrics show; `hits` are the lines that show it."""

    rule: SymptomRule
    hits: tuple[Hit, ...]


_MIN_ROWS = 3
# Bounds of probs_diff (verl's FAQ: investigate above 0.01), mult_error (NeMo-RL: at most 1.05), ratio (TRL: 0.85 to
# 1.15) and mismatch_kl.
_MAX_DIFF, _MAX_MULT, _MIN_RATIO, _MAX_RATIO, _MAX_KL = 0.02, 1.05, 0.8, 1.25, 0.05
_MIN_ENTROPY = 1e-3
# Share of completions at the length limit; equal lengths count as the limit from 16 tokens on.
_MIN_CAPPED, _MIN_LENGTH = 0.95, 16


def _rows_with(rows: Sequence[MetricRow], *names: str) -> Iterator[MetricRow]:
    return (row for row in rows if all(name in row.metrics for name in names))


def _rows_where(name: str, condition: Callable[[float], bool]) -> Callable[[Sequence[MetricRow]], Matches]:
    """Return a function that finds the rows in which a condition holds for a metric."""
    return lambda rows: [(row, (name,)) for row in _rows_with(rows, name) if condition(row.metrics[name][1])]


def _non_finite_rows(rows: Sequence[MetricRow]) -> Matches:
    """Return rows in which a metric of the update is not finite; none if the last one recovers later."""
    checked = ("loss", "grad_norm", "kl", "entropy", "reward", "ratio", "probs_diff", "mismatch_kl")
    matches: Matches = []
    for row in rows:
        names = tuple(it for it in checked if it in row.metrics and not math.isfinite(row.metrics[it][1]))
        if names:
            matches.append((row, names))
    # A loss scaler may cause NaN in the first steps.
    return matches if matches and _is_permanent(rows, *matches[-1]) else []


def _is_permanent(rows: Sequence[MetricRow], last: MetricRow, names: tuple[str, ...]) -> bool:
    """Return whether none of the metrics is finite again in a row after `last`."""
    return not any(
        name in row.metrics and math.isfinite(row.metrics[name][1])
        for row in rows
        if row.line > last.line
        for name in names
    )


def has_recovered(rows: Sequence[MetricRow]) -> bool:
    """Return whether a metric was NaN, and the metrics of the last row are numbers again."""
    had_nan = any(math.isnan(value) for row in rows for _, value in row.metrics.values())
    if not had_nan or _non_finite_rows(rows):
        return False
    return not any(math.isnan(value) for _, value in rows[-1].metrics.values())


def _capped_rows(rows: Sequence[MetricRow]) -> Matches:
    """Return rows with nearly all completions at the length limit, if at least half of the reporting rows are such.

    If no row reports that share, rows in which all completions have one length are returned.
    """
    reporting = list(_rows_with(rows, "capped"))
    matches = _rows_where("capped", lambda share: _MIN_CAPPED <= share <= 1.0)(rows)
    if 2 * len(matches) < len(reporting):
        return []
    for row in _rows_with(rows, "length_min", "length_max"):
        shortest, longest = row.metrics["length_min"][1], row.metrics["length_max"][1]
        if shortest == longest >= _MIN_LENGTH and not reporting:
            matches.append((row, ("length_min", "length_max")))
    return matches


def _rows_without_spread(rows: Sequence[MetricRow]) -> Matches:
    """Return rows without any spread of rewards, if no row has a spread; a few such rows are normal."""
    ranges = [it.metrics for it in _rows_with(rows, "reward_min", "reward_max")]
    if ranges and all(it["reward_min"][1] == it["reward_max"][1] for it in ranges):
        return [(row, ("reward_min", "reward_max")) for row in _rows_with(rows, "reward_min", "reward_max")]
    flat = _rows_where("reward_std", lambda value: value == 0)(rows)
    uniform = _rows_where("all_alike", lambda share: share == 1)(rows)
    if flat and len(flat) == len(list(_rows_with(rows, "reward_std"))):
        return [*flat, *uniform]
    return uniform if len(uniform) > 1 and len(uniform) == len(list(_rows_with(rows, "all_alike"))) else []


def _rows_that_differ_from_engine(rows: Sequence[MetricRow]) -> Matches:
    """Return rows in which trainer and engine give clearly different probabilities to the same tokens."""
    return [
        *_rows_where("ratio", lambda value: not _MIN_RATIO <= value <= _MAX_RATIO)(rows),
        *_rows_where("probs_diff", lambda value: value > _MAX_DIFF)(rows),
        *_rows_where("mult_error", lambda value: value > _MAX_MULT)(rows),
        *_rows_where("mismatch_kl", lambda value: value > _MAX_KL)(rows),
    ]


def _rows_without_gradient(rows: Sequence[MetricRow]) -> Matches:
    """Return rows with gradient norm 0, although rewards have a spread and the learning rate is not 0."""
    return [
        (row, ("grad_norm", "reward_std"))
        for row in _rows_with(rows, "grad_norm", "reward_std")
        if row.value("grad_norm") == 0 and row.metrics["reward_std"][1] > 0 and row.value("lr") != 0
    ]


def _rows_without_entropy(rows: Sequence[MetricRow]) -> Matches:
    """Return rows with an entropy near 0, if the last row with this metric is one of them."""
    matches = _rows_where("entropy", lambda value: 0 <= value < _MIN_ENTROPY)(rows)
    return matches if matches and matches[-1][0] is list(_rows_with(rows, "entropy"))[-1] else []


def _rows_that_trained_nothing(rows: Sequence[MetricRow]) -> Matches:
    """Return the summary of a run with impossibly fast steps, if no step was logged or the loss is 0.

    Rows before the summary may be those of an earlier run in the same file.
    """
    has_steps = any("steps_per_second" not in row.metrics for row in rows)
    fast = _rows_where("steps_per_second", lambda rate: rate > MAX_STEPS_PER_S)(rows)
    return [(row, names) for row, names in fast if not has_steps or row.value("loss") == 0]


_FINDERS: dict[str, Callable[[Sequence[MetricRow]], Matches]] = {
    "trained_nothing": _rows_that_trained_nothing,
    "reward_std_nan": _rows_where("reward_std", math.isnan),
    "not_finite": _non_finite_rows,
    "capped_without_spread": lambda rows: _capped_rows(rows) if _rows_without_spread(rows) else [],
    "capped": _capped_rows,
    "no_reward": lambda rows: [it for it in _rows_without_spread(rows) if it[0].value("reward") == 0],
    "no_gradient": _rows_without_gradient,
    "no_spread": _rows_without_spread,
    "engine_differs": _rows_that_differ_from_engine,
    "no_entropy": _rows_without_entropy,
}
_TABLE = Path(__file__).with_suffix(".toml").read_bytes()
RULES = msgspec.toml.decode(_TABLE, type=dict[str, list[SymptomRule]])["symptom"]


def find_symptoms(rows: Sequence[MetricRow], *, pasted: bool = False) -> list[Symptom]:
    """Return the symptoms in metrics, in the order of symptoms.toml, without those that another symptom implies.

    A symptom needs three rows, or one if its rule is `at_once` or the lines are `pasted`.

    Args:
        rows: Metrics by line.
        pasted: Whether a person selected these lines.
    """
    symptoms: list[Symptom] = []
    for rule in RULES:
        matches = _FINDERS[rule.find](rows)
        if len(matches) < (1 if pasted or rule.at_once else _MIN_ROWS):
            continue
        if not any(symptom.rule.find in rule.implied_by for symptom in symptoms):
            symptoms.append(Symptom(rule, tuple(_hit(row, names) for row, names in matches)))
    return symptoms


def _hit(row: MetricRow, names: tuple[str, ...]) -> Hit:
    text = ", ".join(f"{row.metrics[name][0]} {row.metrics[name][1]:g}" for name in names)
    return Hit(row.source, row.line, text)
