"""The commands that look at what was written down: `replay` at our own records, `check` at other trainers' dumps."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_core.config import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable


def replay_command(arguments: list[str], flags: set[str], answer: Callable[[str], None]) -> int:
    """`replay RUN STEP [--policy PATH] [--section.key VALUE ...]`; other settings are expected to differ."""
    from grpo_core.records.replay import replay

    if len(arguments) < 2 or not arguments[1].isdecimal():
        raise ConfigError(
            "command line: expected replay RUN STEP, a run's folder and a step that it recorded"
        )
    rest, policy = arguments[2:], None
    if "--policy" in rest:
        place = rest.index("--policy")
        policy = Path(rest[place + 1]) if place + 1 < len(rest) else None
        del rest[place : place + 2]
    document = replay(Path(arguments[0]), int(arguments[1]), policy, rest)
    _show(document, flags, answer)
    return 0 if rest or document["outcome"] == "equal" else 1


def check_command(arguments: list[str], flags: set[str], answer: Callable[[str], None]) -> int:
    """`check DUMP [--section.key VALUE ...]`: are the advantages those that the settings make of the rewards?"""
    from grpo_core.records.dumps import check_advantages, read_trl_completions, read_verl_dump
    from grpo_core.settings import load

    if not arguments or arguments[0].startswith("--"):
        raise ConfigError(
            "command line: expected check DUMP, a Parquet file of TRL's or JSON lines of verl's"
        )
    path, config = Path(arguments[0]), load(None, arguments[1:])
    weights = config.reward.weights or None
    names = config.reward.functions
    if weights and len(weights) != len(names):
        raise ConfigError(
            "reward.weights: name the dump's reward columns in reward.functions, in their order"
        )
    by_name = dict(zip(names, weights, strict=True)) if weights else None
    parquet = path.suffix == ".parquet" or any(path.glob("*.parquet"))
    steps = read_trl_completions(path, by_name) if parquet else read_verl_dump(path)
    found = [
        (step.step, finding)
        for step in steps
        for finding in check_advantages(step, config.loss, config.sampling.group_size)
    ]
    wrong = [finding for _, finding in found if finding.kind != "zero_variance"]
    if "--json" in flags:
        answer(json.dumps([{"step": step, **asdict(finding)} for step, finding in found]))
    else:
        for step, finding in found:
            where = f"step {step}, group {finding.group}, sample {finding.sample}"
            answer(f"{where}: {finding.kind}: found {finding.found}, expected {finding.expected}")
        answer(
            f"{len(steps)} steps read, {len(wrong)} findings, {len(found) - len(wrong)} groups without a signal"
        )
    return 1 if wrong else 0


def _show(document: dict[str, Any], flags: set[str], answer: Callable[[str], None]) -> None:
    text = json.dumps(document) if "--json" in flags else "\n".join(f"{k}: {v}" for k, v in document.items())
    answer(text)
