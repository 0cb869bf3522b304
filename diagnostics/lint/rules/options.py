"""Rules about options: names and values that the run's release refuses, misspelt names, options outside the command.

The names come from the option index, or from the files of the project's own copy of the framework; types and choices
come from the API index. `is_skipped` and `refuse_value` also serve the comparison of two releases.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import replace

from diagnostics.api_index.options import choices, wanted_type
from diagnostics.api_index.query import Release
from diagnostics.findings import Severity
from diagnostics.fixes import join_some
from diagnostics.frameworks import DISPLAY_NAMES, parser_of
from diagnostics.lint import option_index
from diagnostics.lint.dialects import DIALECTS
from diagnostics.lint.rules.registry import Problem, rule
from diagnostics.lint.run_plan import RunPlan
from diagnostics.lint.values import TYPED_FILES, Value, format_value

CHECK = "options"
_MAX_SHOWN, _MAX_CHOICES = 4, 8
_UNSET = {"", "None", "none", "null"}


@rule("CFG113", check=CHECK, role="train")
def removed_options_are_not_used(plan: RunPlan) -> Iterator[Problem]:
    """The run sets no option that its release removed or does not have yet; the fix names the replacement."""
    for removed in DIALECTS[plan.framework].removed:
        value = plan.option(removed.option)
        if value is None or not plan.versions.within(plan.framework, removed.releases):
            continue
        release = plan.versions.known[plan.framework]
        skipped = is_skipped(plan, value)
        more = " In a config file TRL before 0.19 skips unknown keys." if skipped else ""
        yield Problem(
            f"{plan.framework} {release} has no option {removed.option}.{more}",
            [value],
            fix=removed.advice,
            severity=Severity.WARNING if skipped else Severity.ERROR,
        )


def is_skipped(plan: RunPlan, value: Value) -> bool:
    """Return whether the parser skips a value with an unknown key: TRL before 0.19 does so in a config file."""
    in_file = value.place.file.endswith((".yaml", ".yml"))
    return plan.framework == "trl" and in_file and plan.versions.within("trl", "<0.19") is True


@rule("CFG113", check=CHECK)
def options_exist_in_the_release(plan: RunPlan) -> Iterator[Problem]:
    """The run sets only options that its release has, because the framework's own parser refuses others."""
    release, name = plan.versions.known.get(plan.framework), plan.framework
    if not plan.settings.framework_parser:
        return
    if plan.own_copy:
        yield from _options_exist_in_the_copy(plan)
        return
    if release is None or not option_index.is_indexed_release(name, release):
        return
    names = option_index.option_names(name, plan.role)
    removed = {removal.option for removal in DIALECTS[name].removed}
    handled = removed | {value.key for value in option_index.unindexed_part(plan.settings, names)[1]}
    hydra = parser_of(name) == "hydra"
    unknown: dict[str, Value] = {}
    for value in option_index.options_to_check(plan.settings):
        if value.key in handled or is_skipped(plan, value):
            continue
        if option_index.lacks_option(name, value.key, release):
            first, last = option_index.release_span(name, value.key) or ("", "")
            unknown[f"{value.key} exists from {first} to {last}"] = value
        elif not option_index.accepts(value.key, names, nested=not hydra, abbreviated=not hydra):
            similar = _suggestion(value.key, names) if len(unknown) < _MAX_SHOWN else ""
            unknown[f"{value.key} in no release{similar}"] = value
    if not unknown:
        return
    fix = "Use the release's name, or leave it out."
    if name == "verl":
        added = " ".join(f"+{value.key}" for value in list(unknown.values())[:_MAX_SHOWN])
        fix = f"Use the release's key; {added} adds one that your code reads and the config lacks."
    yield _unknown_options(plan, f"{name} {release}", list(unknown), unknown.values(), fix)


@rule("CFG113", check=CHECK, frameworks=("trl", "ms-swift", "openrlhf", "verl", "vllm"))
def values_are_among_the_choices(plan: RunPlan) -> Iterator[Problem]:
    """Values have their option's type and are among its choices, because the framework refuses others.

    A script that trains with TRL passes its options to GRPOConfig. One that was not read may convert them first, so its
    options cause only a warning.
    """
    release, settings = plan.versions.known.get(plan.framework), plan.settings
    if release is None or plan.own_copy or not (settings.framework_parser or plan.framework == "trl"):
        return
    certain = settings.framework_parser or not settings.target or settings.script_options
    for value in option_index.options_to_check(settings):
        by_script = value.key in settings.script_options and not settings.framework_parser
        problem = None if by_script else refuse_value(Release(plan.framework, str(release)), value)
        if problem is not None:
            yield problem if certain else replace(problem, severity=Severity.WARNING)


@rule("CFG113", check=CHECK, frameworks=("trl",), role="train", warnings_only=True)
def options_are_spelt_as_in_trl(plan: RunPlan) -> Iterator[Problem]:
    """No option of a script or a YAML file is nearly one of TRL's, because it is then most likely misspelt."""
    similar = option_index.misspelt_options(plan.settings, plan.role) if not plan.own_copy else {}
    for value, name in similar.values():
        yield Problem(
            f"{value.key} is no option of TRL; {name} is.",
            [value],
            fix=f"Write {name}, if the script does not declare {value.key} itself.",
            severity=Severity.WARNING,
        )


