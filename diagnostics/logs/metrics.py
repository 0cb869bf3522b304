"""Parse the metrics in log lines and tables, and map the names that frameworks print to canonical names.

`metric_rows` reads the beginning and the end of a log, `parse_metrics` one line. A printed 0.00 is a `RoundedZero`.
"""

import functools
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from diagnostics.frameworks import FRAMEWORKS
from diagnostics.logs.prefixes import parse_line

_NUMBER = r"[-+]?(?:\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+|nan|NaN|NAN|inf|Infinity)"
# A number, which may be inside `tensor(...)` or `np.float32(...)`.
_WRAPPED = rf"(?:(?:np|torch|numpy)?\.?(?:float\d*|tensor|int\d*)\()?(?P<value>{_NUMBER})(?![\w.])"
_NAME = r"[A-Za-z_][\w/@.-]{1,80}"
# Name of a metric in one framework's TOML file -> canonical name.
_FRAMEWORK_NAMES = {
    name: canonical for item in FRAMEWORKS.values() for name, canonical in item.metrics.items()
}
_TEXTS = msgspec.toml.decode(Path(__file__).with_suffix(".toml").read_bytes(), type=dict[str, dict[str, str]])
_PAIRS = [
    re.compile(text.replace("{VALUE}", _WRAPPED).replace("{NAME}", _NAME))
    for text in _TEXTS["pairs"].values()
]
_NAMES = {canonical: re.compile(pattern) for canonical, pattern in _TEXTS["names"].items()}
"""Canonical name -> pattern of the names that several frameworks share, in lower case."""
FUNCTION_METRIC = re.compile(r"(?:train/)?rewards/([^/]+)/(mean|std)")
"""The name of the mean or the spread of one reward function."""
# The step in verl's lines, and in dictionaries with `step` or `global_step`.
_STEP = re.compile(r"(?:^|[\s'\"(){,])(?:global_)?step['\"]?: ?([0-9]{1,9})(?![0-9.])")
_ROUNDED_ZERO = re.compile(r"-?0?\.0{2,}")
# A cheap first test: outside of tables, a line without any of these is skipped.
_METRIC_WORDS = re.compile(
    r"(?i)loss|steps_per_second|grad.{0,2}norm|reward|entropy|clip|ratio|prob.{0,4}diff|logp.{0,8}diff|prob_error|mismatch|truncat|length|\bkl\b"
)
# EasyR1's console prints a step as YAML: the line `Step 3`, then `actor:` and below it `  grad_norm: 0.5`.
_BLOCK_START = re.compile(r"Step (\d{1,9})")
_BLOCK_ENTRY = re.compile(r"( *)([\w/@.-]{1,80}):(?: (\S{1,40}))?")
_TABLE = re.compile(r"\s*\|?(?:[^|]+\|)+[^|]*$")
MAX_STEPS_PER_S = 100
"""Upper limit of real GRPO steps per second: no hardware samples and trains faster."""


class RoundedZero(float):
    """A number that was printed as 0 with at least two decimals; the real value may be small but not 0."""


def is_zero(value: float) -> bool:
    """Return whether a metric is exactly 0; False if it may have been rounded to 0 when it was printed.

    >>> is_zero(0.0), is_zero(RoundedZero(0))
    (True, False)
    """
    return value == 0 and not isinstance(value, RoundedZero)


@dataclass(frozen=True)
class MetricRow:
    """The metrics of one line of a log.

    Attributes:
        source: Name of the log.
        line: Number of the line.
        metrics: Canonical name -> (printed name, value).
        step: Training step; None if the line does not have it.
    """

    source: str
    line: int
    metrics: dict[str, tuple[str, float]]
    step: int | None = None

    def value(self, name: str) -> float | None:
        """Return the value of a metric, or None if the line does not have it."""
        return self.metrics[name][1] if name in self.metrics else None


class _Block(NamedTuple):
    """A step in EasyR1's console: its row, and the last key of each level with its indentation."""

    row: MetricRow
    keys: list[tuple[int, str]]


def _continue_block(block: _Block | None, raw: str, source: str, number: int) -> _Block | None:
    """Return the block that a line starts or continues; None for a line outside of a block."""
    if block is None and "Step " not in raw:
        return None
    text = parse_line(raw).text
    if start := _BLOCK_START.fullmatch(text):
        return _Block(MetricRow(source, number, {}, int(start[1])), [])
    entry = _BLOCK_ENTRY.fullmatch(text)
    if not block or not entry:
        return None
    indent, key, value = entry.groups("")
    block.keys[:] = [*(item for item in block.keys if item[0] < len(indent)), (len(indent), key)]
    if _is_number(value):
        _add_metric(block.row.metrics, "/".join(name for _, name in block.keys), value)
    return block


