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
        plan, steps=tuple(_told(step, NOT_TRIED) if _installs(step) else step for step in plan.steps)
    )


def tried(plan: Plan, environment: Environment) -> Plan:
    """The plan after each of its installations was resolved; what has no solution is told and not offered."""
    return replace(
        plan,
        steps=tuple(_tried(step, environment) if _installs(step) else step for step in plan.steps),
    )


def _installs(step: Step) -> list[Install]:
    return [action for action in step.commands if isinstance(action, Install)]


def _told(step: Step, text: str) -> Step:
    return replace(step, text=(*step.text, Advice(text)))


def _tried(step: Step, environment: Environment) -> Step:
    for action in _installs(step):
        solved, why = resolved(action, environment)
        if solved is None:
            return _told(step, f"Not tried: {why}")
        if not solved:
            refused = replace(
                step, commands=tuple(one for one in step.commands if not isinstance(one, Install))
            )
            return _told(
                refused, f"Not offered: {', '.join(action.requirements)} has no solution here: {why}"
            )
    return _told(step, "Tried: it resolves for this environment's Python and platform, at the index in use.")


def resolved(action: Install, environment: Environment) -> tuple[bool | None, str]:
    """Whether an installation has a solution, and what was said; None where it could not be asked."""
    uv = shutil.which("uv")
    if uv is None:
        return None, "there is no uv to ask"
    command = [uv, "pip", "install", "--dry-run", "--no-progress", "--python", environment.prefix]
    try:
        done = subprocess.run(
            [*command, *action.requirements],
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