def refuse_value(release: Release, value: Value) -> Problem | None:
    """Return the problem of a value that is not of its option's type or not among the choices; None if it is fine."""
    is_text = isinstance(value.data, str) or not value.place.file.endswith(TYPED_FILES)
    is_word, word = value.known and is_text and value.data != "", value.data
    if is_word and value.place.file.endswith(".py"):
        # Python converts no text, unless it is the default of an argument; any text has a truth value.
        is_word, word = not value.soft and wanted_type(release, value.key, "true") != "", "text"
    if is_word and (expected_type := wanted_type(release, value.key, word)):
        # Hydra accepts any text, and verl fails later.
        by_hydra = parser_of(release.package) == "hydra"
        verb = "expects no text" if by_hydra else "cannot read"
        return Problem(
            f"{release} {verb} {value.key}={format_value(value.data)}: the option takes {expected_type}.",
            [value],
            fix=f"Write {expected_type}{' without quotes' if word != value.data else ''}.",
            severity=Severity.WARNING if by_hydra else Severity.ERROR,
        )
    if isinstance(value.data, bool) or not isinstance(value.data, str | int | float):
        return None
    accepted = choices(release, value.key)
    if not accepted or str(value.data) in {*accepted, *_UNSET}:
        return None
    similar = difflib.get_close_matches(str(value.data), accepted, 1)
    listed = ", ".join(accepted[:_MAX_CHOICES]) + (", …" if len(accepted) > _MAX_CHOICES else "")
    return Problem(
        f"{release} refuses {value.key}={value.data}: the choices are {listed}.",
        [value],
        fix=f"Use {value.key}={similar[0]}." if similar else f"Use one of {listed}.",
    )


def _options_exist_in_the_copy(plan: RunPlan) -> Iterator[Problem]:
    """Yield a problem for options that the project's own copy of a framework does not have, by the copy's files."""
    folder = plan.versions.copies[plan.framework]
    names = option_index.copy_options(plan.settings, folder)
    unknown = option_index.refused_options(plan.settings, names) if names else []
    if unknown:
        described = [value.key + _suggestion(value.key, names) for value in unknown[:_MAX_SHOWN]]
        described += [value.key for value in unknown[_MAX_SHOWN:]]
        adds = f"; +{unknown[0].key} adds one that your code reads" if plan.framework == "verl" else ""
        copy = f"The project's own copy of {DISPLAY_NAMES[plan.framework]}, in {folder},"
        fix = f"Use a name that the copy has, or leave it out{adds}."
        yield _unknown_options(plan, copy, described, unknown, fix)


def _suggestion(key: str, names: Iterable[str]) -> str:
    similar = option_index.suggest(key, names)
    return f" (did you mean {similar}?)" if similar else ""


def _unknown_options(
    plan: RunPlan, program: str, described: list[str], values: Iterable[Value], fix: str
) -> Problem:
    """Return the problem of unknown options: an error, or a warning if ms-swift is configured to skip them."""
    option = plan.option("ignore_args_error")
    skips = option is not None and option.data is not False
    message = f"{program} {'skips' if skips else 'refuses'} unknown options: {join_some(described, _MAX_SHOWN, '; ')}."
    return Problem(message, values, fix=fix, severity=Severity.WARNING if skips else Severity.ERROR)


@rule("CFG121", check=CHECK)
def added_keys_are_new(plan: RunPlan) -> Iterator[Problem]:
    """A key with `+` is new: Hydra refuses it if the config of the project's own copy has the key with a value."""
    folder = plan.versions.copies.get(plan.framework, "")
    if not folder or not plan.settings.framework_parser or parser_of(plan.framework) != "hydra":
        return
    options = option_index.copy_options(plan.settings, folder)
    existing = [
        value for value in option_index.added_options(plan.settings) if _has_value(options.get(value.key))
    ]
    if existing:
        yield Problem(
            f"The config of the project's own copy of {DISPLAY_NAMES[plan.framework]}, in {folder}, already has "
            f"{join_some([value.key for value in existing], _MAX_SHOWN, '; ')}, and Hydra adds no existing key.",
            existing,
            fix=f"Write {existing[0].key} without the +, or with ++.",
        )


def _has_value(value: Value | None) -> bool:
    """Return whether a config certainly sets a value; a reference to another value may be null."""
    if value is None or not value.known or value.data is None:
        return False
    return value.data != "???" and "${" not in str(value.data)


@rule("CFG114", check=CHECK)
def command_receives_all_options(plan: RunPlan) -> Iterator[Problem]:
    """No option follows the end of the command, after a missing backslash, a comment or an empty line."""
    orphaned = plan.settings.orphaned
    if orphaned:
        yield Problem(
            f"The command ends before {orphaned[0].key}: the line before it does not end with a backslash, or a "
            "comment or an empty line stands between. The shell runs the rest as a separate command.",
            orphaned,
            fix="End each line except the last with a backslash, with nothing after it and no comment between.",
        )
