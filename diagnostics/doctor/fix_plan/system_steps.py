"""Steps outside the packages: this machine, its driver and limits, and environment variables."""

from __future__ import annotations

from textwrap import shorten

from diagnostics.collect.packages import Environment
from diagnostics.doctor.fix_plan.model import Step
from diagnostics.findings import EVIDENCE_LEVELS, Finding
from diagnostics.fixes import (
    Action,
    Advice,
    Explain,
    Install,
    Run,
    SetOption,
    SetVariables,
    Uninstall,
    Unset,
    one_line,
)

_MAX_EVIDENCE = 200
# Commands that change nothing.
_READ_ONLY = {"ps", "df", "du", "ls", "nvidia-smi", "free", "ip", "taskset"}


def system_steps(found: list[Finding], environment: Environment) -> list[Step]:
    """Return one step for all variables to unset, and one for each other finding."""
    unset = [finding for finding in found if _variables_to_unset(finding)]
    rest = [finding for finding in found if finding not in unset]
    return [
        *([_unset_step(unset, environment)] if unset else []),
        *(_step(item, environment) for item in rest),
    ]


def reasons(finding: Finding) -> list[str]:
    """Return why a step is needed: the detail, or else the title, and the first evidence."""
    evidence = [
        shorten(f"{item.text} [{item.place}]", _MAX_EVIDENCE, placeholder=" …")
        for item in finding.evidence[:2]
    ]
    return [f"{finding.code}: {one_line(finding.detail) or finding.title}", *evidence]


def weakest_evidence(found: list[Finding]) -> str:
    """Return the weakest evidence level of some findings."""
    return min((finding.known_by for finding in found), key=list(EVIDENCE_LEVELS).index)


def _actions(finding: Finding) -> tuple[Action, ...]:
    return finding.remedy.actions if finding.remedy else ()


def _variables_to_unset(finding: Finding) -> list[str]:
    """Return the variables that a fix unsets, if it does nothing else."""
    actions = [action for action in _actions(finding) if not isinstance(action, Advice)]
    unset = [action for action in actions if isinstance(action, Unset)]
    return [name for action in unset for name in action.names] if len(unset) == len(actions) else []


def _restore_variables(names: list[str], environment: Environment) -> tuple[Action, ...]:
    """Return the commands that give variables their present values again."""
    values = environment.variables
    present = tuple(SetVariables(((name, values[name]),)) for name in names if name in values)
    absent = tuple(name for name in names if name not in values)
    return (*present, Unset(absent)) if absent else present


def _unset_step(found: list[Finding], environment: Environment) -> Step:
    names = list(dict.fromkeys(name for finding in found for name in _variables_to_unset(finding)))
    reason = []
    for finding in found:
        reason += [f"{finding.code}: {finding.title}.", *filter(None, [one_line(finding.detail)])]
    return Step(
        kind="variables", title=f"Unset {' and '.join(names)}", severity=max(item.severity for item in found),
        codes=tuple(dict.fromkeys(finding.code for finding in found)), why=tuple(reason),
        known_by=weakest_evidence(found), cost="none; also remove it from job scripts and shell start files",
        undo=_restore_variables([name for name in names if name in environment.variables], environment),
        commands=(Unset(tuple(names)),),
        text=tuple(action for finding in found for action in _actions(finding) if isinstance(action, Advice)),
    )  # fmt: skip


def _step(finding: Finding, environment: Environment) -> Step:
    actions = _actions(finding)
    removes = any(isinstance(action, Uninstall) for action in actions)
    kind = "system" if finding.code[:3] in {"ENV", "MEM", "NET"} else "configuration"
    commands = tuple(action for action in actions if not isinstance(action, Advice | SetOption | Explain))
    return Step(
        kind="repair" if removes else kind, title=finding.title, severity=finding.severity, codes=(finding.code,),
        why=tuple(reasons(finding)), known_by=finding.known_by, cost="unknown",
        undo=tuple(undo for action in commands for undo in _undo(action, environment)), commands=commands,
        text=tuple(action for action in actions if isinstance(action, Advice | SetOption)),
    )  # fmt: skip


def _undo(action: Action, environment: Environment) -> tuple[Action, ...]:
    """Return the commands that undo an action; none if it only reads, or if the recorded packages are restored."""
    if isinstance(action, SetVariables | Unset):
        names = list(action.names) if isinstance(action, Unset) else [name for name, _ in action.values]
        return _restore_variables(names, environment)
    if isinstance(action, Install | Uninstall):
        return ()
    if isinstance(action, Run) and "mv" in action.words[:2]:
        return (Run((*action.words[:-2], action.words[-1], action.words[-2])),)
    if isinstance(action, Run) and action.words[0] in _READ_ONLY:
        return ()
    return (Advice("restore the previous setting"),)
