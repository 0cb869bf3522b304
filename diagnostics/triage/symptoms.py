"""What metrics show that is not as it should be: symptoms, each with what may be behind it, the likeliest first.

A metric says that something is wrong and not what. So the causes are hypotheses, and with each stands what would settle
it. The bounds are those that the frameworks' own documentation and checks use.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from diagnostics.triage.metrics import lines_with
from diagnostics.triage.seen import Hit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from diagnostics.triage.metrics import Row

    # Rows that show something, each with the metrics that do.
    Shown = list[tuple[Row, tuple[str, ...]]]


@dataclass(frozen=True)
class Cause:
    """What may be behind a symptom.

    Attributes:
        code: Of the known issue; empty where no entry describes it.
        settles: The metric, switch or line that tells whether it is this.
    """

    code: str
    settles: str


@dataclass(frozen=True)
class Symptom:
    """Something that metrics show.

    Attributes:
        what: In a few words.
        means: What it means for the run, and what may be behind it that no entry describes.
        hits: The lines that show it.
    """

    what: str
    means: str
    hits: tuple[Hit, ...]
    causes: tuple[Cause, ...]


@dataclass(frozen=True)
class Rule:
    """A symptom, and the rows of metrics that show it."""

    what: str
    means: str
    shows: Callable[[Sequence[Row]], Shown]
    causes: tuple[Cause, ...]
    at_once: bool = False


_ENOUGH = 3
# verl's FAQ: to be looked into above 0.01. NeMo-RL: at most 1.05. TRL: 0.85 to 1.15.
_MOST_DIFF, _MOST_MULT, _LEAST_RATIO, _MOST_RATIO, _MOST_KL = 0.02, 1.05, 0.8, 1.25, 0.05
_NEXT_TO_NOTHING = 1e-3
_WEIGHTS_OR_TEMPERATURE = (
    Cause(
        "SYN003",
        "is it near 1 in the first step, and further off the longer the run? then the engine samples from old weights:"
        " switch sleep mode off once",
    ),
    Cause(
        "NUM001", "is it off in the first step already? run once at temperature 1, or set processed_logprobs"
    ),
    Cause("NUM003", "the model folder's generation_config.json: run once with generation_config='vllm'"),
    Cause("NUM002", "top_p, top_k, min_p: run once with 1.0, -1 and 0"),
    Cause("SYN001", "reset_prefix_cache() after each update, or enable_prefix_caching=False once"),
)


def _where(meant: str, holds: Callable[[float], bool]) -> Callable[[Sequence[Row]], Shown]:
    return lambda rows: [(row, (meant,)) for row in lines_with(rows, meant) if holds(row.said[meant][1])]


def _numbers_lost(rows: Sequence[Row]) -> Shown:
    """Rows in which a metric of the update is NaN, but for the spread of a single one."""
    found: Shown = []
    for row in rows:
        names = tuple(
            name
            for name in ("loss", "grad_norm", "kl", "entropy", "reward", "ratio", "probs_diff", "mismatch_kl")
            if name in row.said and not math.isfinite(row.said[name][1])
        )
        if names:
            found.append((row, names))
    # A loss scaler's first steps: a number again in the next line, and nothing was lost.
    return found if found and _stays(rows, found[-1]) else []


def _stays(rows: Sequence[Row], last: tuple[Row, tuple[str, ...]]) -> bool:
    row, names = last
    return not any(
        name in one.said and math.isfinite(one.said[name][1])
        for one in rows
        if one.line > row.line
        for name in names
    )


def recovered(rows: Sequence[Row]) -> bool:
    """Whether metrics were NaN, and are numbers again."""
    was = any(math.isnan(value) for row in rows for _, value in row.said.values())
    return was and not _numbers_lost(rows) and not any(math.isnan(v) for _, v in rows[-1].said.values())


def _all_at_the_cap(rows: Sequence[Row]) -> Shown:
    """Where at least half of the rows that tell say so: a step or two of a long run are ordinary."""
    told = list(lines_with(rows, "capped"))
    found: Shown = [(row, ("capped",)) for row in told if 0.95 <= row.said["capped"][1] <= 1.0]
    if 2 * len(found) < len(told):
        return []
    for row in lines_with(rows, "length_min", "length_max"):
        low, high = row.said["length_min"][1], row.said["length_max"][1]
        if low == high >= 16 and not told:
            found.append((row, ("length_min", "length_max")))
    return found


def _no_spread(rows: Sequence[Row]) -> Shown:
    """Where all rows that tell have no spread: single ones are ordinary."""
    told = list(lines_with(rows, "reward_std"))
    flat: Shown = [(row, ("reward_std",)) for row in told if row.said["reward_std"][1] == 0]
    alike: Shown = [
        (row, ("all_alike",)) for row in lines_with(rows, "all_alike") if row.said["all_alike"][1] == 1
    ]
    shares = list(lines_with(rows, "all_alike"))
    if flat and len(flat) == len(told):
        return [*flat, *alike]
    return alike if len(alike) > 1 and len(alike) == len(shares) else []


def _no_gradient(rows: Sequence[Row]) -> Shown:
    return [
        (row, ("grad_norm", "reward_std"))
        for row in lines_with(rows, "grad_norm", "reward_std")
        if row.said["grad_norm"][1] == 0
        and row.said["reward_std"][1] > 0
        and row.said.get("lr", ("", 1.0))[1] != 0
    ]


def _gone(rows: Sequence[Row]) -> Shown:
    """The entropy fell to nothing: from something, or it is nothing from the first line on."""
    told = list(lines_with(rows, "entropy"))
    low: Shown = [(row, ("entropy",)) for row in told if 0 <= row.said["entropy"][1] < _NEXT_TO_NOTHING]
    return low if low and low[-1][0] is told[-1] else []


RULES = (
    Rule(
        "the spread of the rewards is no number (NaN)",
        "One value has no standard deviation, and that of values with a NaN or an infinite one among them is NaN:"
        " advantages that are divided by it become NaN, and the loss.",
        _where("reward_std", math.isnan),
        (
            Cause("CFG110", "num_generations, rollout.n, n_samples_per_prompt: is it 1?"),
            Cause("REW002", "a reward that is NaN or None itself: print what the reward function returns"),
        ),
        at_once=True,
    ),
    Rule(
        "a metric of the update is no number (NaN or infinite)",
        "Where an update was made by a gradient that is no number, nothing later can be trusted: go on from the last"
        " checkpoint before it. Which metric was the first may say where it came from.",
        _numbers_lost,
        (
            Cause("NUM027", "the first line in which any metric is NaN, and which one it is"),
            Cause("NUM025", "fp16 or bf16? with fp16 the scaler's skipped steps; run once in bf16"),
            Cause("CFG110", "reward_std: is it NaN, too? then groups of one"),
            Cause("NUM024", "the engine's log-probs: is one NaN or -inf?"),
        ),
        at_once=True,
    ),
    Rule(
        "every completion ends at the length limit, and no group has any spread",
        "Hardly a completion is finished, and all of a group are worth the same: no advantage within it, no gradient"
        " but that of a KL or an entropy term. The limit is too short for the task, or the model never says its end"
        " token (chat template, eos_token_id, a base model, a policy that has collapsed into repetition).",
        lambda rows: [*at_cap] if (at_cap := _all_at_the_cap(rows)) and _no_spread(rows) else [],
        (
            Cause("", "read three completions: do they stop in the middle? raise the limit, or look for the end token"),
            Cause("REW001", "are rewards 0 for right answers, too? score one of them by hand, in the main thread"),
            Cause("CFG115", "temperature: is it 0? then all of a group are one"),
        ),
    ),
    Rule(
        "every completion ends at the length limit",
        "The limit is too short for the task, or the model never says its end token (chat template, eos_token_id, a"
        " base model, a policy that has collapsed into repetition).",
        _all_at_the_cap,
        (
            Cause("", "read three completions: do they stop in the middle, or repeat themselves? an end token?"),
            Cause("TOK013", "the prompt as it is sent: is the chat template there?"),
        ),
    ),
    Rule(
        "the gradient is 0 though rewards differ",
        "Rewards differ and nothing comes of it: no spread within any one group, all tokens masked (truncated"
        " completions left out), weights frozen, everything clipped, or a gradient too small for the digits shown.",
        _no_gradient,
        (
            Cause("CFG117", "LoRA or a frozen base with gradient checkpointing? run once with use_reentrant=False"),
            Cause("", "completions/clipped_ratio with mask_truncated_completions: is everything masked?"),
            Cause("NUM004", "is it tiny rather than 0? steps_per_generation beside gradient_accumulation_steps"),
        ),
    ),
    Rule(
        "no group has any spread of rewards",
        "All completions of a group are worth the same: no advantage within it, no gradient but that of a KL or an"
        " entropy term.",
        _no_spread,
        (
            Cause("REW001", "are all rewards 0? score a right answer by hand, in the main thread and in another"),
            Cause("CFG115", "temperature: is it 0? are the completions of a group the same text?"),
            Cause("REW002", "does the reward function get the column with the answer? print its arguments once"),
        ),
    ),
    Rule(
        "trainer and engine do not agree on the probability of the same tokens",
        "The ratio between them is to be near 1 from the first step on. Mostly the engine samples with other weights"
        " or by another law than the trainer computes with, or reports its log-probs by another.",
        lambda rows: [
            *_where("ratio", lambda value: not _LEAST_RATIO <= value <= _MOST_RATIO)(rows),
            *_where("probs_diff", lambda value: value > _MOST_DIFF)(rows),
            *_where("mult_error", lambda value: value > _MOST_MULT)(rows),
            *_where("mismatch_kl", lambda value: value > _MOST_KL)(rows),
        ],
        _WEIGHTS_OR_TEMPERATURE,
    ),
    Rule(
        "the entropy is gone",
        "The policy says the same whatever is sampled: it has collapsed (learning rate, no KL, a reward that one answer"
        " satisfies), its temperature is next to 0, or no token was counted.",
        _gone,
        (
            Cause("CFG115", "temperature: is it 0, or near it?"),
            Cause("", "entropy and kl of the steps before: did it fall within a few, and kl rise with it?"),
        ),
    ),
)  # fmt: skip


def shown(rows: Sequence[Row], *, pasted: bool = False) -> list[Symptom]:
    """The symptoms that the metrics show, the one that explains most first; what another one says already is left out.

    Args:
        rows: Lines of metrics.
        pasted: Whether somebody chose these lines, so that one is enough of what a run may well show for a step or two.
    """
    found: list[Symptom] = []
    for rule in RULES:
        lines = rule.shows(rows)
        if len(lines) < (1 if pasted or rule.at_once else _ENOUGH):
            continue
        if not any(one.what.startswith(rule.what) for one in found):
            hits = tuple(_hit(row, names) for row, names in lines)
            found.append(Symptom(rule.what, rule.means, hits, rule.causes))
    if any("no spread" in one.what or ("spread" in one.what and "limit" in one.what) for one in found[:1]):
        found = [one for one in found if one is found[0] or one.what != "no group has any spread of rewards"]
    return found


def _hit(row: Row, names: tuple[str, ...]) -> Hit:
    text = ", ".join(f"{row.said[name][0]} {row.said[name][1]:g}" for name in names)
    return Hit(row.source, row.line, text, "", None)
