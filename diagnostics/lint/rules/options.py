"""Rules about option names: options that the release does not have, and options that the command never receives."""

from __future__ import annotations

from collections.abc import Iterator

from diagnostics.findings import Severity
from diagnostics.frameworks import SHOWN, parser_of
from diagnostics.lint import option_index
from diagnostics.lint.dialects import DIALECTS
from diagnostics.lint.rules.registry import Problem, rule
from diagnostics.lint.run_plan import RunPlan
from diagnostics.lint.values import Value

CHECK = "options"
_MAX_SHOWN = 4


@rule("CFG113", check=CHECK, role="train")
def removed_options_are_not_used(plan: RunPlan) -> Iterator[Problem]:
    """Options that a release removed or does not have yet, with what to use instead."""
    for removed in DIALECTS[plan.framework].removed:
        value = plan.option(removed.option)
        if value is None or not plan.versions.within(plan.framework, removed.releases):
            continue
        release = plan.versions.known[plan.framework]
        skipped = _is_skipped(plan, value)
        more = " In a config file TRL before 0.19 skips unknown keys." if skipped else ""
        yield Problem(
            f"{plan.framework} {release} has no option {removed.option}.{more}", [value],
            fix=f"Use {removed.instead}." if removed.instead != "nothing" else "Leave it out.",
            severity=Severity.WARNING if skipped else Severity.ERROR,
        )  # fmt: skip


def _is_skipped(plan: RunPlan, value: Value) -> bool:
    """Return whether TRL's parser skips this unknown key: TRL before 0.19 skips unknown keys of a config file."""
    in_file = value.place.file.endswith((".yaml", ".yml"))
    return plan.framework == "trl" and in_file and plan.versions.within("trl", "<0.19") is True


@rule("CFG113", check=CHECK, frameworks=("openrlhf",))
def option_spelling_matches_release(plan: RunPlan) -> Iterator[Problem]:
    """OpenRLHF's options are dotted from 0.10.2 on, and flat before."""
    dotted_release = plan.versions.within("openrlhf", ">=0.10.2")
    if dotted_release is None:
        return
    for dotted, flat in DIALECTS["openrlhf"].flat_flags.items():
        wrong, right = (flat, dotted) if dotted_release else (dotted, flat)
        if wrong in plan.options:
            release = plan.versions.known["openrlhf"]
            yield Problem(
                f"OpenRLHF {release} has no option --{wrong}.", [plan.options[wrong]], fix=f"Use --{right}."
            )


@rule("CFG113", check=CHECK)
def options_exist_in_the_release(plan: RunPlan) -> Iterator[Problem]:
    """The framework's own parser refuses options that the release does not have."""
    release = plan.versions.known.get(plan.framework)
    if plan.own_copy:
        yield from _options_exist_in_the_copy(plan)
        return
    indexed = release is not None and option_index.is_indexed_release(plan.framework, release)
    if not plan.settings.framework_parser or release is None or not indexed:
        return
    names = option_index.option_names(plan.framework, plan.role)
    removed = {removal.option for removal in DIALECTS[plan.framework].removed}
    handled = removed | {value.key for value in option_index.unindexed_part(plan.settings, names)[1]}
    hydra = parser_of(plan.framework) == "hydra"
    described: list[str] = []
    unknown: list[Value] = []
    for value in option_index.set_options(plan.settings):
        if value.key in handled or _is_skipped(plan, value):
            continue
        if option_index.lacks_option(plan.framework, value.key, release):
            first, last = option_index.release_span(plan.framework, value.key) or ("", "")
            described.append(f"{value.key} exists from {first} to {last}")
        elif not option_index.accepts(value.key, names, nested=not hydra, abbreviated=not hydra):
            similar = option_index.suggest(value.key, names) if len(described) < _MAX_SHOWN else ""
            described.append(
                f"{value.key} in no release" + (f" (did you mean {similar}?)" if similar else "")
            )
        else:
            continue
        unknown.append(value)
    if not unknown:
        return
    fix = "Use the release's name, or leave it out."
    if plan.framework == "verl":
        added = " ".join(f"+{value.key}" for value in unknown[:_MAX_SHOWN])
        fix = f"Use the release's key; {added} adds one that your code reads and the config lacks."
    yield Problem(
        f"{plan.framework} {release} {_reaction(plan)} unknown options: {_shorten(described)}.", unknown, fix=fix,
        severity=_unknown_severity(plan),
    )  # fmt: skip


