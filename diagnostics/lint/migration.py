"""Compare a run's options in two releases of its framework, for `lint --from X==1 --to X==2`: the report and a patch.

Names, types and choices come from the API index, replacements of removed options from the dialects, and defaults from
both. `compare_releases` reports removed options, values that only the new release refuses, and values of a type that
the new release no longer declares. Of the options that the run plan or the loss uses, it also reports unset ones whose
known default differs or is gone. `make_patch` returns a diff with the certain edits; it writes no file.
"""

import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from difflib import unified_diff
from functools import cached_property
from io import StringIO
from pathlib import Path

from packaging.version import Version

from diagnostics import UserError, safe_io
from diagnostics.api_index.options import declared_default, declared_type
from diagnostics.api_index.query import Release, parse_release
from diagnostics.findings import CheckResult, Finding, NotChecked, Report, Severity
from diagnostics.frameworks import DISPLAY_NAMES, FRAMEWORKS, parser_of
from diagnostics.lint import option_index
from diagnostics.lint.derivation import make_plan
from diagnostics.lint.dialects import DIALECTS, Dialect
from diagnostics.lint.readers.structured import MAX_BYTES
from diagnostics.lint.rules.finding_builder import to_finding
from diagnostics.lint.rules.options import refuse_value
from diagnostics.lint.rules.registry import Problem
from diagnostics.lint.run_plan import RunPlan
from diagnostics.lint.steps import LintRun, build_report, plans_of, read_inputs
from diagnostics.lint.values import TYPED_FILES, Value, format_value, has_type
from diagnostics.lint.versions import Versions
from diagnostics.output.redact import mask
from diagnostics.output.sanitize import SanitizedStream
from diagnostics.versions import in_range

# Lines that contain only one option: of a shell command that goes on, of a call, or of a YAML file.
_ALONE = r"\s*(?:--{0}[= ][\w./:-]+\s+\\|{0}\s*=\s*(?:[\w.-]+|\"[^\"]*\"|'[^']*'),|{0}:\s+[\w./-]+)\s*"


@dataclass(frozen=True)
class RemovedOption:
    """An option that only the old release has.

    Attributes:
        value: The option and its value.
        problem: The problem to report.
        new_name: The new name; "" to delete the option; None if no edit is certain.
    """

    value: Value
    problem: Problem
    new_name: str | None


@dataclass(frozen=True)
class Migration:
    """A run, and two releases of its framework to compare."""

    plan: RunPlan
    old: Release
    new: Release

    @property
    def dialect(self) -> Dialect:
        """The framework's options."""
        return DIALECTS[self.new.package]

    @cached_property
    def old_options(self) -> frozenset[str]:
        """The options of the old release."""
        return option_index.exact_options(self.old.package, self.plan.role, self.old.version)

    @cached_property
    def new_options(self) -> frozenset[str]:
        """The options of the new release."""
        return option_index.exact_options(self.new.package, self.plan.role, self.new.version)

    def current_name(self, option: str) -> str:
        """Return the name of an option in the new release: a new name with the same meaning, else the old name."""
        removal = self.dialect.removal(option, self.new.version)
        return removal.renamed if removal and removal.renamed in self.new_options else option


def compare_releases(run: LintRun, from_text: str, to_text: str) -> tuple[Report, list[Migration]]:
    """Read the inputs of `run`, and return the report of a migration and the compared runs.

    `from_text` and `to_text` are releases, such as `trl==0.17` and `trl==1.16`.

    Raises:
        UserError: A text names no indexed release, or the texts name two packages.
    """
    indexed = filter(option_index.is_indexed, FRAMEWORKS)
    packages = [
        name for name in indexed if FRAMEWORKS[name].packages and not option_index.is_repository(name)
    ]
    old, new = parse_release(from_text, packages), parse_release(to_text, packages)
    if old.package != new.package:
        raise UserError(f"--from {old.package} --to {new.package}: expected two releases of one package")
    read_inputs(run)
    before, run.versions = (Versions({item.package: Version(item.version)}) for item in (old, new))
    checks, migrations = list(run.unread), []
    reason = f"no run of {DISPLAY_NAMES[new.package]} found in it"
    for source in run.sources:
        source.plans = [make_plan(plan.settings, run.versions) for plan in plans_of(source.settings, before)]
        known = (plan for plan in source.plans if plan.framework == new.package and plan.role != "other")
        compared = [Migration(plan, old, new) for plan in known]
        migrations += compared
        if not compared and source.explicit:
            checks.append(CheckResult(f"reading {source.name}", "skipped", reason, reads=True))
    if migrations:
        findings = [finding for item in migrations for finding in _find_changes(item)]
        unread = [entry for item in migrations for entry in _not_compared(item.plan)]
        checks.append(CheckResult.of("options of two releases", findings, unread))
    elif not checks:
        checks.append(CheckResult("reading the files", "skipped", reason, reads=True))
    report = build_report(run, checks)
    note = f"{old} compared with {new}; options that transformers has in any release are not compared"
    return replace(report, notes=(note, *report.notes[:1])), migrations


