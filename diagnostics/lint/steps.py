"""Define the steps of `lint`: `read_inputs`, `make_plans`, `check_plans`, `build_report`; `run_lint` calls them.

A rule that crashes or a file that cannot be read becomes a result in the report, and does not end the command. Below a
folder, unreadable JSON and files of another syntax than their name's are only listed in a note.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from diagnostics.cpu_limit import CpuLimitError, cpu_limit
from diagnostics.findings import CheckResult, Finding, Report
from diagnostics.fixes import join_some
from diagnostics.lint import not_checked, option_index
from diagnostics.lint.derivation import make_plan
from diagnostics.lint.dialects import DIALECTS
from diagnostics.lint.project_files import lintable_files
from diagnostics.lint.project_requirements import PACKAGES, read_project, real_folder
from diagnostics.lint.readers.structured import InvalidSyntaxError, UnreadableError
from diagnostics.lint.rules import RULES
from diagnostics.lint.rules.finding_builder import to_finding
from diagnostics.lint.rules.registry import Rule
from diagnostics.lint.rules.servers import pair_with_trainers
from diagnostics.lint.run_plan import RunPlan
from diagnostics.lint.settings_reader import read_command_line, read_file, share_accelerate_config
from diagnostics.lint.values import Settings
from diagnostics.lint.versions import Versions
from diagnostics.output.redact import MASK, mask, name_below, truncate

COMMAND_LINE = "command line"
_MAX_NAMES = 6
# Limit of processor time for the checks, and for each run in addition; a real run needs a few milliseconds.
_CHECK_S, _CHECK_RUN_S = 10.0, 0.05


@dataclass
class Source:
    """A file or the command line, with its settings and run plans.

    Attributes:
        name: Path of the file, or `command line`.
        settings: Settings that were read.
        explicit: Whether the user named the file, rather than a folder that contains it.
        plans: Run plans that were made from the settings.
    """

    name: str
    settings: list[Settings]
    explicit: bool = True
    plans: list[RunPlan] = field(default_factory=list)


@dataclass
class LintRun:
    """The request of one `lint`, and the results so far.

    Attributes:
        paths: Files and folders to check.
        versions: Releases that were given or are installed.
        framework: Framework to assume, as in `read_file`; empty for none.
        command: Words of a command line to check; empty for none.
        sources: The files and the command line, with their settings and run plans.
        unread: Results for inputs that could not be read or have nothing to check.
        skipped_paths: Files and folders below a named folder that were not read.
    """

    paths: list[Path]
    versions: Versions
    framework: str = ""
    command: list[str] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)
    unread: list[CheckResult] = field(default_factory=list)
    skipped_paths: list[str] = field(default_factory=list)

    @property
    def plans(self) -> list[RunPlan]:
        """The run plans of all sources."""
        return [plan for source in self.sources for plan in source.plans]


def run_lint(run: LintRun) -> Report:
    """Read the inputs, check the rules on their run plans, and return the report.

    Raises:
        CpuLimitError: The run plans could not be made within the limit of processor time.
    """
    read_inputs(run)
    runs = sum(len(source.settings) for source in run.sources)
    with cpu_limit("checking the runs", _CHECK_S + _CHECK_RUN_S * runs):
        make_plans(run)
        checks = [*check_plans(run.plans), *not_checked.unread_inputs_check(run.plans)]
    return build_report(run, [*run.unread, *checks])


def read_inputs(run: LintRun) -> None:
    """Read the files, the files of folders, and the command line.

    A named accelerate config also sets the numbers of processes and nodes of the named trainers.
    """
    for path in run.paths:
        if path.is_dir():
            run.sources += _read_folder(path, run)
            continue
        try:
            run.sources.append(Source(str(path), read_file(path, run.framework)))
        except UnreadableError as error:
            name = "standard input" if path == Path("-") else str(path)
            run.unread.append(_unread_result(name, error))
    explicit = [settings for source in run.sources if source.explicit for settings in source.settings]
    for config in (settings for settings in explicit if settings.framework == "accelerate"):
        for trainer in explicit:
            if trainer.role == "train":
                share_accelerate_config(config.options, trainer)
    if run.command:
        try:
            run.sources.append(Source(COMMAND_LINE, read_command_line(run.command)))
        except UnreadableError as error:
            run.unread.append(_unread_result(COMMAND_LINE, error))


def _unread_result(name: str | Path, error: UnreadableError) -> CheckResult:
    return CheckResult(f"reading {name}", "crashed", str(error).removeprefix(f"{name}: "), reads=True)


def _read_folder(folder: Path, run: LintRun) -> list[Source]:
    """Read the runs below a folder, without files that are included by other files.

    A file of another syntax than its name's is skipped, and so is JSON that cannot be read for another reason. If there
    is no run, the result is one source for the folder, without settings.
    """
    sources = []
    try:
        for path in lintable_files(folder, run.skipped_paths):
            try:
                settings = read_file(path, run.framework)
            except UnreadableError as error:
                if isinstance(error, InvalidSyntaxError) or path.suffix == ".json":
                    run.skipped_paths.append(name_below(path, folder))
                else:
                    run.unread.append(_unread_result(path, error))
                continue
            if any(entry.framework in DIALECTS for entry in settings):
                sources.append(Source(str(path), settings, explicit=False))
    except UnreadableError as error:  # more files than the limit
        run.unread.append(_unread_result(folder, error))
    files = (file for source in sources for settings in source.settings for file in settings.files)
    included = set(map(os.path.realpath, files))
    separate = [source for source in sources if os.path.realpath(source.name) not in included]
    return separate or [Source(str(folder), [])]


def make_plans(run: LintRun) -> None:
    """Make the run plans of all sources, with the releases of each file's project."""
    for source in run.sources:
        versions = run.versions
        if source.settings and source.name != COMMAND_LINE:
            versions = versions.with_project(read_project(real_folder(source.name)))
        source.plans = plans_of(source.settings, versions)
        for plan in source.plans:
            plan.source, plan.explicit = source.name, source.explicit
        if not source.plans:
            run.unread.append(_nothing_to_check(source))


