"""List the inputs of a run that `lint` could not check, as entries "not checked" with the reason and often a remedy.

- `take_unknown_values`: values that a rule needed and that are not known.
- `unread_inputs_check`: a check with files and configs that were not read.
- `unindexed_entries`: options that no indexed release has, parts of a config that are not indexed, `+` keys that
  releases already have, an unknown release if some lack an option, and the checks in the source of a release that is
  not indexed.
- `merge_entries`: merges entries with the same text.
"""

from collections.abc import Collection, Iterable
from dataclasses import replace

from packaging.version import Version

from diagnostics.api_index import store
from diagnostics.api_index.options import command_options, is_declared
from diagnostics.api_index.query import Release
from diagnostics.findings import CheckResult, NotChecked
from diagnostics.fixes import join_some
from diagnostics.frameworks import DISPLAY_NAMES, FRAMEWORKS, parser_of
from diagnostics.lint import option_index
from diagnostics.lint.dialects import DIALECTS
from diagnostics.lint.run_plan import PROCESSES, RunPlan
from diagnostics.lint.values import UNKNOWN, Value, format_value

# Name of the check that reports inputs that were not read.
READING = "run settings"
_MAX_NAMED = 12
_MAX_PLACES = 3
_SET_PROCESSES = "use accelerate launch --num_processes N or torchrun --nproc_per_node N"


def take_unknown_values(plans: Iterable[RunPlan], *, decides: bool) -> list[NotChecked]:
    """Return an entry for each unknown value that the last rule read, and clear the plans' lists of them.

    Args:
        plans: The plans that the rule checked.
        decides: Whether the rule could have found an error, so that the report counts as incomplete.
    """
    entries = []
    for plan in plans:
        for name, value in plan.unknown.items():
            if value is None:
                if plan.settings.has_unread_options and plan.settings.not_checked:
                    continue  # the file that was not read may set it, and is reported
                reason = "nothing that was read sets the number of training processes"
                missing = _options_for_processes(plan)
                remedy = f"set {missing}" if missing else _SET_PROCESSES
                entries.append(NotChecked("process count", reason, remedy, decides=decides))
            else:
                reason = "its value depends on a branch, a command or the environment"
                if value.place.file.endswith(".py"):
                    reason = "the script computes its value or reads it from elsewhere"
                if value.written is not UNKNOWN:
                    reason = f"its value {format_value(value.written)!r} gives no whole number"
                entries.append(NotChecked(value.key or name, reason, "", str(value.place), decides))
        plan.unknown.clear()
    return entries


def _options_for_processes(plan: RunPlan) -> str:
    """Return the options whose product is the number of processes in a framework, without those that the run sets."""
    dialect = DIALECTS[plan.framework]
    factors = {name for entry in dialect.derived if entry.name == PROCESSES for name in entry.factors}
    names = {"NPROC_PER_NODE": "env:NPROC_PER_NODE", **dialect.names}
    return " and ".join(key for key, name in names.items() if name in factors - plan.values.keys())


def merge_entries(entries: Iterable[NotChecked]) -> list[NotChecked]:
    """Merge entries that differ only in location or `decides`; a merged entry decides if one of its entries does."""
    groups: dict[tuple[str, str, str], list[NotChecked]] = {}
    for entry in entries:
        groups.setdefault((entry.what, entry.why, entry.remedy), []).append(entry)
    merged = []
    for group in groups.values():
        place = join_some(list(dict.fromkeys(entry.place for entry in group if entry.place)), _MAX_PLACES)
        merged.append(replace(group[0], place=place, decides=any(entry.decides for entry in group)))
    return merged


def unread_inputs_check(plans: Iterable[RunPlan]) -> list[CheckResult]:
    """Return one check with all inputs that were not read or understood, as a list; empty if there are none."""
    entries = merge_entries(entry for plan in plans for entry in plan.settings.not_checked)
    return [CheckResult.of(READING, (), entries)] if entries else []


def unindexed_entries(group: str, plans: Iterable[RunPlan]) -> list[NotChecked]:
    """Return what a group of rules could not compare, because the index does not have it."""
    functions = {"options": _unchecked_options, "checks of the framework": _unchecked_guards}
    return [entry for plan in plans if group in functions for entry in functions[group](plan)]


def _unchecked_guards(plan: RunPlan) -> list[NotChecked]:
    """Return an entry if the index lacks the run's release, so that the checks in its source are not known."""
    name = plan.option_package
    release, index = plan.releases.get(name), store.load(name)
    if release is None or plan.own_copy or not index.document("guards") or index.number(release) is not None:
        return []
    reason = f"the index has only {index.releases[0]} to {index.releases[-1]}"
    return [NotChecked(f"the checks in the source of {name} {release}", reason)]


