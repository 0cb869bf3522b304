"""Steps outside the packages: this machine, its driver and limits, and environment variables."""

from __future__ import annotations

from textwrap import shorten
from typing import TYPE_CHECKING

from diagnostics.output.plans import Step
from diagnostics.output.remedies import Advice, Explain, Run, SetOption, SetVariables, Uninstall, Unset
from diagnostics.output.wording import one_line

if TYPE_CHECKING:
    from diagnostics.collect.environment import Environment
    from diagnostics.output.findings import Finding
    from diagnostics.output.remedies import Action

MOST_SEEN = 200
# Commands that change nothing.
_LOOKING = {"ps", "df", "du", "ls", "nvidia-smi", "free"}


def steps(found: list[Finding], environment: Environment) -> list[Step]:
    """One step for all variables to unset, one for each other finding."""
    unset = [finding for finding in found if _unset(finding)]
    rest = [finding for finding in found if finding not in unset]
    return [*([_variables(unset, environment)] if unset else []), *(map(_step, rest))]


def reasons(finding: Finding) -> list[str]:
    """Why, in a few lines: the detail, or where there is none the title, and what was seen."""
    return [f"{finding.code}: {one_line(finding.detail) or finding.title}", *_seen(finding)]


def _details(finding: Finding) -> list[str]:
    return [one_line(finding.detail)] if finding.detail.strip() else []


def _seen(finding: Finding) -> list[str]:
    return [
        shorten(f"{item.text} [{item.place}]", MOST_SEEN, placeholder=" …") for item in finding.evidence[:2]
    ]


def _unset(finding: Finding) -> list[str]:
    """The variables that a finding's remedy unsets, if that is all it does."""
    done = [action for action in _actions(finding) if not isinstance(action, Advice)]
    unset = [action for action in done if isinstance(action, Unset)]
    return [name for action in unset for name in action.names] if len(unset) == len(done) else []


def _actions(finding: Finding) -> tuple[Action, ...]:
    return finding.remedy.actions if finding.remedy else ()


def _variables(found: list[Finding], environment: Environment) -> Step:
    names = list(dict.fromkeys(name for finding in found for name in _unset(finding)))
    return Step(
        kind="variables",
        title=f"Unset {' and '.join(names)}",
        severity=max(finding.severity for finding in found),
        codes=tuple(dict.fromkeys(finding.code for finding in found)),
        why=tuple(
            line for finding in found for line in (f"{finding.code}: {finding.title}.", *_details(finding))
        ),
        known_by=_weakest(found),
        cost="none; also where a job script or a shell's start file sets it",
        undo=tuple(
            SetVariables(((name, environment.variables[name]),))
            for name in names
            if name in environment.variables
        ),
        commands=(Unset(tuple(names)),),
        text=tuple(action for finding in found for action in _actions(finding) if isinstance(action, Advice)),
    )


def _step(finding: Finding) -> Step:
    actions = _actions(finding)
    removes = any(isinstance(action, Uninstall) for action in actions)
    # Something that is only looked at has nothing to put back.
    commands = tuple(action for action in actions if not isinstance(action, Advice | SetOption | Explain))
    looks = all(isinstance(action, Run) and action.words[0] in _LOOKING for action in commands)
    kind = "system" if finding.code[:3] in {"ENV", "MEM", "NET"} else "configuration"
    return Step(
        kind="repair" if removes else kind,
        title=finding.title,
        severity=finding.severity,
        codes=(finding.code,),
        why=tuple(reasons(finding)),
        known_by=finding.known_by,
        cost="not known",
        undo=(Advice("put back what was there before"),) if not (commands and looks) else (),
        commands=commands,
        text=tuple(action for action in actions if isinstance(action, Advice | SetOption)),
    )


def _weakest(found: list[Finding]) -> str:
    order = ("declared", "static", "executed")
    return min((finding.known_by for finding in found), key=order.index)