def _not_compared(plan: RunPlan) -> Iterator[NotChecked]:
    """Yield why a run's defaults cannot be compared: it sets options that cannot be read, or uses another config."""
    place = str(plan.settings.place)
    if plan.settings.has_unread_options or plan.needs_arguments:
        yield NotChecked("other options", "the run sets more than can be read", place=place)
    elif plan.option("--config-name", "--config-path", "model_engine", "megatron") is not None:
        yield NotChecked("defaults", "the run uses another config", place=place, decides=False)


def _find_changes(migration: Migration) -> Iterator[Finding]:
    """Yield the findings of a comparison; without the defaults if they cannot be compared."""
    problems = [removed.problem for removed in _removed_options(migration)]
    problems += _value_problems(migration)
    if not list(_not_compared(migration.plan)):
        problems += _default_problems(migration)
    for problem in problems:
        finding = to_finding(migration.plan, "CFG113", replace(problem, fix_is_complete=True))
        if finding is not None:
            yield replace(finding, title=problem.message, known_by="static")


def _removed_options(migration: Migration) -> Iterator[RemovedOption]:
    """Yield the options of a run that the old release has and the new release does not accept.

    Options of the user's script and of other packages, such as transformers, are left out.
    """
    settings, package = migration.plan.settings, migration.new.package
    for value in option_index.options_to_check(settings):
        key, renamed = value.key, migration.current_name(value.key)
        # argparse completes abbreviations, but only on a command line.
        abbreviated = parser_of(package) != "hydra" and not value.place.file.endswith(TYPED_FILES)
        accepted = option_index.accepts(key, migration.new_options, abbreviated=abbreviated)
        by_script = key in settings.script_options and not settings.framework_parser
        companions = FRAMEWORKS[package].option_packages
        by_other = by_script or any(option_index.release_span(name, key) for name in companions)
        if key not in migration.old_options or accepted or by_other:
            continue
        removal, effect, new_name = migration.dialect.removal(key, migration.new.version), "has it", None
        if removal is not None and in_range(migration.old.version, removal.ignored):
            effect, fix, new_name = "accepts it without effect", "Leave it out to keep the run as it is.", ""
        elif renamed != key:
            fix, new_name = f"Use {renamed}: it has the same meaning.", renamed
        elif removal is not None:
            fix = removal.advice
        else:
            similar = option_index.find_successors(key, migration.old_options, migration.new_options)
            listed = f"the nearest: {', '.join(similar)}" if similar else "no added option has a similar name"
            fix = f"Read the release notes: {listed}."
        message = f"{migration.new} has no option {key}; {migration.old} {effect}."
        # A script that parses its own options may have an option with this name.
        if not settings.framework_parser and not value.place.file.endswith(TYPED_FILES):
            new_name = None
        skipped = option_index.is_skipped(migration.plan, value) or migration.plan.enabled(
            "ignore_args_error"
        )
        severity = Severity.WARNING if skipped else Severity.ERROR
        yield RemovedOption(value, Problem(message, [value], fix=fix, severity=severity), new_name)


def _value_problems(migration: Migration) -> Iterator[Problem]:
    """Yield values that only the new release refuses, and values of a type that the new release no longer declares."""
    if migration.plan.role == "serve" and migration.new.package != "vllm":
        return  # the index has the choices and types of the trainer's class
    for value in option_index.options_to_check(migration.plan.settings):
        current = value.with_key(migration.current_name(value.key))
        refusal = refuse_value(migration.new, current)
        if refusal is not None and refuse_value(migration.old, value) is None:
            yield refusal
        old, new = declared_type(migration.old, value.key), declared_type(migration.new, current.key)
        if old and new and old != new and not has_type(value, new):
            before, after = (" or ".join(sorted(names)) for names in (old, new))
            message = f"{current.key} is of type {after} in {migration.new}, and {before} in {migration.old}."
            fix = f"Give it a value of type {after}."
            yield Problem(message, [value], fix=fix, severity=Severity.WARNING)


def _default_problems(migration: Migration) -> Iterator[Problem]:
    """Yield unset options of the run plan or the loss that have an effect, and whose default differs or is gone."""
    plan, dialect, releases = migration.plan, migration.dialect, (migration.old, migration.new)
    names = dialect.server_names if plan.role == "serve" else dialect.names
    for option in dict.fromkeys((*names, *(() if plan.role == "serve" else dialect.loss_options))):
        current = plan.values.get(names.get(option, ""))
        if plan.option(option) or (current and not current.soft) or not _has_effect(option, names, plan):
            continue
        former = option if option in migration.old_options else dialect.flat_flags.get(option, option)
        old, new = (
            declared_default(release, name)
            if (known := dialect.default(option, release.version)) is ...
            else known
            for release, name in zip(releases, (former, option), strict=True)
        )
        removal, before = dialect.removal(option, migration.new.version), format_value(old)
        # True may have become a name with the same meaning, such as "group" for TRL's scale_rewards.
        same = old == new or isinstance(old, bool) != isinstance(new, bool)
        is_gone = option in migration.old_options and option not in migration.new_options
        if is_gone and removal and not removal.renamed and old not in (..., None, False):
            message = f"{migration.old} uses {before}, and {migration.new} has no such option"
            fix = removal.advice.removeprefix("Leave it out: ").capitalize()
        elif option not in migration.new_options or same or None in (old, new) or ... in (old, new):
            continue  # if the default is null, the framework's code decides
        else:
            message = f"{migration.new} uses {format_value(new)}, and {migration.old} uses {before}"
            fix = f"Set {option} to {before} to keep the run as it is."
        value = Value(old if is_gone else new, plan.settings.place, option, soft=True)
        yield Problem(f"{option} is not set: {message}.", [value], fix=fix, severity=Severity.WARNING)


