"""Metrics that cannot be true together, and what curves show: symptoms last, with what the other answers exclude."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from diagnostics.audit.model import CLEAN, FAULT, NOT_ASKED, NOT_DECIDED, Fact, ProbeAnswer
from diagnostics.audit.recorded.questions import figures

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from diagnostics.audit.recorded.rows import Logged, Remains, Series

PROBE = "metrics"
_UPDATE = ("loss", "grad_norm", "kl", "entropy", "reward", "ratio", "probs_diff", "mismatch_kl", "reward_std")
_ENOUGH = 3
# Of the reference itself by another kernel in bfloat16, k3.
_KL_FLOOR, _KL_ALARM = 0.002, 0.01


def ask(remains: Remains) -> Iterator[ProbeAnswer]:
    """One answer for all metrics: the first contradiction of each kind."""
    if not remains.series:
        yield ProbeAnswer("metrics", NOT_ASKED, PROBE, wanted=(Fact("want_metrics"),))
        return
    found: dict[str, ProbeAnswer] = {}
    for series in remains.series:
        for asked in (_no_number, _reference, _all_cut, _no_spread, _no_gradient, _still, _unlike):
            answer = asked(series)
            if answer and answer.family not in found:
                found[answer.family] = answer
    yield from found.values()
    if not found:
        yield ProbeAnswer("metrics", CLEAN, PROBE, count=sum(len(series.rows) for series in remains.series))


def _with(series: Series, *names: str) -> list[Logged]:
    return [row for row in series.rows if all(name in row.values for name in names)]


def _fault(
    family: str, code: str, row: Logged, *names: str, count: int, more: dict[str, float] | None = None
) -> ProbeAnswer:
    values = {name: row.values[name] for name in names} | (more or {})
    facts = (
        Fact(
            "metric_line", {"told": ", ".join(f"{name} {row.values[name]:.4g}" for name in names)}, row.place
        ),
    )
    return ProbeAnswer(family, FAULT, PROBE, code, values, count=count, facts=facts)


def _no_number(series: Series) -> ProbeAnswer | None:
    """NaN in what an update rests on, and it stays."""
    for place, row in enumerate(series.rows):
        for name in _UPDATE:
            if name in row.values and not math.isfinite(row.values[name]):
                later = [one.values[name] for one in series.rows[place + 1 :] if name in one.values]
                if not any(map(math.isfinite, later)):
                    return _fault("metrics/nan", "NUM027", row, name, count=1 + len(later))
    return None


def _reference(series: Series) -> ProbeAnswer | None:
    """KL before the first update: the policy is its own reference there."""
    rows = _with(series, "kl")
    if not rows or rows[0].step is None or rows[0].step > 1:
        return None
    first = rows[0].values["kl"]
    if not math.isfinite(first) or abs(first) <= _KL_FLOOR:
        return None
    if abs(first) >= _KL_ALARM:
        return _fault("metrics/reference", "NUM045", rows[0], "kl", count=1)
    wanted = (Fact("want_dtype", {"floor": _KL_FLOOR, "alarm": _KL_ALARM}),)
    return ProbeAnswer(
        "metrics",
        NOT_DECIDED,
        PROBE,
        residual=abs(first),
        floor=_KL_FLOOR,
        alarm=_KL_ALARM,
        count=1,
        wanted=wanted,
    )


def _all_cut(series: Series) -> ProbeAnswer | None:
    """Every completion of every step ends at the limit."""
    rows = [row for row in _with(series, "capped") if 0 <= row.values["capped"] <= 1]
    if len(rows) < _ENOUGH or any(row.values["capped"] < 1 for row in rows):
        return None
    masked = any(
        value == 0
        for row in rows
        for name, value in row.said.items()
        if name.endswith("mean_terminated_length")
    )
    still = [row for row in _with(series, "loss") if row.values["loss"] == 0]
    return _fault(
        "metrics/all_cut", "CFG127", rows[0], "capped", count=len(rows),
        more={"nothing_ended": float(masked), "no_loss": float(len(still) == len(_with(series, "loss")))},
    )  # fmt: skip


def _no_spread(series: Series) -> ProbeAnswer | None:
    """No group of any step has rewards that differ."""
    rows = _with(series, "all_alike")
    if len(rows) < 2 * _ENOUGH or any(row.values["all_alike"] < 1 for row in rows):
        return None
    return _fault("metrics/no_spread", "REW004", rows[0], "all_alike", count=len(rows))


def _no_gradient(series: Series) -> ProbeAnswer | None:
    """Rewards differ, the learning rate is not 0, and no gradient comes of it, in any line."""
    rows = _with(series, "grad_norm", "reward_std")
    told = [row for row in rows if row.values["reward_std"] > 0]
    if len(told) < _ENOUGH or any(row.values["grad_norm"] != 0 for row in told):
        return None
    return _fault("metrics/no_gradient", "NUM046", told[0], "grad_norm", "reward_std", count=len(told))


def _still(series: Series) -> ProbeAnswer | None:
    """A learning rate of 0 in every line."""
    rows = _with(series, "lr")
    if len(rows) < _ENOUGH or any(row.values["lr"] != 0 for row in rows):
        return None
    return _fault("metrics/rate_zero", "CFG128", rows[0], "lr", count=len(rows))


def _unlike(series: Series) -> ProbeAnswer | None:
    """Trainer and engine disagree in the first lines already, far above what any precision does."""
    for name, alarm in (("probs_diff", 0.05), ("mismatch_kl", 0.1)):
        rows = _with(series, name)
        values = [abs(row.values[name]) for row in rows]
        if len(rows) >= _ENOUGH and figures.median(values) > alarm:
            facts = (Fact("metric_line", {"told": f"{name} {values[0]:.4g}"}, rows[0].place),)
            return ProbeAnswer(
                "metrics/unlike", NOT_DECIDED, PROBE, "NUM043", residual=figures.median(values), alarm=alarm,
                count=len(rows), facts=facts, wanted=(Fact("want_both_streams"), Fact("want_server")),
            )  # fmt: skip
    return None


def curves(remains: Remains, excluded: Sequence[str]) -> ProbeAnswer:
    """Symptoms: entropy that is gone, KL that blows up, length that runs to the limit, reward that stands still."""
    shown: list[Fact] = []
    for series in remains.series:
        shown += [fact for asked in (_collapsed, _blown_up, _longer) if (fact := asked(series))]
        if shown:
            break
    if not any(len(series.rows) >= 2 * _ENOUGH for series in remains.series):
        return ProbeAnswer("curves", NOT_ASKED, "curves", wanted=(Fact("want_metrics"),))
    values = {"excluded": ", ".join(excluded) or "nothing"}
    if shown:
        return ProbeAnswer(
            "curves", NOT_DECIDED, "curves", values=values, facts=(*shown, Fact("excluded", values)),
            wanted=(Fact("want_server"),),
        )  # fmt: skip
    return ProbeAnswer(
        "curves", CLEAN, "curves", values=values, count=max(len(s.rows) for s in remains.series)
    )


def _ends_of(series: Series, name: str) -> tuple[float, float, Logged] | None:
    rows = [row for row in _with(series, name) if math.isfinite(row.values[name])]
    if len(rows) < 8:
        return None
    part = max(2, len(rows) // 8)
    values = [row.values[name] for row in rows]
    return figures.median(values[:part]), figures.median(values[-part:]), rows[-1]


def _collapsed(series: Series) -> Fact | None:
    if (ends := _ends_of(series, "entropy")) and ends[0] > 0.01 and ends[1] < 0.05 * ends[0]:
        return Fact("curve", {"what": "entropy", "first": ends[0], "last": ends[1]}, ends[2].place)
    return None


def _blown_up(series: Series) -> Fact | None:
    if (ends := _ends_of(series, "kl")) and ends[1] > 1.0 and ends[1] > 20 * max(ends[0], 1e-3):
        return Fact("curve", {"what": "KL", "first": ends[0], "last": ends[1]}, ends[2].place)
    return None


def _longer(series: Series) -> Fact | None:
    ends, cut = _ends_of(series, "length"), _ends_of(series, "capped")
    if ends and cut and ends[1] > 3 * max(1.0, ends[0]) and cut[1] > 0.9 > cut[0]:
        return Fact("curve", {"what": "length", "first": ends[0], "last": ends[1]}, ends[2].place)
    return None
