"""Find symptoms in the metrics of a log, each with its possible causes in the order of likelihood.

A metric shows that something is wrong and not why. The causes are hypotheses, each with the test that would settle it.
The bounds are those of the frameworks' own documentation and checks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from diagnostics.logs.metric_names import MAX_STEPS_PER_S, MetricRow
from diagnostics.triage.model import Hit

# Rows that show a symptom, each with the metrics that show it.
Matches = list[tuple[MetricRow, tuple[str, ...]]]


@dataclass(frozen=True)
class Cause:
    """A possible cause; `code` is empty where no entry describes it, `settles` is the test that would settle it."""

    code: str
    settles: str


@dataclass(frozen=True)
class Symptom:
    """A symptom: in a few words, its meaning for the run, the lines that show it, and possible causes."""

    what: str
    means: str
    hits: tuple[Hit, ...]
    causes: tuple[Cause, ...]


@dataclass(frozen=True)
class SymptomRule:
    """A symptom and the function that finds it; `at_once`: one row is enough."""

    what: str
    means: str
    find: Callable[[Sequence[MetricRow]], Matches]
    causes: tuple[Cause, ...]
    at_once: bool = False


_MIN_ROWS = 3
_NO_SPREAD = "no group has any spread of rewards"
# verl's FAQ: investigate above 0.01. NeMo-RL: at most 1.05. TRL: 0.85 to 1.15.
_MAX_DIFF, _MAX_MULT, _MIN_RATIO, _MAX_RATIO, _MAX_KL = 0.02, 1.05, 0.8, 1.25, 0.05
_MIN_ENTROPY = 1e-3
_MIN_CAPPED, _MIN_LENGTH = 0.95, 16
_WEIGHTS_OR_TEMPERATURE = (
    Cause(
        "SYN003",
        "near 1 in the first step, and drifting later? Then the engine has old weights: turn sleep mode off once",
    ),
    Cause(
        "NUM001",
        "wrong in the first step already? Run once at temperature 1, or set processed_logprobs",
    ),
    Cause("NUM003", "the model folder's generation_config.json: run once with generation_config='vllm'"),
    Cause("NUM002", "top_p, top_k, min_p: run once with 1.0, -1 and 0"),
    Cause("SYN001", "reset_prefix_cache() after each update, or enable_prefix_caching=False once"),
)


def _rows_with(rows: Sequence[MetricRow], *names: str) -> Iterator[MetricRow]:
    return (row for row in rows if all(name in row.metrics for name in names))


def _rows_where(name: str, condition: Callable[[float], bool]) -> Callable[[Sequence[MetricRow]], Matches]:
    return lambda rows: [(row, (name,)) for row in _rows_with(rows, name) if condition(row.metrics[name][1])]


def _non_finite_rows(rows: Sequence[MetricRow]) -> Matches:
    """Return rows in which a metric of the update is not finite."""
    checked = ("loss", "grad_norm", "kl", "entropy", "reward", "ratio", "probs_diff", "mismatch_kl")
    matches: Matches = []
    for row in rows:
        names = tuple(it for it in checked if it in row.metrics and not math.isfinite(row.metrics[it][1]))
        if names:
            matches.append((row, names))
    # The first steps of a loss scaler are finite again in the next row.
    return matches if matches and _is_permanent(rows, *matches[-1]) else []


def _is_permanent(rows: Sequence[MetricRow], last: MetricRow, names: tuple[str, ...]) -> bool:
    return not any(
        name in row.metrics and math.isfinite(row.metrics[name][1])
        for row in rows
        if row.line > last.line
        for name in names
    )


def has_recovered(rows: Sequence[MetricRow]) -> bool:
    """Whether metrics were NaN and are numbers again."""
    had_nan = any(math.isnan(value) for row in rows for _, value in row.metrics.values())
    return (
        had_nan
        and not _non_finite_rows(rows)
        and not any(math.isnan(value) for _, value in rows[-1].metrics.values())
    )


def _capped_rows(rows: Sequence[MetricRow]) -> Matches:
    """Return rows with completions at the length limit, if at least half of the rows have them."""
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
    """Return rows without any spread of rewards, if all rows are without; single ones are ordinary."""
    flat = _rows_where("reward_std", lambda value: value == 0)(rows)
    uniform = _rows_where("all_alike", lambda share: share == 1)(rows)
    if flat and len(flat) == len(list(_rows_with(rows, "reward_std"))):
        return [*flat, *uniform]
    return uniform if len(uniform) > 1 and len(uniform) == len(list(_rows_with(rows, "all_alike"))) else []


def _rows_without_gradient(rows: Sequence[MetricRow]) -> Matches:
    return [
        (row, ("grad_norm", "reward_std"))
        for row in _rows_with(rows, "grad_norm", "reward_std")
        if row.value("grad_norm") == 0 and row.metrics["reward_std"][1] > 0 and row.value("lr") != 0
    ]


def _rows_without_entropy(rows: Sequence[MetricRow]) -> Matches:
    """Return rows without entropy, if the last row is without."""
    matches = _rows_where("entropy", lambda value: 0 <= value < _MIN_ENTROPY)(rows)
    return matches if matches and matches[-1][0] is list(_rows_with(rows, "entropy"))[-1] else []


def _rows_that_trained_nothing(rows: Sequence[MetricRow]) -> Matches:
    """Return the summary of a run whose steps are too fast, if no step logged anything or the loss is 0.

    Rows before the summary may be those of an earlier run in the same file.
    """
    has_steps = any("steps_per_second" not in row.metrics for row in rows)
    fast = _rows_where("steps_per_second", lambda rate: rate > MAX_STEPS_PER_S)(rows)
    return [(row, names) for row, names in fast if not has_steps or row.value("loss") == 0]


_RULES = (
    SymptomRule(
        "nothing was trained: the run ended at once",
        "A rate above 100 steps per second means that no step trained. The run resumed at its last step, or its "
        "dataset is empty.",
        _rows_that_trained_nothing,
        (
            Cause("", "does resume_from_checkpoint name the last step? Raise max_steps or num_train_epochs"),
        ),
        at_once=True,
    ),
    SymptomRule(
        "the standard deviation of rewards is NaN",
        "One reward alone has no standard deviation, and a NaN or infinite reward makes it NaN. Advantages divided by"
        " it are NaN, and so is the loss.",
        _rows_where("reward_std", math.isnan),
        (
            Cause("CFG110", "num_generations, rollout.n, n_samples_per_prompt: is it 1?"),
            Cause("REW002", "is a reward NaN or None? Print what the reward function returns"),
        ),
        at_once=True,
    ),
    SymptomRule(
        "a metric of the update is NaN or infinite",
        "After an update with a NaN gradient, all weights are NaN: resume from the last checkpoint before it. The"
        " metric that became NaN first shows where it came from.",
        _non_finite_rows,
        (
            Cause("NUM027", "find the first line with a NaN: which metric is it?"),
            Cause("NUM025", "fp16 or bf16? With fp16 the loss scaler skips steps; run once in bf16"),
            Cause("CFG110", "is reward_std NaN, too? Then groups have one completion"),
            Cause("NUM024", "is one of the engine's log-probs NaN or -inf?"),
        ),
        at_once=True,
    ),
    SymptomRule(
        "every completion ends at the length limit, and no group has any spread of rewards",
        "Completions are cut off, so all rewards of a group are equal: no advantage, no gradient but that of a KL or"
        " entropy term. The limit is too short for the task, or the model never emits its end token (chat template,"
        " eos_token_id, a base model, a policy that repeats itself).",
        lambda rows: capped if (capped := _capped_rows(rows)) and _rows_without_spread(rows) else [],
        (
            Cause("", "read three completions: are they cut off? Raise the limit, or check the end token"),
            Cause("REW001", "are rewards 0 for right answers, too? Score one by hand, in the main thread"),
            Cause("CFG115", "is the temperature 0? Then all completions of a group are identical"),
        ),
    ),
    SymptomRule(
        "every completion ends at the length limit",
        "The limit is too short for the task, or the model never emits its end token (chat template, eos_token_id, a"
        " base model, a policy that repeats itself).",
        _capped_rows,
        (
            Cause("", "read three completions: are they cut off, do they repeat themselves, is there an end token?"),
            Cause("TOK013", "print the prompt as it is sent: is the chat template applied?"),
        ),
    ),
    SymptomRule(
        "the gradient is 0 though rewards differ",
        "Possible reasons: no spread within a group, all tokens masked (truncated completions left out), frozen"
        " weights, everything clipped, or a gradient too small for the printed digits.",
        _rows_without_gradient,
        (
            Cause("CFG117", "LoRA or frozen weights with gradient checkpointing? Run once with use_reentrant=False"),
            Cause("", "is completions/clipped_ratio 1 with mask_truncated_completions? Then everything is masked"),
            Cause("NUM004", "is it tiny rather than 0? Compare steps_per_generation with gradient_accumulation_steps"),
        ),
    ),
    SymptomRule(
        _NO_SPREAD,
        "All completions of a group have the same reward: no advantage, no gradient but that of a KL or entropy term.",
        _rows_without_spread,
        (
            Cause("REW001", "are all rewards 0? Score a right answer by hand, in the main thread and in another"),
            Cause("CFG115", "is the temperature 0? Are the completions of a group the same text?"),
            Cause("REW002", "does the reward function receive the column with the answer? Print its arguments once"),
        ),
    ),
    SymptomRule(
        "trainer and engine compute different probabilities for the same tokens",
        "Their ratio should be near 1 from the first step on. Usually the engine has other weights, or samples from a"
        " different distribution (temperature, top_p) than the trainer computes with.",
        lambda rows: [
            *_rows_where("ratio", lambda value: not _MIN_RATIO <= value <= _MAX_RATIO)(rows),
            *_rows_where("probs_diff", lambda value: value > _MAX_DIFF)(rows),
            *_rows_where("mult_error", lambda value: value > _MAX_MULT)(rows),
            *_rows_where("mismatch_kl", lambda value: value > _MAX_KL)(rows),
        ],
        _WEIGHTS_OR_TEMPERATURE,
    ),
    SymptomRule(
        "entropy collapsed to 0",
        "The policy gives one answer only. Reasons: a high learning rate, no KL term, a reward that one answer"
        " satisfies, or a temperature near 0.",
        _rows_without_entropy,
        (
            Cause("CFG115", "is the temperature 0, or near it?"),
            Cause("", "did entropy fall within a few steps while kl rose?"),
        ),
    ),
)  # fmt: skip


def find_symptoms(rows: Sequence[MetricRow], *, pasted: bool = False) -> list[Symptom]:
    """Return the symptoms in metrics, the one that explains most first, without those that another one implies.

    Args:
        rows: Lines of metrics.
        pasted: Somebody selected these lines, so one row is enough for every symptom.
    """
    symptoms: list[Symptom] = []
    for rule in _RULES:
        matches = rule.find(rows)
        if len(matches) < (1 if pasted or rule.at_once else _MIN_ROWS):
            continue
        if not any(symptom.what.startswith(rule.what) for symptom in symptoms):
            hits = tuple(_hit(row, names) for row, names in matches)
            symptoms.append(Symptom(rule.what, rule.means, hits, rule.causes))
    if symptoms and "spread" in symptoms[0].what and "limit" in symptoms[0].what:
        symptoms = [it for it in symptoms if it.what != _NO_SPREAD]
    return symptoms


def _hit(row: MetricRow, names: tuple[str, ...]) -> Hit:
    text = ", ".join(f"{row.metrics[name][0]} {row.metrics[name][1]:g}" for name in names)
    return Hit(row.source, row.line, text, "", None)