def _shorten(items: list[str]) -> str:
    more = f", and {len(items) - _MAX_SHOWN} more" if len(items) > _MAX_SHOWN else ""
    return "; ".join(items[:_MAX_SHOWN]) + more


def _skips_unknown(plan: RunPlan) -> bool:
    """Whether ms-swift was configured to skip unknown options with a line in its log."""
    option = plan.option("ignore_args_error")
    return option is not None and option.data is not False


def _reaction(plan: RunPlan) -> str:
    return "skips" if _skips_unknown(plan) else "refuses"


def _unknown_severity(plan: RunPlan) -> Severity:
    return Severity.WARNING if _skips_unknown(plan) else Severity.ERROR


def _options_exist_in_the_copy(plan: RunPlan) -> Iterator[Problem]:
    """Find options that a project's own copy of a framework does not have, by the copy's files."""
    folder = plan.versions.copies[plan.framework]
    names = option_index.copy_options(plan.settings, folder) if plan.settings.framework_parser else {}
    hydra = parser_of(plan.framework) == "hydra"
    unknown = [
        value
        for value in option_index.set_options(plan.settings)
        if names and not option_index.accepts(value.key, names, abbreviated=not hydra)
    ]
    if not unknown:
        return
    similar = [(value.key, option_index.suggest(value.key, names)) for value in unknown[:_MAX_SHOWN]]
    described = [key + (f" (did you mean {name}?)" if name else "") for key, name in similar]
    described += [""] * (len(unknown) - len(described))
    adds = f"; +{unknown[0].key} adds one that your code reads" if plan.framework == "verl" else ""
    yield Problem(
        f"The project's own copy of {SHOWN[plan.framework]}, in {folder}, {_reaction(plan)} unknown options: "
        f"{_shorten(described)}.",
        unknown, fix=f"Use a name that the copy has, or leave it out{adds}.", severity=_unknown_severity(plan),
    )  # fmt: skip


@rule("CFG121", check=CHECK)
def added_keys_are_new(plan: RunPlan) -> Iterator[Problem]:
    """Hydra refuses a `+` before a key that the config of a project's own copy has, with a value."""
    folder = plan.versions.copies.get(plan.framework, "")
    if not folder or not plan.settings.framework_parser or parser_of(plan.framework) != "hydra":
        return
    options = option_index.copy_options(plan.settings, folder)
    existing = [
        value for value in option_index.added_options(plan.settings) if _has_value(options.get(value.key))
    ]
    if existing:
        yield Problem(
            f"The config of the project's own copy of {SHOWN[plan.framework]}, in {folder}, already has "
            f"{_shorten([value.key for value in existing])}, and Hydra adds no existing key.",
            existing, fix=f"Write {existing[0].key} without the +, or with ++.",
        )  # fmt: skip


def _has_value(value: Value | None) -> bool:
    """Whether a config's value is one that `+` does not replace; a reference to another value may be null."""
    if value is None or not value.known or value.data is None:
        return False
    return value.data != "???" and "${" not in str(value.data)


@rule("CFG114", check=CHECK)
def command_receives_all_options(plan: RunPlan) -> Iterator[Problem]:
    """Options after the end of the command: a missing backslash, or a comment or empty line in between."""
    orphaned = plan.settings.orphaned
    if orphaned:
        yield Problem(
            f"The command ends before {orphaned[0].key}: the line before it does not end with a backslash, or a "
            "comment or an empty line stands between. The shell runs the rest as a command of its own.",
            orphaned, fix="End each line but the last with a backslash, with nothing after it and no comment between.",
        )  # fmt: skip
