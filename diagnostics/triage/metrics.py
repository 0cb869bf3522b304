"""The metrics that trainers print, by the names of nine frameworks, as numbers under one name each."""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from diagnostics.triage.reading.prefixes import clean

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from diagnostics.triage.seen import Seen

_NUMBER = r"[-+]?(?:\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+|nan|NaN|NAN|inf|Infinity)"
_WRAPPED = rf"(?:(?:np|torch|numpy)?\.?(?:float\d*|tensor|int\d*)\()?(?P<value>{_NUMBER})(?![\w.])"
_NAME = r"[A-Za-z_][\w/@.-]{1,80}"
_PAIRS = (
    # {'loss': 0.1, "actor/entropy": 0.2} of TRL, ms-swift, OpenRLHF, slime; JSON lines
    re.compile(rf"['\"](?P<name>[A-Za-z_][\w/@. ()-]{{1,80}})['\"]\s*:\s*['\"]?{_WRAPPED}"),
    # step:4 - actor/entropy:0.2 of verl and EasyR1; loss=0.1 behind a bar
    re.compile(rf"(?:^|[\s,\[(])(?P<name>{_NAME})[:=]{_WRAPPED}"),
    # wandb:   train/reward 0.1
    re.compile(rf"^wandb:\s+(?P<name>{_NAME})\s+{_WRAPPED}\s*$"),
    # Step 3 | Loss: 0.1 | Mismatch KL: 0.2 of prime-rl,   • Loss: 0.1 of NeMo-RL, epoch: 3 loss: nan, loss nan
    re.compile(
        r"(?:^|[|•·*,;>\t\s])\s*(?P<name>[A-Za-z][A-Za-z_./]*(?: [A-Za-z][A-Za-z_.]*){0,3})\s*[:=]\s+"
        + _WRAPPED
    ),
    re.compile(rf"(?i)\b(?P<name>loss|grad[_ ]norm|reward|kl)\s+{_WRAPPED}"),
)
# One name for what the frameworks call by many; matched against the name in lower case.
_KNOWN = tuple(
    (meant, re.compile(pattern))
    for meant, pattern in (
        ("probs_diff", r"probs?_diff(?:erence)?(?:[_/](?:mean|max))?$|logp(?:rob)?_diff(?:erence)?(?:/mean)?$"
                       r"|logprobs?_abs_diff|sampling_logp_difference/mean"),
        ("mult_error", r"token_mult_prob_error|mult(?:iplicative)?_prob_error"),
        ("mismatch_kl", r"mismatch[_ /]kl|kl[_ ]mismatch|rollout_corr/(?:k3_)?kl|rollout_kl"),
        ("ratio", r"importance_sampling_ratio/mean|(?:rollout_)?is_(?:ratio|weights?)?/?_?mean|rollout_is_mean"
                  r"|importance_ratio|sampling_ratio/mean"),
        ("all_alike", r"frac_reward_zero_std|zero_std_ratio|zero_advantage|solve_(?:all|none)$"),
        ("reward_std", r"rewards?[_/ ]std(?:[/_]mean)?$|reward/.*std$|std_reward|group_reward_std"),
        ("capped", r"clipped_ratio$|response_length/clip_ratio|truncat\w*_?(?:ratio|rate|frac)|is_truncated"),
        ("clip", r"clip_?frac(?:/mean)?$|clip_ratio(?:/region_mean|/high_mean|/low_mean)?$|clip(?:ped)?_fraction"),
        ("grad_norm", r"grad(?:ient)?[_. ]*norm(?:_mean)?$"),
        ("entropy", r"entropy(?:_loss|/mean|_mean)?$"),
        ("reward", r"(?:^|/)(?:mean_)?rewards?(?:/mean|_mean)?$|critic/(?:score|rewards)/mean$"),
        ("length", r"(?:completions?|response)[_/]?(?:mean_)?length(?:/mean)?$|mean_length$|seq[_ ]length$"),
        ("length_max", r"max_length$|response_length/max$"),
        ("length_min", r"min_length$|response_length/min$"),
        ("kl", r"(?:^|/)(?:ppo_|approx_)?kl(?:_loss|/mean)?$"),
        ("loss", r"loss$"),
        ("advantage", r"advantages?(?:/(?:mean|max|min|std))?$"),
        ("lr", r"(?:^|/)(?:lr|learning_rate)$"),
    )
)  # fmt: skip
# A line without any of these is no line of metrics: looked for before anything is taken apart.
_WORTH = re.compile(
    r"(?i)loss|grad.{0,2}norm|reward|entropy|clip|ratio|prob.{0,4}diff|logp.{0,8}diff|prob_error|mismatch|truncat|length|\bkl\b"
)
_TABLE = re.compile(r"\s*\|?(?:[^|]+\|)+[^|]*$")
# So many bytes at either end of a log are looked through, and so many lines of them.
_LINES = 400


