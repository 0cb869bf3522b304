"""Rules about options: refused or misspelt names, refused values, options that have no effect.

The last rule finds options that follow the end of the command. The names come from the option index; types and choices
come from the API index. `refuse_value` also serves the comparison of two releases.
"""

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import replace

from packaging.version import Version

from diagnostics.api_index import options as index
from diagnostics.api_index import store
from diagnostics.api_index.packages import PACKAGES
from diagnostics.api_index.query import Release
from diagnostics.findings import Severity
from diagnostics.fixes import join_some
from diagnostics.frameworks import DISPLAY_NAMES, parser_of
from diagnostics.lint import option_index
from diagnostics.lint.derivation import conditions_hold, read_source
from diagnostics.lint.dialects import DIALECTS
from diagnostics.lint.rules.registry import INDEXED, Problem, rule
from diagnostics.lint.run_plan import RunPlan
from diagnostics.lint.values import TYPED_FILES, Value, format_value

CHECK = "options"
_MAX_SHOWN, _MAX_CHOICES, _MAX_CHECKED = 4, 8, 40
# Similarity from which a choice is named as the intended one, for `difflib`.
_SIMILARITY = 0.8
_UNSET = {"", "None", "none", "null"}


@rule("CFG113", check=CHECK, role="train")
def removed_options_are_not_used(plan: RunPlan) -> Iterator[Problem]:
    """The run sets no option that its release removed or does not have yet; the fix names the replacement, if any."""
    release = plan.versions.known.get(plan.framework)
    for option, value in plan.options.items() if release else ():
        removed = DIALECTS[plan.framework].removal(option, str(release))
        if removed is None or value.key != option:
            continue
        skipped = option_index.is_skipped(plan, value)
        more = " In a config file TRL before 0.19 skips unknown keys." if skipped else ""
        refused = plan.settings.framework_parser or value.place.file.endswith(".py")
        yield Problem(
            f"{plan.framework} {release} has no option {removed.option}.{more}",
            [value],
            fix=f"{removed.advice.removesuffix('.')}{'' if refused else f', unless your own code reads {option}'}.",
            severity=Severity.WARNING if skipped else Severity.ERROR,
        )


@rule("CFG113", check=CHECK, role="any")
def options_exist_in_the_release(plan: RunPlan) -> Iterator[Problem]:
    """The run sets only options that its release has, because the framework's own parser refuses others."""
    name, settings = plan.option_package, plan.settings
    release = option_index.known_release(plan)
    if not settings.framework_parser:
        return
    program, indexed, names = f"{name} {release}" if release else DISPLAY_NAMES[name], None, frozenset[str]()
    repository = option_index.is_repository(name)
    if plan.own_copy and not repository:
        return
    if settings.command and release:
        program = f"{settings.command} of {program}" if settings.target == settings.command else program
        names = index.command_options(plan.release_of(release))
    elif repository or option_index.is_indexed_release(name, release):
        names = option_index.option_names(name, plan.role) | option_index.experimental_options(plan)
        if release and repository:
            open_in_some = {option for option in names if option.endswith(".*")}
            names -= open_in_some - option_index.open_tables(name, str(release))
        indexed = release
    unknown = _unknown_to_release(plan, names, indexed) if names else {}
    # Several unknown options of one section are probably those of a release that the index lacks.
    sections = {value.key.rpartition(".")[0] for value, _ in unknown.values()}
    other_release = repository and not release and len(unknown) > max(2, len(sections))
    for clause, (value, similar) in unknown.items():
        if similar and not other_release:
            fix = f"Write {similar} in place of {value.key}."
            yield _unknown_options(plan, program, [clause], [value], fix)
    if rest := {key: value for key, (value, similar) in unknown.items() if other_release or not similar}:
        keys = [value.key for value in rest.values()]
        # Several options that no release has are probably those of a fork, whose own config has them.
        is_fork = parser_of(name) == "hydra" and len({*keys} - names) > 1
        hint = f", or write +{keys[0]} if your own code reads it" if name == "verl" else ""
        hint = ". The run is probably for another release that has them" if other_release else hint
        hint = f", unless this run is of a fork of {DISPLAY_NAMES[name]} that has them" if is_fork else hint
        fix = f"Leave {join_some(keys, _MAX_SHOWN)} out{hint}."
        problem = _unknown_options(plan, program, list(rest), rest.values(), fix)
        yield replace(problem, applies=None) if other_release or is_fork else problem


