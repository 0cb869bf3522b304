"""What of a run could not be judged: values that nobody can know from here, and what was not read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.version import Version

from diagnostics.frameworks import SHOWN, parser_of
from diagnostics.lint import known
from diagnostics.output.findings import CheckResult, NotJudged

if TYPE_CHECKING:
    from collections.abc import Iterable

    from diagnostics.lint.run_plan import RunPlan

# The check under which it is told what was not read.
READING = "what the run is told"
# So many unknown options are named; to look for what each may have meant takes time.
_NAMED = 12
_PROCESSES = NotJudged(
    "process count",
    "nothing that was read says how many processes train",
    "say it: accelerate launch --num_processes N, torchrun --nproc_per_node N, or NPROC_PER_NODE=N",
)


def of_rule(plans: Iterable[RunPlan], *, decides: bool) -> list[NotJudged]:
    """What the rule that was asked last wanted to know of these plans and could not; they forget it.

    Args:
        plans: What it was asked of.
        decides: Whether it could have found an error.
    """
    found = []
    for plan in plans:
        for name, value in plan.missed.items():
            if value is None:
                found.append(NotJudged(_PROCESSES.what, _PROCESSES.why, _PROCESSES.remedy, decides=decides))
                continue
            what, why = value.key or name, "its value is set outside of what was read"
            found.append(NotJudged(what, why, "", str(value.place), decides))
        plan.missed.clear()
    return found


def sharpest(found: Iterable[NotJudged]) -> list[NotJudged]:
    """Of the same thing, missed by several rules, the one that decides."""
    kept: dict[tuple[str, str], NotJudged] = {}
    for each in found:
        key = each.what, each.place
        if key not in kept or each.decides:
            kept[key] = each
    return list(kept.values())


def _unknown(plan: RunPlan) -> list[NotJudged]:
    """Options that no release knows which was read: misspelt, of a fork, or of somebody's own script."""
    settings = plan.settings
    taken = known.names(plan.framework, plan.role) if known.packages(plan.framework) else set()
    copied = plan.framework in plan.versions.copies
    if copied and known.of_copy(settings, plan.versions.copies[plan.framework]):
        return []  # CFG113 asked the copy
    hydra = parser_of(plan.framework) == "hydra"
    release = Version(plan.releases[plan.framework]) if plan.framework in plan.releases else None
    if not taken:
        return []
    if settings.exact and not copied and known.was_read(plan.framework, release):
        # CFG113 has the answer to the others.
        return [*_added(plan, taken, release), *_of_a_part(plan, taken)]
    if hydra and not settings.exact:
        # A config of one's own has keys of its own.
        return [_own_config(plan)] if settings.signs and not settings.own else []
    found = [*_added(plan, taken, release), *_of_a_part(plan, taken)]
    if copied and hydra:
        found += _of_another_release(plan, release)
    if release is None and not copied and settings.exact:
        found += _release(plan)
    unread = {value.key for value in known.unread(settings, plan.framework, taken)[1]}
    strange = [
        value
        for value in known.options_of(settings)
        if value.key not in {*settings.own, *unread} and not known.takes(value.key, taken, free=not hydra)
    ]
    for value in strange[:_NAMED]:
        near = known.nearest(value.key, taken)
        # Of a script that was read the options are known; of one that was not it may be one of its own.
        read = bool(settings.own) and value.place.file == settings.place.file
        if not near and not read and (not settings.exact or (copied and not hydra)):
            continue
        why = f"no release of {SHOWN[plan.framework]} that was read has this option"
        remedy = f"did you mean {near}?" if near else ""
        found.append(NotJudged(value.key, why, remedy, str(value.place)))
    if len(strange) > _NAMED:
        why = f"they too are in no release of {SHOWN[plan.framework]} that was read"
        found.append(NotJudged(f"{len(strange) - _NAMED} more options", why, "", str(settings.place)))
    return found


def _of_a_part(plan: RunPlan, taken: set[str]) -> list[NotJudged]:
    """The keys of a part of the config whose names are not among those that were read."""
    part, unread = known.unread(plan.settings, plan.framework, taken)
    why = "which keys it takes was not read"
    return [NotJudged(part, why, "", str(unread[0].place))] if unread else []


def _added(plan: RunPlan, taken: set[str], release: Version | None) -> list[NotJudged]:
    """Keys with a `+` that releases have: Hydra refuses it where the key is there and is not null."""
    if parser_of(plan.framework) != "hydra" or not plan.settings.exact:
        return []
    why = "releases have this key, and Hydra adds none that is there, unless its value is null: that was not read"
    return [
        NotJudged(f"+{value.key}", why, f"write it with ++: ++{value.key}", str(value.place))
        for value in known.added(plan.settings)
        if value.key in taken and (release is None or not known.lacks(plan.framework, value.key, release))
    ]


def _of_another_release(plan: RunPlan, release: Version | None) -> list[NotJudged]:
    """Keys for a project's copy of a framework without its config, which the release it says it is does not have."""
    name, shown = plan.framework, SHOWN[plan.framework]
    folder = plan.versions.copies[name]
    why = "no config of it is there, so nobody can say which keys it takes"
    found = [NotJudged(f"the project's own copy of {shown}", why, "", folder)]
    for value in known.options_of(plan.settings):
        has = known.outside(name, value.key, release) if release is not None else None
        if has is not None:
            why = f"{shown} has it from {has[0]} to {has[1]}; whether the own copy, like {release}, has it"
            found.append(NotJudged(value.key, f"{why} was not read", "", str(value.place)))
    return found


def _release(plan: RunPlan) -> list[NotJudged]:
    """The release, where it is not known and some of these options are not in every one."""
    settings = plan.settings
    some, all_in = known.together(plan.framework, [value.key for value in known.options_of(settings)])
    if not some:
        return []
    where = f"all of them are only in {all_in[0]} to {all_in[-1]}" if all_in else "none has all of them"
    why = f"it is not known, and {len(some)} of its options are not in every release: {where}"
    remedy = f"give it: --{plan.framework} VERSION"
    return [NotJudged(f"release of {SHOWN[plan.framework]}", why, remedy, str(settings.place))]


def _own_config(plan: RunPlan) -> NotJudged:
    why = "its config is not the framework's own and was not read, so nobody can say which keys it takes"
    return NotJudged(plan.settings.about or "the run", why, "", str(plan.settings.place))


def of_reading(plans: Iterable[RunPlan]) -> list[CheckResult]:
    """A check of its own for what was not read or understood, whichever rule it may concern."""
    gaps = sharpest(gap for plan in plans for gap in (*plan.settings.gaps, *_unknown(plan)))
    return [CheckResult.of(READING, (), gaps)] if gaps else []
