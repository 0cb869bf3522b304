"""Collect the parts of a run that `lint` could not check: unknown values, unknown options, missing files."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from packaging.version import Version

from diagnostics.findings import CheckResult, NotChecked
from diagnostics.fixes import count_of
from diagnostics.frameworks import SHOWN, parser_of
from diagnostics.lint import option_index
from diagnostics.lint.run_plan import RunPlan

# Name of the check that reports unread input.
READING = "run settings"
_MAX_NAMED = 12
_MAX_PLACES = 3


def take_unknowns(plans: Iterable[RunPlan], *, decides: bool) -> list[NotChecked]:
    """Return the unknown values that the last rule read, and clear them.

    Args:
        plans: The plans that the rule checked.
        decides: Whether the rule could have found an error.
    """
    entries = []
    for plan in plans:
        for name, value in plan.unknown.items():
            if value is None:
                remedy = "set it: accelerate launch --num_processes N, torchrun --nproc_per_node N, or NPROC_PER_NODE=N"
                reason = "nothing that was read sets the number of training processes"
                entries.append(NotChecked("process count", reason, remedy, decides=decides))
            else:
                reason = "its value is set outside the files that were read"
                entries.append(NotChecked(value.key or name, reason, "", str(value.place), decides))
        plan.unknown.clear()
    return entries


def group_entries(entries: Iterable[NotChecked]) -> list[NotChecked]:
    """Merge entries that differ only in location; the merged entry decides if any of them does."""
    groups: dict[tuple[str, str, str], list[NotChecked]] = {}
    for entry in entries:
        groups.setdefault((entry.what, entry.why, entry.remedy), []).append(entry)
    merged = []
    for group in groups.values():
        places = list(dict.fromkeys(entry.place for entry in group if entry.place))
        more = f" and {len(places) - _MAX_PLACES} more" if len(places) > _MAX_PLACES else ""
        place = ", ".join(places[:_MAX_PLACES]) + more
        merged.append(replace(group[0], place=place, decides=any(entry.decides for entry in group)))
    return merged


def check_reading(plans: Iterable[RunPlan]) -> list[CheckResult]:
    """Return one check with all inputs that were not read or understood."""
    entries = group_entries(
        entry for plan in plans for entry in (*plan.settings.not_checked, *_unknown_options(plan))
    )
    return [CheckResult.of(READING, (), entries)] if entries else []


def _unknown_options(plan: RunPlan) -> list[NotChecked]:
    """Return options that no indexed release has: misspelt, of a fork, or of the user's own script."""
    settings = plan.settings
    names = (
        option_index.option_names(plan.framework, plan.role)
        if option_index.is_indexed(plan.framework)
        else set()
    )
    if not names:
        return []
    if plan.own_copy and option_index.copy_options(settings, plan.versions.copies[plan.framework]):
        return []  # CFG113 checks them by the copy
    hydra = parser_of(plan.framework) == "hydra"
    release = Version(plan.releases[plan.framework]) if plan.framework in plan.releases else None
    indexed = option_index.is_indexed_release(plan.framework, release)
    if hydra and not settings.framework_parser:
        # A user's own config may have any keys.
        return [_unread_user_config(plan)] if settings.prefixes and not settings.script_options else []
    entries = [*_added_keys(plan, names, release), *_unindexed_part(plan, names)]
    if settings.framework_parser and not plan.own_copy and indexed:
        return entries  # CFG113 checks the others
    if plan.own_copy and hydra:
        entries += _options_of_other_releases(plan, release)
    if release is None and not plan.own_copy and settings.framework_parser:
        entries += _release_dependent(plan)
    return entries + _unindexed_options(plan, names)


def _unindexed_options(plan: RunPlan, names: set[str]) -> list[NotChecked]:
    settings, hydra = plan.settings, parser_of(plan.framework) == "hydra"
    unindexed = {value.key for value in option_index.unindexed_part(settings, names)[1]}
    unknown = [
        value
        for value in option_index.set_options(settings)
        if value.key not in {*settings.script_options, *unindexed}
        and not option_index.accepts(value.key, names, nested=not hydra, abbreviated=not hydra)
    ]
    entries = []
    for value in unknown[:_MAX_NAMED]:
        similar = option_index.suggest(value.key, names)
        # The options of a script that was read are known; an unread script may have this one.
        script_read = bool(settings.script_options) and value.place.file == settings.place.file
        foreign = not settings.framework_parser or (plan.own_copy and not hydra)
        if similar or script_read or not foreign:
            reason = f"no indexed release of {SHOWN[plan.framework]} has this option"
            remedy = f"did you mean {similar}?" if similar else ""
            entries.append(NotChecked(value.key, reason, remedy, str(value.place)))
    if len(unknown) > _MAX_NAMED:
        reason = f"no indexed release of {SHOWN[plan.framework]} has them either"
        more = f"{len(unknown) - _MAX_NAMED} more options"
        entries.append(NotChecked(more, reason, "", str(settings.place)))
    return entries


def _unindexed_part(plan: RunPlan, names: set[str]) -> list[NotChecked]:
    part, values = option_index.unindexed_part(plan.settings, names)
    return [NotChecked(part, "its keys are not in the index", "", str(values[0].place))] if values else []


def _added_keys(plan: RunPlan, names: set[str], release: Version | None) -> list[NotChecked]:
    """Return `+` keys that already exist in releases: Hydra refuses one whose value is not null."""
    if parser_of(plan.framework) != "hydra" or not plan.settings.framework_parser:
        return []
    reason = "releases have this key, and Hydra adds no existing key unless its value is null"
    return [
        NotChecked(f"+{value.key}", reason, f"write it with ++: ++{value.key}", str(value.place))
        for value in option_index.added_options(plan.settings)
        if value.key in names
        and (release is None or not option_index.lacks_option(plan.framework, value.key, release))
    ]


def _options_of_other_releases(plan: RunPlan, release: Version | None) -> list[NotChecked]:
    """Return options of a project's copy that the copy's release lacks; used if the copy's config is missing."""
    name, title = plan.framework, SHOWN[plan.framework]
    reason = "its config is not there, so its keys are not known"
    entries = [NotChecked(f"the project's own copy of {title}", reason, "", plan.versions.copies[name])]
    for value in option_index.set_options(plan.settings) if release is not None else ():
        span = option_index.span_without(name, value.key, release) if release is not None else None
        if span is not None:
            reason = f"{title} has it from {span[0]} to {span[1]}; the copy, like {release}, may lack it"
            entries.append(NotChecked(value.key, reason, "", str(value.place)))
    return entries


def _release_dependent(plan: RunPlan) -> list[NotChecked]:
    """Return the release as not checked, if it is unknown and some releases lack an option of the run.

    It decides only if no release has all options: then any installed release refuses one.
    """
    options = [value.key for value in option_index.set_options(plan.settings)]
    partial, releases = option_index.releases_with_all(plan.framework, options)
    if not partial:
        return []
    where = (
        f"only {releases[0]} to {releases[-1]} have all of them" if releases else "no release has all of them"
    )
    some = count_of(len(partial), "option")
    verb = "is" if len(partial) == 1 else "are"
    reason = f"the release is unknown, and {some} of this run {verb} not in every release: {where}"
    remedy = f"pass --{plan.framework} VERSION"
    what = f"release of {SHOWN[plan.framework]}"
    return [NotChecked(what, reason, remedy, str(plan.settings.place), decides=not releases)]


def _unread_user_config(plan: RunPlan) -> NotChecked:
    reason = "its config is not the framework's own and was not read, so its keys are not known"
    return NotChecked(plan.settings.target or "the run", reason, "", str(plan.settings.place))
