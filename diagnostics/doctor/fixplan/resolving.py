"""Whether what a plan installs can be had here: uv is asked for this environment's Python, and changes nothing."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING

from diagnostics.collect.secrets import cut
from diagnostics.output.remedies import Advice, Install, Unset

if TYPE_CHECKING:
    from diagnostics.collect.environment import Environment
    from diagnostics.output.plans import Plan, Step

LIMIT_S = 120.0
NOT_TRIED = "Not tried: whether this can be had together here. --resolve asks the package index."
TRIED = "Tried: it resolves for this environment's Python and platform, at the index that uv uses."
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
    steps: list[Step] = []
    for step in plan.steps:
        # What uv refuses in the environment as it is may be what an earlier step mends.
        mends = any(
            one.need != "consider" and not isinstance(action, Unset)
            for one in steps
            for action in one.commands
        )
        steps.append(_tried(step, environment, as_it_is=not mends) if _installs(step) else step)
    return replace(plan, steps=tuple(steps))


def _installs(step: Step) -> list[Install]:
    """What a step would have installed, as a command or, among settings, as one way to avoid an issue."""
    return [action for action in (*step.commands, *step.text) if isinstance(action, Install)]


def _tried(step: Step, environment: Environment, *, as_it_is: bool) -> Step:
    told = []
    for action in _installs(step):
        solved, why = resolved(action, environment, as_it_is=as_it_is)
        if solved:
            told.append(TRIED)
        elif solved is None:
            told.append(f"Not tried: {why}")
        else:
            left = tuple(one for one in step.commands if one is not action)
            step = replace(
                step,
                # What is written down before a change is of no use without one.
                commands=left if any(isinstance(one, Install) for one in left) else (),
                text=tuple(one for one in step.text if one is not action),
            )
            told.append(f"Not offered: {', '.join(action.requirements)} can't be had here: {why}")
    return replace(step, text=(*step.text, *map(Advice, dict.fromkeys(told))))


def resolved(action: Install, environment: Environment, *, as_it_is: bool = False) -> tuple[bool | None, str]:
    """Whether an installation has a solution, and what was said; None where it could not be asked.

    Args:
        action: The installation.
        environment: Where.
        as_it_is: Whether nothing changes the environment before; what uv refuses then, it refuses as a command, too.
    """
    uv = shutil.which("uv")
    if uv is None:
        return None, "there is no uv to ask"
    command = [uv, "pip", "install", "--dry-run", "--quiet", "--no-progress", "--python", environment.prefix]
    try:
        done = subprocess.run(
            [*command, *action.options, *action.requirements],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, type(error).__name__
    if done.returncode == 0:
        return True, ""
    said = cut(" ".join(done.stderr.split()), 400)
    decides = "No solution found" in said or (as_it_is and action.by[0] == "uv")
    if decides and not any(text in said for text in _NO_INDEX):
        return False, said
    return None, said or f"uv ended with {done.returncode}"