def _unchecked_options(plan: RunPlan) -> list[NotChecked]:
    """Return entries for options that the index does not have, and for an unknown release or config that hides them."""
    name, settings, own_parser = plan.option_package, plan.settings, plan.settings.framework_parser
    names = option_index.option_names(name, plan.role)
    # The reference trainer checks its own TOML.
    if not names and name != "own":
        return [NotChecked("options", f"no release of {DISPLAY_NAMES[name]} is indexed with its options")]
    if not names:
        return []
    hydra = parser_of(name) == "hydra"
    release, repository = option_index.known_release(plan), option_index.is_repository(name)
    if plan.role == "other" and not (release and command_options(plan.release_of(release))):
        reason = "the options of this command are not known for its release"
        return [NotChecked("options", reason, f"pass --{name} VERSION", str(settings.place))]
    if hydra and not own_parser:
        # A user's own config may have any keys.
        reason = "its config was not read, so lint does not know which keys it has"
        unread = NotChecked(settings.target or "the run", reason, "", str(settings.place))
        return [unread] if settings.prefixes and not settings.script_options else []
    entries = _existing_added_keys(plan, names, release) if hydra and own_parser else []
    part, values = option_index.unindexed_part(settings, names)
    if values:
        entries.append(NotChecked(part, "its keys are not in the index", "", str(values[0].place)))
    indexed = own_parser and not plan.own_copy and option_index.is_indexed_release(name, release)
    if indexed and name == plan.framework:
        return entries  # CFG113 checks other options
    if plan.own_copy and hydra:
        what = f"the project's own copy of {DISPLAY_NAMES[name]}"
        reason = "its config is not read, so its keys are not known"
        entries.append(NotChecked(what, reason, "", plan.versions.copies[name]))
    if release is None and name not in plan.releases and not plan.own_copy and own_parser:
        entries += _unknown_release(plan)
    # CFG113 reports misspelt options of unsloth and of repositories; their forks may have others.
    reported = indexed or repository
    handled = {*settings.script_options, *option_index.doubtful_options(plan)}
    handled |= {value.key for value in values}
    return entries + _unindexed_options(plan, names, handled, with_similar=not reported)


def _unindexed_options(
    plan: RunPlan, names: frozenset[str], handled: set[str], *, with_similar: bool
) -> list[NotChecked]:
    """Return entries for at most 12 options that no indexed release has, and one with the names of others.

    Of these 12, options that a script may declare are left out. If `with_similar` is False, so are options that are
    similar to one of `names`.
    """
    settings, hydra = plan.settings, parser_of(plan.option_package) == "hydra"
    refused = option_index.refused_options(settings, names, nested=True)
    unknown = [value for value in refused if value.key not in handled]
    entries = []
    for value in unknown[:_MAX_NAMED]:
        similar = option_index.suggest(value.key, names)
        # A script that was not read may declare this option.
        script_read = bool(settings.script_options) and value.place.file == settings.place.file
        foreign = not settings.framework_parser or (plan.own_copy and not hydra)
        # A script has options of its own for its data.
        is_misspelt = bool(similar) and not similar.startswith("dataset")
        if (with_similar or not similar) and (is_misspelt or script_read or not foreign):
            reason = f"no indexed release of {DISPLAY_NAMES[plan.option_package]} has this option"
            reason += f"; {similar} is similar" if similar else ""
            entries.append(NotChecked(value.key, reason, "", str(value.place)))
    if len(unknown) > _MAX_NAMED:
        reason = f"no indexed release of {DISPLAY_NAMES[plan.option_package]} has these options"
        keys = [value.key for value in unknown[_MAX_NAMED:]]
        entries.append(NotChecked(join_some(keys, _MAX_NAMED), reason, "", str(settings.place)))
    return entries


def _existing_added_keys(plan: RunPlan, names: Collection[str], release: Version | None) -> list[NotChecked]:
    """Return entries for `+` keys that the release already has: Hydra refuses them, unless their value is null.

    If the release is unknown, keys count that any release has.
    """

    def exists(value: Value) -> bool:
        # Options of another config than that of the main program are known by name only.
        if "--config-name" in plan.options or not option_index.is_indexed_release(package, release):
            lacks = release is not None and option_index.lacks_option(package, value.key, release)
            return value.key in names and not lacks
        return is_declared(Release(package, str(release)), value.key)

    package = plan.option_package
    config = f"the config of {package} {release or 'in some releases'}"
    reason = f"{config} has this key, and Hydra refuses to add it, unless its value there is null"
    return [
        NotChecked(f"+{value.key}", reason, f"write it with ++: ++{value.key}", str(value.place))
        for value in filter(exists, option_index.added_options(plan.settings))
    ]


def _unknown_release(plan: RunPlan) -> list[NotChecked]:
    """Return an entry for the unknown release if some releases lack an option of the run.

    The entry decides only if no release has all options, because then every release refuses one of them.
    """
    options = [value.key for value in option_index.options_to_check(plan.settings)]
    partial, releases = option_index.releases_with_all(plan.option_package, options, plan.role)
    if not partial or (releases and not FRAMEWORKS[plan.option_package].packages):
        return []
    clause = f"only {releases[0]} to {releases[-1]} have" if releases else "no release has"
    where = f"{clause} all options of this run"
    for option in () if releases else partial:
        _, others = option_index.releases_with_all(plan.option_package, {*options} - {option}, plan.role)
        if others:
            where += f"; {others[0]} to {others[-1]} lack only {option}"
            break
    reason = f"not known; {where}"
    remedy = f"pass --{plan.option_package} VERSION" if releases else ""
    what = f"release of {DISPLAY_NAMES[plan.option_package]}"
    return [NotChecked(what, reason, remedy, str(plan.settings.place), decides=not releases)]
