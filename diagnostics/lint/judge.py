"""`lint`: reads what it is given, makes plans of it, and asks every rule."""

from __future__ import annotations

import traceback
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from diagnostics.collect.secrets import cut
from diagnostics.lint import folders, known, project, reading, unjudged
from diagnostics.lint.dialects import DIALECTS
from diagnostics.lint.rules import RULES
from diagnostics.lint.sources.tree import UnreadableError
from diagnostics.lint.versions import PACKAGES
from diagnostics.output.findings import CheckResult, Report

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from diagnostics.lint.rules.registered import LintRule
    from diagnostics.lint.run_plan import RunPlan
    from diagnostics.lint.values import Settings
    from diagnostics.lint.versions import Versions
    from diagnostics.output.findings import Finding, NotJudged


def lint(
    paths: Iterable[Path], versions: Versions, *, framework: str = "", command: list[str] | None = None
) -> Report:
    """Judges files, or a command line, for the given releases."""
    made: list[RunPlan] = []
    unread: list[CheckResult] = []
    subject: list[dict[str, Any]] = []
    read: list[tuple[Path, list[Settings]]] = []
    for path in paths:
        if path.is_dir():
            read += folders.runs_in(path, framework) or [(path, [])]
            continue
        try:
            read.append((path, reading.read_file(path, framework)))
        except UnreadableError as error:
            unread.append(CheckResult(f"reading {path}", "crashed", str(error), reads=True))
    lend_processes([each for _path, found in read for each in found])
    for path, found in read:
        plans = plans_of(found, versions.beside(project.of(path.absolute().parent)) if found else versions)
        made += plans
        subject.append(_told(str(path), plans))
        if not plans and not any(each.framework == "accelerate" for each in found):
            why = _nothing_in(path)
            unread.append(CheckResult(f"reading {path}", "skipped", why, reads=True))
    if command:
        plans = plans_of(reading.read_command(command), versions)
        made += plans
        subject.append(_told("command line", plans))
        if not plans:
            unread.append(
                CheckResult(
                    "reading the command", "skipped", "it is no command of a known framework", reads=True
                )
            )
    return Report(
        tool="lint",
        subject={
            "files": subject,
            "packages": _packages(made, versions),
            "given": sorted(versions.given),
        },
        checks=(*unread, *judge(made, versions), *unjudged.of_reading(made)),
        notes=_notes(made),
    )


def _nothing_in(path: Path) -> str:
    """Why nothing in a file was judged, and where to look instead: a script gets its values from what starts it."""
    return ("it is empty" if _is_empty(path) else "no GRPO run, and no server for one, in it") + _started_by(
        path
    )


def _is_empty(path: Path) -> bool:
    return path.is_file() and not path.stat().st_size


def _started_by(path: Path) -> str:
    if path.suffix not in {".py", ".yaml", ".yml"} or not path.is_file():
        return ""
    from diagnostics.lint import nearby

    names = nearby.starters(path)
    more = f" and {len(names) - 2} more" if len(names) > 2 else ""
    return f"; lint what starts it: {', '.join(names[:2])}{more}" if names else ""


def lend_processes(found: list[Settings]) -> None:
    """Gives the processes of an accelerate file to the runs beside it that do not say theirs."""
    for file in (each for each in found if each.framework == "accelerate"):
        for run in found:
            for key, name in (("num_processes", "processes"), ("num_machines", "nodes")):
                if key in file.items and run.role == "train":
                    run.launch.setdefault(name, file.items[key])


def plans_of(found: Iterable[Settings], versions: Versions) -> list[RunPlan]:
    """The plans in what was read: of runs of GRPO, and of servers."""
    plans = [
        DIALECTS[settings.framework].plan(settings, versions)
        for settings in found
        if settings.framework in DIALECTS and DIALECTS[settings.framework].counts(settings)
    ]
    for plan in plans:
        plan.versions = versions
        name = plan.framework
        if plan.role == "train" and name not in {*versions.known, *versions.copies}:
            plan.versions = replace(versions, fitting={name: known.fitting(name, plan.settings)})
    return plans


def judge(plans: list[RunPlan], versions: Versions) -> list[CheckResult]:
    """Asks every rule; one that crashes is a result, not the end of the rest."""
    if not plans:
        return [CheckResult(name, "skipped", "nothing to judge") for name in RULES]
    return [_run(name, rules, plans, versions) for name, rules in RULES.items()]


def _run(name: str, rules: list[LintRule], plans: list[RunPlan], versions: Versions) -> CheckResult:
    findings: list[Finding] = []
    missed: list[NotJudged] = []
    for rule, what in ((each, what) for each in rules for what in ([plans] if each.together else plans)):
        try:
            findings += rule.judge(what, versions if isinstance(what, list) else what.versions)
            missed += unjudged.of_rule(what if isinstance(what, list) else [what], decides=not rule.warns)
        except Exception as error:  # noqa: BLE001 - a rule that crashes is a result
            frame = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{frame.filename.rpartition('/')[2]}:{frame.lineno}"
            return CheckResult(
                name, "crashed", f"{type(error).__name__}: {error} ({place}); please report it"
            )
    return CheckResult.of(name, findings, unjudged.sharpest(missed))


def _told(path: str, plans: list[RunPlan]) -> dict[str, Any]:
    return {
        "file": path,
        "plans": [
            {
                "framework": plan.framework,
                "role": plan.role,
                "place": str(plan.settings.place),
                "values": {
                    name: _plain(value.data) for name, value in sorted(plan.values.items()) if value.known
                },
                "unknown": sorted(name for name, value in plan.values.items() if not value.known),
            }
            for plan in plans
        ],
    }


def _packages(plans: list[RunPlan], versions: Versions) -> dict[str, str]:
    """The releases that every plan is judged for."""
    first, *others = [plan.versions for plan in plans] or [versions]
    return {
        name: str(release)
        for name, release in first.known.items()
        if all(each.known.get(name) == release for each in others)
    }


def _plain(data: Any) -> Any:
    return data if isinstance(data, str | int | float | bool | None) else cut(str(data), 200)


def _notes(plans: list[RunPlan]) -> tuple[str, ...]:
    notes = ["read, not run: what a script does at run time can differ"]
    # What is in no registry has no releases.
    own = {plan.framework for plan in plans if PACKAGES.get(plan.framework)}
    names = sorted(own | ({"vllm"} if plans else set()))
    missing = [
        name
        for name in names
        if any(name not in plan.versions.known for plan in plans if name in {plan.framework, "vllm"})
    ]
    if missing:
        notes.append(
            f"release not known, so what depends on it is a warning at the most: {', '.join(missing)}"
        )
    return (*notes, *dict.fromkeys(line for plan in plans for line in plan.versions.said))
