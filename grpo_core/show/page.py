"""A run as one page, run.html: what became of it, its curves, what the policy wrote, what was set.

It needs nothing from elsewhere and runs no script; it is made from the run's files, whole or cut off.
"""

from __future__ import annotations

import json
import re
from html import escape
from itertools import cycle, groupby, islice
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from grpo_core.config import Config
from grpo_core.show.metrics import EXPLAINED, mean, read_metrics
from grpo_core.show.picture import COLOURS, svg_chart

if TYPE_CHECKING:
    from collections.abc import Iterator

    Entry = dict[str, Any]
    Series = dict[str, list[tuple[float, float]]]

# A chart each, of all metrics of these names; what is looked for first stands first.
_CHARTS = (
    "(eval/)?reward/mean reward/.+/mean entropy importance_ratio/.+ logprob_difference/.+ time/.+_s loss grad_norm "
    "kl(/reward)? clip_ratio ratio/mean staleness/.+ (eval/)?completions/mean_length completions/truncated "
    "reward/zero_variance_groups resample/.+"
)
_PARTS = ("rollout", "reward", "train", "sync", "eval")
_LONG = 240


def write_page(folder: Path) -> Path:
    """Writes run.html into a run's folder, from what it has of config, summary, metrics and completions."""
    config, summary = _document(folder / "config.json"), _document(folder / "summary.json")
    history = read_metrics(folder / "metrics.jsonl")
    series: Series = {}
    for entry in history:
        for name, value in entry.items():
            if value is not None:
                series.setdefault(name, []).append((entry["step"], value))
    constant = [name for name, points in series.items() if len({value for _, value in points}) == 1]
    facts = {
        "name": folder.resolve().name,
        **_head(config, summary, history),
        **_answers(history),
        "constant": ", ".join(f"{name} {series[name][0][1]:g}" for name in constant) or "nothing",
    }
    blocks = {
        "curves": "\n".join(_charts(history, series, constant)),
        "completions": "\n".join(_completions(folder / "completions.jsonl")),
        "settings": "\n".join(_settings(config)),
    }
    template = Template(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))
    page = template.substitute({key: escape(str(fact)) for key, fact in facts.items()} | blocks)
    path = folder / "run.html"
    # A completion may hold half of a surrogate pair, which is no UTF-8.
    path.write_text(page, encoding="utf-8", errors="replace")
    return path


def _document(path: Path) -> Entry:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def _head(config: Entry, summary: Entry, history: list[Entry]) -> Entry:
    done, planned = len(history), config.get("train", {}).get("steps", 0)
    if summary.get("steps") != done:  # it is not of these metrics
        summary = {"outcome": "ok" if done >= planned > 0 else "unfinished"}
    return {
        "mode": "mode unknown",
        "engine": "unknown",
        **config.get("rollout", {}),
        **({"engine": summary["engine"]} if "engine" in summary else {}),
        "outcome": summary.get("outcome"),
        "error": summary.get("error") or "",
        "done": done,
        "planned": planned,
        "seconds": round(sum(entry["time/step_s"] for entry in history)),
        "model": config.get("model", {}).get("path") or "made for the run",
    }