def plans_of(settings: Iterable[Settings], versions: Versions) -> list[RunPlan]:
    """Return the run plans of runs and servers; first complete abbreviated and misspelt options, in place."""
    runs = [entry for entry in settings if entry.framework in DIALECTS and _is_run(entry)]
    for entry in runs:
        option_index.expand_abbreviations(entry, versions.known.get(entry.framework))
        option_index.presume_misspelt(entry)
    return [make_plan(entry, versions) for entry in runs]


def _is_run(settings: Settings) -> bool:
    """Return whether settings configure a run or server, not another project's; set the role of another method."""
    kind = settings.options.get("rlhf_type")
    if settings.role == "train" and kind is not None and kind.known and kind.data != "grpo":
        settings.role = "other"
    dialect = DIALECTS[settings.framework]
    is_script = dialect.classes and settings.target
    if settings.framework_parser or settings.script_options or not is_script:
        return True
    # A script with a similar name is no run of the framework if more than half of its options are unknown to it.
    names = option_index.option_names(dialect.extends or settings.framework)
    refused = option_index.refused_options(settings, names)
    return len(refused) * 2 <= len(option_index.options_to_check(settings))


def _nothing_to_check(source: Source) -> CheckResult:
    """Return the result for a source with nothing to check, with a suggestion."""
    if source.name == COMMAND_LINE:
        reason = "it is no command of a known framework"
        return CheckResult("reading the command", "skipped", reason, reads=True)
    path = Path(source.name)
    reason = "no GRPO run and no rollout server found in it"
    if path.is_file() and not path.stat().st_size:
        reason = "it is empty"
    elif any(settings.framework == "accelerate" for settings in source.settings):
        reason = "an accelerate config without the script that it launches; lint the launch command"
    elif path.suffix in {".py", ".yaml", ".yml"} and path.is_file():
        reason += "; if a command or another script starts it, lint that one"
    return CheckResult(f"reading {source.name}", "skipped", reason, reads=True)


def check_plans(plans: list[RunPlan]) -> list[CheckResult]:
    """Check the rules on the plans and return one result for each group of rules."""
    if not plans:
        return [CheckResult(name, "skipped", "nothing to judge") for name in RULES]
    subjects: Mapping[str, Any] = {"run": [(plan,) for plan in plans], "pair": pair_with_trainers(plans)}
    return [_check_group(name, rules, subjects) for name, rules in RULES.items()]


