"""Whether what a plan installs can be had here: uv is asked for this environment's Python, and changes nothing."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING

from diagnostics.report.remedies import Advice, Install

if TYPE_CHECKING:
    from diagnostics.facts.environment import Environment
    from diagnostics.report.plans import Plan, Step

LIMIT_S = 120.0
NOT_TRIED = "Not tried: whether this can be had together here. --resolve asks the package index."
TRIED = "Tried: it resolves for this environment's Python and platform, at the index in use."
_NO_INDEX = (
    "error sending request",
    "Failed to fetch",
    "dns error",
    "offline",
    "network connectivity",
    "Could not connect",
)


def untried(plan: Plan) -> Plan:
    """The plan, in which every installation says that nobody tried it."""
    return replace(
        plan,
        steps=tuple(
            replace(step, text=(*step.text, Advice(NOT_TRIED))) if _installs(step) else step
            for step in plan.steps
        ),
    )


def tried(plan: Plan, environment: Environment) -> Plan:
    """The plan after each of its installations was resolved; what has no solution is told and not offered."""
    return replace(
        plan,
        steps=tuple(_tried(step, environment) if _installs(step) else step for step in plan.steps),
    )


def _installs(step: Step) -> list[Install]:
    """What a step would have installed, as a command or, among settings, as one way to avoid an issue."""
    return [action for action in (*step.commands, *step.text) if isinstance(action, Install)]


def _tried(step: Step, environment: Environment) -> Step:
    told = []
    for action in _installs(step):
        solved, why = resolved(action, environment)
        if solved:
            told.append(TRIED)
        elif solved is None:
            told.append(f"Not tried: {why}")
        else:
            step = replace(
                step,
                commands=tuple(one for one in step.commands if one is not action),
                text=tuple(one for one in step.text if one is not action),
            )
            told.append(f"Not offered: {', '.join(action.requirements)} has no solution here: {why}")
    return replace(step, text=(*step.text, *map(Advice, dict.fromkeys(told))))


def resolved(action: Install, environment: Environment) -> tuple[bool | None, str]:
    """Whether an installation has a solution, and what was said; None where it could not be asked."""
    uv = shutil.which("uv")
    if uv is None:
        return None, "there is no uv to ask"
    command = [uv, "pip", "install", "--dry-run", "--no-progress", "--python", environment.prefix]
    try:
        done = subprocess.run(
            [*command, *action.options, *action.requirements],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, type(error).__name__
    if done.returncode == 0:
        return True, ""
    said = " ".join(done.stderr.split())[:400]
    if "No solution found" in said and not any(text in said for text in _NO_INDEX):
        return False, said
    return None, said or f"uv ended with {done.returncode}"