def _answers(history: list[Entry]) -> dict[str, str]:
    """What a person looks for first, in numbers."""
    tenth = max(len(history) // 10, 1)
    first, last = (
        {
            name: mean([entry[name] for entry in some])
            for name in ("reward/mean", "entropy", "importance_ratio/mean")
        }
        for some in (history[:tenth], history[-tenth:])
    )
    fresh = [entry["logprob_difference/max"] for entry in history if entry["staleness/max"] == 0]
    later = history[1:] or history  # the first step waited for the engine's start
    spent = {name: mean([entry.get(f"time/{name}_s", 0.0) for entry in later]) for name in _PARTS}
    most, step_s = max(_PARTS, key=spent.__getitem__), mean([entry["time/step_s"] for entry in later])
    answers = {
        "reward": f"{first['reward/mean']:.3f} → {last['reward/mean']:.3f}",
        "entropy": f"{first['entropy']:.2f} → {last['entropy']:.2f}",
        "ratio": f"{last['importance_ratio/mean']:.4f}",
        "ratio_max": f"{max((entry['importance_ratio/max'] for entry in history), default=0.0):.4g}",
        "difference": f"{max(fresh):.1e}" if fresh else "?",
        "fresh": str(len(fresh)),
        "time": f"{most} {spent[most] / (step_s or 1.0):.0%}",
        "step_s": f"{step_s:.2f}",
    }
    return answers if history else dict.fromkeys(answers, "?")


def _charts(history: list[Entry], series: Series, constant: list[str]) -> Iterator[str]:
    deviation = [
        [(e["step"], e["reward/mean"] + sign * e["reward/std"]) for e in history] for sign in (1, -1)
    ]
    for pattern in _CHARTS.split():
        lines = {name: points for name, points in series.items() if re.fullmatch(pattern, name)}
        if all(name in constant for name in lines):
            continue
        if pattern.startswith("time") and len(history) > 1:  # the first step waited for the engine's start
            later = {name: [p for p in points if p[0] > history[0]["step"]] for name, points in lines.items()}
            lines = {name: points for name, points in later.items() if points}
        legend = ""
        for (name, points), colour in zip(lines.items(), cycle(COLOURS)):
            said = EXPLAINED.get(re.sub("^reward/.+/", "reward/<function>/", name), "")
            legend += (
                f'<p style="--colour: {colour}"><b>{escape(name)}</b> {points[-1][1]:.4g}. {escape(said)}</p>'
            )
        band = [*deviation[0], *reversed(deviation[1])] if "reward/mean" in lines else []
        yield f"<figure>{svg_chart(list(lines.values()), band)}<figcaption>{legend}</figcaption></figure>"


def _completions(path: Path) -> Iterator[str]:
    steps = sorted({step for step, _ in _lines(path)})
    wanted = {steps[0], steps[len(steps) // 2], steps[-1]} if steps else set()
    entries = (json.loads(line) for step, line in _lines(path) if step in wanted)
    for step, group in groupby(entries, key=lambda entry: entry["step"]):
        yield f"<h3>Step {step}</h3><table><tr><th>completion<th>reward<th>advantage<th>ended by"
        for prompt, samples in islice(groupby(group, key=lambda entry: entry["prompt"]), 2):
            yield f'<tr class="prompt"><td colspan="4">{_text(prompt)}'
            ranked = sorted(samples, key=lambda sample: -float(sample["reward"]))
            places = sorted({round(place * (len(ranked) - 1) / 5) for place in range(6)})
            for sample in (ranked[place] for place in places):
                yield f"<tr><td>{_text(sample['completion'])}<td>{sample['reward']:.3g}<td>{sample['advantage']:+.2f}"
                yield f"<td>{escape(sample['finish_reason'])}"
        yield "</table>"


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The whole lines, each with its step, which stands first in it; not parsed, for there may be very many."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for line in file:
            step = re.match(rb'\{"step": (\d+)', line)
            if step and line.endswith(b"\n"):
                yield int(step[1]), line


def _text(text: str) -> str:
    if len(text) <= _LONG:
        return f'<div class="text">{escape(text) or "<i>empty</i>"}</div>'
    return (
        f'<details class="text"><summary>{escape(text[:_LONG])} …</summary>{escape(text[_LONG:])}</details>'
    )


def _settings(config: Entry) -> Iterator[str]:
    defaults = json.loads(json.dumps(Config().as_dict()))
    for section, table in config.items():
        for key, value in table.items():
            default = defaults.get(section, {}).get(key)
            if value != default:
                cells = (f"{section}.{key}", json.dumps(value), json.dumps(default))
                yield "<tr>" + "".join(f"<td><code>{escape(cell)}</code>" for cell in cells)