@dataclass(frozen=True)
class Row:
    """The metrics of one line.

    Attributes:
        said: Name as it is printed and value, by the name that is meant.
    """

    source: str
    line: int
    said: dict[str, tuple[str, float]]

    def value(self, meant: str) -> float | None:
        """The value of a metric, if the line has it."""
        return self.said[meant][1] if meant in self.said else None


def rows_of(seen: Seen) -> list[Row]:
    """The lines with metrics at the beginning and at the end of a log."""
    found: list[Row] = []
    parts = [(seen.head, 1, False)]
    if seen.tail and seen.lines > seen.head.count(b"\n") + 1:
        tail = seen.tail
        parts.append((tail, seen.lines - tail.rstrip(b"\n").count(b"\n"), True))
    for data, first, _ in parts:
        columns: list[str] = []
        for number, raw in enumerate(data.decode("utf-8", "replace").split("\n"), first):
            if found and number <= found[-1].line:
                continue
            if "|" in raw and (cells := _cells(raw)):
                columns = _columns(cells) or columns
                said = _of_table(columns, cells)
            elif _WORTH.search(raw):
                said = pairs(clean(raw).text)
            else:
                continue
            if said and len(found) < 2 * _LINES:
                found.append(Row(seen.source, number, said))
    return found


def pairs(text: str) -> dict[str, tuple[str, float]]:
    """The metrics of a line, by what they mean.

    Example:
        >>> pairs("step:4 - actor/grad_norm:0.5 - actor/entropy:nan")["grad_norm"]
        ('actor/grad_norm', 0.5)
    """
    said: dict[str, tuple[str, float]] = {}
    for pattern in _PAIRS:
        for match in pattern.finditer(text[:20_000]):
            _add(said, match["name"].strip(), match["value"])
    return said


def _add(said: dict[str, tuple[str, float]], name: str, value: str) -> None:
    if (meant := meaning(name)) and (meant not in said or math.isnan(float(value))):
        said[meant] = (name, float(value))


@functools.lru_cache(4096)
def meaning(name: str) -> str:
    """The one name for what a metric's name means; empty for one of an evaluation, and for what is not known.

    >>> meaning("train/reward"), meaning("critic/score/mean"), meaning("eval_reward")
    ('reward', 'reward', '')
    """
    lowered = name.lower().strip()
    if lowered.startswith(("val", "eval", "test")):
        return ""
    return next((meant for meant, pattern in _KNOWN if pattern.search(lowered)), "")


def _cells(raw: str) -> list[str]:
    return [cell.strip() for cell in raw.strip().strip("|").split("|")] if _TABLE.match(raw) else []


def _columns(cells: list[str]) -> list[str]:
    """The names of a table's columns, where a line has them."""
    meant = sum(bool(meaning(cell)) for cell in cells)
    return cells if len(cells) > 2 and meant >= 2 and not any(_is_number(cell) for cell in cells) else []


def _of_table(columns: list[str], cells: list[str]) -> dict[str, tuple[str, float]]:
    said: dict[str, tuple[str, float]] = {}
    if len(columns) == len(cells) and not any(c in "".join(cells) for c in "[]"):
        for name, cell in zip(columns, cells, strict=True):
            if _is_number(cell):
                _add(said, name, cell)
    if said:
        return said
    return pairs(clean(" | ".join(cells)).text) if any(":" in cell or "=" in cell for cell in cells) else {}


def _is_number(cell: str) -> bool:
    return bool(re.fullmatch(_NUMBER, cell))


def lines_with(rows: Sequence[Row], *meant: str) -> Iterator[Row]:
    """The rows that have all of these."""
    return (row for row in rows if all(name in row.said for name in meant))