def _check_group(
    name: str, rules: list[Rule], subjects: Mapping[str, Sequence[tuple[RunPlan, ...]]]
) -> CheckResult:
    """Return the result of a group of rules, with unknown values; a rule that raises makes it `crashed`.

    `subjects` has the plans to check by the rule's scope, each as a tuple.
    """
    if not any(rule.applies_to(plans[0]) for rule in rules for plans in subjects[rule.scope]):
        return CheckResult(name, "skipped", "none of its rules is for this kind of run")
    findings: list[Finding] = []
    unknowns = not_checked.unindexed_entries(name, (plan for (plan,) in subjects["run"]))
    for rule in rules:
        for plans in subjects[rule.scope]:
            try:
                findings += check_rule(rule, *plans)
            except (Exception, CpuLimitError) as error:  # noqa: BLE001 - a rule that crashes is a result
                return CheckResult.of_error(name, error)
            unknowns += not_checked.take_unknown_values(plans, decides=not rule.warnings_only)
    return CheckResult.of(name, merge_identical(findings), not_checked.merge_entries(unknowns))


def check_rule(rule: Rule, *subjects: RunPlan) -> list[Finding]:
    """Return the findings of one rule for a plan, or for a pair of plans (trainer and server)."""
    plan = subjects[0]
    findings = []
    for problem in rule.function(*subjects) if rule.applies_to(plan) else ():
        code = problem.code or rule.codes[0]
        if code != "CFG113" and any(value and _is_refused(plan, value.key) for value in problem.values):
            continue  # CFG113 reports the option
        if finding := to_finding(plan, code, problem):
            findings.append(finding)
            plan.reported.update(value.key for value in problem.values if value is not None)
    return findings


def _is_refused(plan: RunPlan, option: str) -> bool:
    """Return whether the framework's own parser refuses an option of the run, because its release lacks it."""
    name, release = plan.option_package, plan.versions.known.get(plan.option_package)
    parsed = plan.settings.framework_parser and not plan.own_copy and option in plan.settings.options
    return bool(release and parsed and option_index.lacks_option(name, option, release, plan.role))


def merge_identical(findings: Iterable[Finding]) -> list[Finding]:
    """Merge findings that differ only in location; the evidence lists every location."""
    groups: dict[tuple[Any, ...], list[Finding]] = {}
    for finding in findings:
        texts = tuple(item.text for item in finding.evidence)
        key = (finding.code, finding.severity, finding.certainty, finding.detail, texts)
        groups.setdefault(key, []).append(finding)
    merged = []
    for group in groups.values():
        evidence = dict.fromkeys(item for finding in group for item in finding.evidence)
        merged.append(replace(group[0], evidence=tuple(evidence)))
    return merged


def build_report(run: LintRun, checks: Iterable[CheckResult]) -> Report:
    """Return the report of these checks, with what was read."""
    all_versions = [plan.versions for plan in run.plans] or [run.versions]
    common = {
        name: str(release)
        for name, release in all_versions[0].known.items()
        if all(versions.known.get(name) == release for versions in all_versions)
    }
    return Report(
        tool="lint",
        subject={
            "files": [
                {"file": source.name, "plans": list(map(_describe, source.plans))} for source in run.sources
            ],
            "packages": common,
            "given": sorted(run.versions.user_packages),
        },
        checks=tuple(checks),
        notes=tuple(_notes(run)),
    )


def _jsonable(data: Any) -> Any:
    """Return a plain value as it is, a secret number masked, and any other as a text of at most 200 characters."""
    if isinstance(data, int | float) and len(str(data)) > 5 and mask(str(data)) != str(data):
        return MASK
    return data if isinstance(data, str | int | float | bool | None) else truncate(str(data), 200)


def _describe(plan: RunPlan) -> dict[str, Any]:
    """Return a run plan as data for the JSON report."""
    values = sorted(plan.values.items())
    return {
        "framework": plan.framework,
        "role": plan.role,
        "place": str(plan.settings.place),
        "values": {name: _jsonable(value.data) for name, value in values if value.known},
        "unknown": [name for name, value in values if not value.known],
    }


def _notes(run: LintRun) -> Iterator[str]:
    """Yield the notes of the report: what lint read, skipped paths, unknown releases and their sources."""
    plans = run.plans
    yield "lint read the files and ran nothing: a script can set other values at run time"
    if run.skipped_paths:
        yield f"not read below the folder: {join_some(sorted(run.skipped_paths), _MAX_NAMES)}"
    packages = ((name, plan) for plan in plans for name in (plan.framework, "vllm") if PACKAGES.get(name))
    unknown = sorted({name for name, plan in packages if name not in plan.versions.known})
    if unknown:
        yield f"release unknown, so findings that depend on it are at most warnings: {', '.join(unknown)}"
    yield from dict.fromkeys(line for plan in plans for line in plan.versions.sources)