def _unknown_to_release(
    plan: RunPlan, names: frozenset[str], release: Version | None
) -> dict[str, tuple[Value, str]]:
    """Return the options of a run that a parser refuses: description -> value and the option to use or "".

    Args:
        plan: The run plan.
        names: The options of the parser; those of any release if `release` is given.
        release: The release of the parser; None if only `names` decide.
    """
    name, settings = plan.option_package, plan.settings
    skipped = settings.script_options.union(DIALECTS[plan.framework].unindexed_options)
    skipped |= option_index.experimental_options(plan)
    skipped |= {value.key for value in option_index.unindexed_part(settings, names)[1]}
    refused = {value.key for value in option_index.refused_options(settings, names, nested=True)}
    unknown: dict[str, tuple[Value, str]] = {}
    for value in option_index.options_to_check(settings):
        removed = release is not None and DIALECTS[name].removal(value.key, str(release))
        if value.key in skipped or removed or option_index.is_skipped(plan, value):
            continue
        passed = DIALECTS[name].unknown_options == "passed"
        if release and not passed and option_index.lacks_option(name, value.key, release, plan.role):
            clause, similar = option_index.missing_option(name, plan.role, value.key, release)
            unknown[clause] = value, similar
        elif value.key in refused:
            similar = option_index.suggest(value.key, names) if len(unknown) < _MAX_CHECKED else ""
            lacks_similar = release and option_index.lacks_option(name, similar, release, plan.role)
            if not similar or (lacks_similar and not passed):
                equivalent = option_index.equivalent_option(plan, value.key, release)
                similar = equivalent if equivalent in names else ""
            if not option_index.may_be_added(plan, value.key, similar):
                unknown[f"{value.key} (did you mean {similar}?)" if similar else value.key] = value, similar
    return unknown


@rule("CFG113", check=CHECK, frameworks=INDEXED, role="any")
def values_have_the_type_and_choices_of_the_option(plan: RunPlan) -> Iterator[Problem]:
    """Values have their option's type and are among its choices, because the framework refuses others.

    A script that trains with TRL passes its options to GRPOConfig. One that was not read may convert them first, so its
    options cause only a warning.
    """
    name, settings = plan.option_package, plan.settings
    release, repository = option_index.known_release(plan), option_index.is_repository(name)
    if not repository and (plan.own_copy or release is None):
        return
    if not settings.framework_parser and name not in {"trl", "verl"}:
        return
    certain = settings.framework_parser or not settings.target or bool(settings.script_options)
    certain &= DIALECTS[name].checks_types
    oldest, remark = next(map(Version, store.load_options(name).releases), None), ""
    if release is not None and oldest is not None and release < oldest:
        release, certain = oldest, False
        remark = f" No older release than {oldest} is in the index."
    package = PACKAGES.get(name)
    registries = package.registries if package and plan.option(*package.registry_plugins) else {}
    # Without a release, each one must refuse the value.
    checked = plan.release_of(release)
    others = [] if release else [plan.release_of(other) for other in store.load_options(name).releases[:-1]]
    for value in option_index.options_to_check(settings):
        by_script = (value.key in settings.script_options and name == "trl") or value.key in registries
        problem = None if by_script else refuse_value(checked, value)
        if problem is None or any(
            index.is_declared(other, value.key) and refuse_value(other, value) is None for other in others
        ):
            continue
        if release is None:
            problem = replace(problem, message=problem.message.replace(str(checked), DISPLAY_NAMES[name], 1))
        message = problem.message + remark
        yield problem if certain else replace(problem, message=message, severity=Severity.WARNING)


@rule("CFG113", check=CHECK, frameworks=("trl", "verl"), role="train", warnings_only=True)
def options_are_those_of_the_framework(plan: RunPlan) -> Iterator[Problem]:
    """No option of a script or config is one that the release lacks, one of another framework, or a misspelt one."""
    release = plan.versions.known.get(plan.framework)
    for value, clause, name in option_index.doubtful_options(plan).values():
        if release and DIALECTS[plan.framework].removal(value.key, str(release)):
            continue  # another rule reports it
        more = " In a config file TRL before 0.19 skips unknown keys."
        yield Problem(
            f"{clause}.{more if option_index.is_skipped(plan, value) else ''}",
            [value],
            fix=f"{f'Write {name}' if name else 'Leave it out'}, unless your own code reads {value.key}.",
            severity=Severity.WARNING,
        )