def metric_rows(
    source: str, lines: int, head: bytes, tail: bytes, *, max_rows: int = 10_000
) -> list[MetricRow]:
    """Return the metrics in the beginning and the end of a log, one row for each line with metrics.

    Args:
        source: Name of the log.
        lines: Number of lines of the whole log.
        head: First bytes of the log.
        tail: Last bytes of the log, which may overlap with `head`.
        max_rows: Maximum number of rows; later ones are left out.
    """
    parts = [(head, 1)]
    if tail and lines > head.count(b"\n") + 1:
        parts.append((tail, lines - tail.rstrip(b"\n").count(b"\n")))
    rows: list[MetricRow] = []
    for data, first in parts:
        columns: list[str] = []
        block: _Block | None = None
        for number, raw in enumerate(data.decode("utf-8", "replace").split("\n"), first):
            if rows and number <= rows[-1].line:
                continue
            if block := _continue_block(block, raw, source, number):
                is_new = block.row.metrics and block.row not in rows[-1:] and len(rows) < max_rows
                rows += [block.row] if is_new else []
                continue
            if "|" in raw and (cells := _cells(raw)):
                columns = _columns(cells) or columns
                metrics = _table_metrics(columns, cells)
            elif _METRIC_WORDS.search(raw):
                metrics = parse_metrics(parse_line(raw).text)
            else:
                continue
            if metrics and len(rows) < max_rows:
                step = _STEP.search(raw)
                rows.append(MetricRow(source, number, metrics, int(step[1]) if step else None))
    return rows


def flatten(values: Mapping[str, Any], prefix: str = "", depth: int = 4) -> Iterator[tuple[str, Any]]:
    """Yield the entries of nested metrics, as EasyR1 writes them, with names such as `actor/grad_norm`."""
    for name, value in values.items():
        if isinstance(value, dict) and depth:
            yield from flatten(value, f"{prefix}{name}/", depth - 1)
        else:
            yield f"{prefix}{name}", value


def parse_metrics(text: str) -> dict[str, tuple[str, float]]:
    """Return the metrics in a line by canonical name, as (printed name, value); only 20,000 characters are read.

    Example:
        >>> parse_metrics("step:4 - actor/grad_norm:0.5 - actor/entropy:nan")["grad_norm"]
        ('actor/grad_norm', 0.5)
    """
    metrics: dict[str, tuple[str, float]] = {}
    for pattern in _PAIRS:
        for match in pattern.finditer(text[:20_000]):
            _add_metric(metrics, match["name"].strip(), match["value"])
    return metrics


def _add_metric(metrics: dict[str, tuple[str, float]], name: str, value: str) -> None:
    """Add a metric with a canonical name, or of one reward function.

    The first value counts, unless a later one is NaN or the total reward.
    """
    canonical = name if FUNCTION_METRIC.fullmatch(name) else canonical_name(name)
    # The total of all reward functions comes before the value of one of them.
    known = metrics[canonical][0] if canonical in metrics else ""
    is_total = known.startswith("rewards/") and not name.startswith("rewards/")
    if canonical and (canonical not in metrics or is_total or math.isnan(float(value))):
        number = RoundedZero(value) if _ROUNDED_ZERO.fullmatch(value) else float(value)
        metrics[canonical] = (name, number)


@functools.lru_cache(4096)
def canonical_name(name: str) -> str:
    """Return the canonical name of a metric; empty if unknown.

    Of the names that begin with `eval`, `val` or `test`, only known names of evaluation rewards have one. The mean and
    the spread of one reward function have none.

    >>> canonical_name("train/reward"), canonical_name("eval_reward"), canonical_name("eval_loss")
    ('reward', 'eval_reward', '')
    """
    lowered = name.lower().strip()
    if FUNCTION_METRIC.fullmatch(lowered):
        return ""
    if lowered.startswith(("val", "eval", "test")):
        return "eval_reward" if _NAMES["eval_reward"].search(lowered) else ""
    parts = lowered.split("/")
    ends = ("/".join(parts[start:]) for start in range(len(parts)))
    known = next((_FRAMEWORK_NAMES[end] for end in ends if end in _FRAMEWORK_NAMES), "")
    return known or next((canonical for canonical, pattern in _NAMES.items() if pattern.search(lowered)), "")


def _cells(raw: str) -> list[str]:
    return [cell.strip() for cell in raw.strip().strip("|").split("|")] if _TABLE.match(raw) else []


def _columns(cells: list[str]) -> list[str]:
    """Return the cells of a line if they are the column names of a table, else an empty list."""
    known_names = sum(bool(canonical_name(cell)) for cell in cells)
    return cells if len(cells) > 2 and known_names >= 2 and not any(map(_is_number, cells)) else []


def _table_metrics(columns: list[str], cells: list[str]) -> dict[str, tuple[str, float]]:
    """Return the metrics of a table row by its columns, or else of its cells as text."""
    metrics: dict[str, tuple[str, float]] = {}
    if len(columns) == len(cells) and not any(bracket in "".join(cells) for bracket in "[]"):
        for name, cell in zip(columns, cells, strict=True):
            if _is_number(cell):
                _add_metric(metrics, name, cell)
    if metrics or not any(":" in cell or "=" in cell for cell in cells):
        return metrics
    return parse_metrics(parse_line(" | ".join(cells)).text)


def _is_number(cell: str) -> bool:
    return bool(re.fullmatch(_NUMBER, cell))