def _has_effect(option: str, names: dict[str, str], plan: RunPlan) -> bool:
    """Return whether an option has an effect in a run; only `vllm_` options of a trainer may have none."""
    if plan.role == "serve" or not option.startswith("vllm_"):
        return True
    mode = plan.values.get("rollout.mode")
    unused = "server." if mode is None or mode.data == "colocate" else "engine."
    return plan.enabled("use_vllm") is not None and not names.get(option, "").startswith(unused)


def make_patch(migrations: Iterable[Migration]) -> str:
    """Return a unified diff with the certain edits: new names with the same meaning, and options without effect.

    Left out are notebooks, files with invalid UTF-8, and diffs that would print a secret even without context. So are,
    with a message on standard error, files whose name a patch cannot contain, and diffs with characters that the output
    escapes.
    """
    originals: dict[str, list[str]] = {}
    edited: dict[str, list[str]] = {}
    for removed in (removed for migration in migrations for removed in _removed_options(migration)):
        file, number = removed.value.place.file, removed.value.place.line - 1
        if file not in originals:
            readable = Path(file).is_file() and not file.endswith(".ipynb")
            # It could end the header, and name another file. Patch tools skip a blank at the start.
            if not file.isprintable() or '"' in file or file != file.strip():
                reason = "a quote, a control character, or a blank at an end of the name"
                print(f"lint: no patch for {file!r}: {reason}", file=sys.stderr)
                readable = False
            text = safe_io.read_bytes(Path(file), MAX_BYTES).decode("utf-8", "replace") if readable else ""
            originals[file] = [] if "\ufffd" in text else re.findall(r"[^\n]*\n|[^\n]+", text)
            edited[file] = list(originals[file])
        if 0 <= number < len(edited[file]):
            edited[file][number] = _edit_line(edited[file][number], removed)
    return "".join(_unified_diff(file, originals[file], edited[file]) for file in sorted(originals))


def _edit_line(line: str, removed: RemovedOption) -> str:
    """Return a line after the edit of an option in it: "" to delete the line, the same text if no edit is certain."""
    spelled = re.escape(removed.value.key).replace("_", "[-_]")
    pattern = re.compile(rf"(?<![\w.-])((?:--)?){spelled}(?=\s*[=:]|\s)")
    if removed.new_name is None or len(pattern.findall(line)) != 1:
        return line
    if not removed.new_name:
        return "" if re.fullmatch(_ALONE.format(spelled), line) else line
    return pattern.sub(lambda match: f"{match[1]}{removed.new_name}", line)


def _unified_diff(file: str, before: list[str], after: list[str]) -> str:
    """Return the diff of a file. If it would print a secret, leave the context out; empty if it still would.

    `after` has one item for each line of `before`: the new line, or "" to delete it.
    """
    path = str(Path(file).relative_to(Path.cwd())) if Path(file).is_relative_to(Path.cwd()) else file
    changed = [number for number, line in enumerate(before) if line != after[number]]
    if not changed:
        return ""
    # As git does: without the tab, a patch tool ends the name at a blank.
    name = f"{path}\t" if " " in path else path
    # The lines around the changes; difflib compares lines, and takes long for a whole file.
    start, end = max(0, changed[0] - 3), changed[-1] + 4
    harmless = set(mask("".join([*before, *after])).split("\n"))
    for context in (3, 0):
        lines = [*unified_diff(before[start:end], [*filter(None, after[start:end])], name, name, n=context)]
        texts = {line[1:].rstrip("\n") for line in lines[2:] if line[0] != "@"}
        patch = "".join(_at_line(line, start) for line in lines)
        if texts <= harmless and mask(path) == path:
            SanitizedStream(printed := StringIO()).write(patch)
            if printed.getvalue() == patch:
                return patch
            print(f"lint: no patch for {file!r}: it has characters that the output escapes", file=sys.stderr)
            break
    return ""


def _at_line(line: str, start: int) -> str:
    """Return a line of a diff, with the numbers of a hunk moved by `start`, and a mark if its newline is missing."""
    if line.startswith("@@ "):
        return re.sub(r"(?<= [-+])\d+", lambda match: str(int(match[0]) + start), line)
    return line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