@rule("CFG111", "CFG107", check=CHECK, role="any", warnings_only=True)
def options_have_an_effect(plan: RunPlan) -> Iterator[Problem]:
    """The run sets no option without effect, such as one that needs a local engine, or another option that is off."""
    incomplete = plan.settings.has_unread_options or plan.needs_arguments
    reported: set[str] = set()
    for entry in DIALECTS[plan.framework].ineffective:
        in_range = plan.versions.within(plan.option_package, entry.versions)
        # Without a release, only an entry with a condition of its own is reported.
        surely = option_index.surely_within(plan, plan.option_package, entry.versions)
        if in_range is False or (entry.needs and not surely):
            continue
        if (entry.needs and not _lacks_needed(plan, entry.needs)) or not conditions_hold(plan, entry.when):
            continue
        needed, _, values = entry.needs.partition("=")
        causes = [value for source in entry.when if (value := read_source(plan, source))]
        causes += filter(None, [plan.option(*needed.split("|"))])
        # A value of another file, such as a base config, may serve other runs.
        files = {value.place.file for value in causes if not value.soft}
        if incomplete and not files:
            continue  # something that was not read may set the other option
        ignored = {
            key: value
            for key, value in plan.options.items()
            if any(key == name or (name[-1] == "*" and key.startswith(name[:-1])) for name in entry.options)
            and value.known
            and value.data not in (None, False, "", *entry.values)
            and not (value.data in entry.copied and value.place.file.endswith(TYPED_FILES))
            and (not files or value.place.file in files)
            and key not in reported
        }
        reported |= ignored.keys()
        if ignored:
            names = join_some(list(ignored), _MAX_SHOWN)
            needed = next((name for name in needed.split("|") if name in plan.options), needed.split("|")[-1])
            state = f"is not {values.replace('/', ' or ')}" if values else "is off"
            reason = entry.reason or f"{needed} {state if needed in plan.options else 'is not set'}"
            change = f"Set {needed} to {values.replace('/', ' or ')}" if values else f"Turn {needed} on"
            yield Problem(
                f"{reason}, so {names} {'has' if len(ignored) == 1 else 'have'} no effect.",
                [*ignored.values(), *causes],
                fix=entry.fix.replace("{names}", names) or f"{change}, or leave {names} out.",
                severity=Severity.WARNING,
                code=entry.code,
                fix_is_complete=True,
            )


@rule("CFG111", check=CHECK, role="any")
def keys_of_files_are_unique(plan: RunPlan) -> Iterator[Problem]:
    """A YAML or JSON table has no key twice with different values: only the last counts, and OmegaConf refuses it."""
    package = plan.option_package
    by_omegaconf = parser_of(package) in {"hydra", "omegaconf"} or package == "ms-swift"
    for value in plan.options.values():
        if value.replaced is None:
            continue
        first, refused = (
            value.replaced.with_key(value.key),
            by_omegaconf and value.place.file.endswith((".yaml", ".yml")),
        )
        effect = "OmegaConf refuses the file" if refused else f"{format_value(first.shown)} has no effect"
        yield Problem(
            f"{value.key} is twice in the same table: {effect}.",
            [first, value],
            fix=f"Remove one of the two {value.key}.",
            severity=Severity.ERROR if refused else Severity.WARNING,
            fix_is_complete=True,
        )


@rule("CFG111", check=CHECK, role="any", warnings_only=True)
def options_are_given_once(plan: RunPlan) -> Iterator[Problem]:
    """A command gives no option twice with different values, because only the last one counts."""
    names = option_index.option_names(plan.option_package, plan.role)
    # The scripts of slime set defaults for the model first.
    has_defaults = DIALECTS[plan.option_package].unknown_options == "passed"
    for value in () if has_defaults else plan.settings.repeated:
        last = plan.options.get(value.key)
        if last is None or value.key not in names or isinstance(value.data, list):
            continue
        yield Problem(
            f"{value.key} is given twice: {format_value(value.shown)} has no effect, because the last value, "
            f"{format_value(last.shown)}, replaces it.",
            [value, last],
            fix=f"Remove one of the two {value.key}.",
            severity=Severity.WARNING,
            fix_is_complete=True,
        )


def _lacks_needed(plan: RunPlan, needs: str) -> bool:
    """Return whether a run certainly lacks an option that others need, or another value of it."""
    names, _, values = needs.partition("=")
    value = plan.option(*names.split("|"))
    if value is None:
        # In a config or a class of the user's own, an option may have another default.
        settings, dialect = plan.settings, DIALECTS[plan.framework]
        user_defaults = parser_of(plan.framework) == "hydra" or settings.target in dialect.classes
        own_default = (user_defaults and not settings.framework_parser) or settings.script_options & {
            *names.split("|")
        }
        return not own_default and plan.disabled(*names.split("|"))
    if not value.known or value.outside:
        return False  # a script may support both
    return str(value.data) not in values.split("/") if values else value.data in (None, False, "")


def refuse_value(release: Release, value: Value) -> Problem | None:
    """Return the problem of a value that is not of its option's type or not among the choices; None if it is fine."""
    is_text = isinstance(value.data, str) or not value.place.file.endswith(TYPED_FILES)
    is_word, word = value.known and is_text and value.data != "", value.data
    # YAML and pydantic take null for an option that is not set.
    is_word &= word not in (None, "None") or parser_of(release.package) in {"argparse", "dataclasses"}
    if is_word and value.place.file.endswith(".py"):
        # Python converts no text, unless it is the default of an argument; any text has a truth value.
        is_word, word = not value.soft and index.wanted_type(release, value.key, "true") != "", "text"
    if is_word and (expected_type := index.wanted_type(release, value.key, word)):
        # Hydra accepts any text, and verl fails later; a number with a unit, such as 2k, fails in each case.
        doubtful = parser_of(release.package) == "hydra" and not str(word)[:1].isdecimal()
        return Problem(
            f"{release} takes {expected_type} for {value.key}, not {format_value(value.shown)!r}.",
            [value],
            fix=f"Write {expected_type}{' without quotes' if word != value.data else ''}.",
            severity=Severity.WARNING if doubtful else Severity.ERROR,
        )
    words = value.data if isinstance(value.data, list) else [value.data]
    accepted = index.choices(release, value.key)
    # The code may compare with the default before it looks a name up, as verl does with `vanilla`.
    fine = {*accepted, *_UNSET, str(index.declared_default(release, value.key))}
    refused = [str(word) for word in words if type(word) in {str, int, float} and str(word) not in fine]
    if not accepted or not refused:
        return None
    similar = difflib.get_close_matches(refused[0], accepted, 1, _SIMILARITY)
    # A word with two letters exchanged, such as gpso for gspo, may be less similar.
    similar = similar or [choice for choice in accepted if sorted(choice) == sorted(refused[0])]
    listed = ", ".join(accepted[:_MAX_CHOICES]) + (", …" if len(accepted) > _MAX_CHOICES else "")
    # Own code can register more names for verl; it is no misspelt one.
    by_name = index.registered_names(release, value.key)
    may_exist = by_name and not similar and parser_of(release.package) == "hydra"
    return Problem(
        f"{release} refuses {value.key}={refused[0]}: the choices are {listed}.",
        [value],
        fix=f"Use {value.key}={similar[0]}." if similar else f"Use one of {listed}.",
        severity=Severity.WARNING if may_exist else Severity.ERROR,
    )


def _unknown_options(
    plan: RunPlan, program: str, described: list[str], values: Iterable[Value], fix: str
) -> Problem:
    """Return the problem of unknown options: an error, or a warning if the parser does not refuse them."""
    option = plan.option("ignore_args_error")
    skips = option is not None and option.data is not False
    message = f"{program} has no option {join_some(described, _MAX_SHOWN, '; no option ')}."
    message += " With ignore_args_error it skips unknown options." if skips else ""
    effect = DIALECTS[plan.option_package].unknown_options
    message += " It skips unknown options." if effect == "skipped" else ""
    # The environment may change the value of an option, and not its name.
    forwarded = plan.settings.forwarded
    values = [replace(forwarded.get(value.key, value), outside=False) for value in values]
    return Problem(
        message,
        values,
        fix=fix,
        severity=Severity.WARNING if skips or effect in {"skipped", "passed"} else Severity.ERROR,
    )


@rule("CFG114", check=CHECK, role="any")
def assignments_have_no_blanks(plan: RunPlan) -> Iterator[Problem]:
    """No assignment of the script or override has a blank beside `=`, because it becomes several words."""
    for value in plan.settings.split:
        yield Problem(
            f"{value.key} is not set: a blank beside its = makes several words of it.",
            [value],
            fix=f"Write {value.key}={format_value(value.data)} without blanks.",
            fix_is_complete=True,
        )


@rule("CFG114", check=CHECK, role="any", warnings_only=True)
def variables_reach_the_command(plan: RunPlan) -> Iterator[Problem]:
    """The script exports the variables that it assigns for the command, or writes them before it on the same line."""
    for value in plan.settings.unexported:
        yield Problem(
            f"{value.key} is assigned on a line of its own and not exported, so the command does not receive it.",
            [value],
            fix=f"Write export {value.key}=…, or end the line with a backslash before the command.",
            severity=Severity.WARNING,
            fix_is_complete=True,
        )


@rule("CFG113", check=CHECK, role="any", warnings_only=True)
def engine_variables_exist(plan: RunPlan) -> Iterator[Problem]:
    """No variable has a name that is similar to one of vLLM, and that no release of vLLM reads."""
    names = frozenset(name for name in option_index.option_names("vllm") if name.startswith("VLLM_"))
    for name, value in plan.settings.env.items():
        similar = option_index.suggest(name, names) if name.startswith("VLLM_") and name not in names else ""
        # A longer or shorter name, such as VLLM_HOST, is probably one of the script's own.
        if similar and not similar.startswith(name) and not name.startswith(similar):
            yield Problem(
                f"No release of vLLM reads {name}; {similar} is similar.",
                [value],
                fix=f"Write {similar}, or leave {name} out.",
                severity=Severity.WARNING,
                fix_is_complete=True,
            )


@rule("CFG114", check=CHECK, role="any")
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
