"""Look up the guards of a release: the `raise` and `assert` statements in code that a run reaches at its start.

This code is the option classes and the main program of the run, config classes that Hydra creates or from which options
take their defaults, and components, which are used only with some options. `start_guards` returns the guards.
`is_in_all_companions` returns whether the oldest and the newest fitting release of a guard's package have it.
"""

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache

from msgspec import structs

from diagnostics.api_index import query
from diagnostics.api_index.guards import CALL, SET, Guard
from diagnostics.api_index.options import enum_members, guards_of
from diagnostics.api_index.packages import PACKAGES, Component
from diagnostics.api_index.query import Release
from diagnostics.api_index.release_api import Definition, ReleaseApi

# The last two are called by vLLM's server and by ms-swift's Megatron trainer.
_START = ("__post_init__", "__init__", "create_engine_config", "init_model_args")
_MOST_GUARDS = 2000
# Characters at the start of a message that identify a check in several releases.
_SAME_START = 50
_TARGET = "._target_"
_FIELD_OF = re.compile(r" = (?:get_field\()?([A-Z]\w+Config)\b")


@dataclass(frozen=True)
class PlacedGuard:
    """A guard of a release.

    Attributes:
        guard: The guard, with the conditions of the calls that lead to its function.
        release: The release that has it.
        module: Its module.
        prefix: The part of the config that `self` stands for in its conditions, such as `actor_rollout_ref.actor.`;
            None for the main program.
        set_elsewhere: Attributes in its conditions that other methods may set before, each with its conditions.
        component: The component that makes the check; None for a check of each run.
        only_set: Whether the framework may fill in an option that the run does not set, before the guard reads it.
    """

    guard: Guard
    release: Release
    module: str
    prefix: str | None = None
    set_elsewhere: tuple[tuple[str, tuple[str, ...]], ...] = ()
    only_set: bool = False
    component: Component | None = None

    def enum_value(self, name: str) -> str | None:
        """Return the text that a member of an Enum stands for, such as `IntervalStrategy.STEPS`; else None."""
        owner, _, member = name.partition(".")
        if not owner[:1].isupper():
            return None
        return enum_members(query.api_of(self.release), self.module, owner).get(member)


def is_in_all_companions(placed: PlacedGuard, release: Release) -> bool:
    """Return whether the guard's package makes this check in its oldest and its newest release that fit `release`.

    A check is the same if its message starts with the same 50 characters; the result is False for a shorter message.
    """
    base, start = replace(release, command=""), placed.guard.message[:_SAME_START]
    companions = [*query.companions_of(base, -1), *query.companions_of(base, 1)]
    return len(start) == _SAME_START and all(
        any(item.message.startswith(start) for item in guards_of(companion, placed.module))
        for companion in companions
        if companion.package == placed.release.package
    )


@cache
def start_guards(release: Release) -> tuple[PlacedGuard, ...]:
    """Return at most 2000 guards of a release that a run reaches: of its options, main program and components."""
    base = replace(release, command="")
    settings, companions = PACKAGES[release.package], query.contemporaries_of(base)
    api = query.api_of(base, *companions)
    releases = {query.module_of(item.package): item for item in (base, *companions)}
    sources = settings.option_sources(release.command)
    classes = [(*source.split(":"), "") for source in sources if ":" in source]
    guards: list[PlacedGuard] = []
    for module, name, prefix in (*classes, *_config_classes(api, sources)):
        if definition := api.find(module, name):
            guards += _ClassReader(api, releases, definition, prefix).read()
            for owner in _field_owners(api, definition):
                placed = _ClassReader(api, releases, owner, "").read()
                guards += [replace(item, only_set=True) for item in placed]
    modules = list(api.source.modules())
    programs = [source for source in sources if "/" not in source and source in modules]
    if not programs and not release.command:
        programs = [*filter(re.compile(settings.guarding).fullmatch, modules)]
    parts: list[tuple[str, str, Component | None]] = [
        (module, f"{re.escape(module)}:(?:{settings.starting})", None) for module in programs
    ]
    parts += [
        (module, component.code, component)
        for component, module in itertools.product(
            settings.components, modules if not release.command else ()
        )
        if re.fullmatch(component.code.partition(":")[0], module)
    ]
    guards = list(dict.fromkeys(guards))
    guards += [
        PlacedGuard(item, base, module, component.prefix if component else None, component=component)
        for module, pattern, component in parts
        for item in guards_of(base, module)
        if item.exception not in {CALL, SET} and re.fullmatch(pattern, f"{module}:{item.function}")
    ]
    return tuple(guards[:_MOST_GUARDS])


def _config_classes(api: ReleaseApi, files: tuple[str, ...]) -> Iterator[tuple[str, str, str]]:
    """Yield (module, class, prefix) of the config classes that Hydra creates for a part of the config."""
    for file in files:
        facts = api.facts(file)
        for key in facts:
            target = facts[key].removeprefix("field = ") if key.endswith(_TARGET) else ""
            module, _, name = target.rpartition(".")
            if module:
                yield module, name, key.removesuffix("_target_")
        if facts:
            return


def _field_owners(api: ReleaseApi, definition: Definition) -> Iterator[Definition]:
    """Yield the classes from whose fields options take their defaults, as vLLM's EngineArgs from ParallelConfig."""
    matches = (_FIELD_OF.search(entry) for entry in api.own_members(definition).values())
    for name in dict.fromkeys(match[1] for match in matches if match):
        if owner := api.find(definition.module, name):
            yield owner


class _ClassReader:
    """Reads the guards that run when an object is made or set up (`_START`), following calls of its own methods."""

    def __init__(
        self, api: ReleaseApi, releases: Mapping[str, Release], definition: Definition, prefix: str
    ) -> None:
        self._api, self._releases, self._prefix = api, releases, prefix
        self._classes = [item for item in api.class_and_bases(definition) if item]
        self._done: set[tuple[int, str]] = set()

    def read(self) -> Iterator[PlacedGuard]:
        """Yield the guards of the methods in `_START` and of validators.

        The index keeps no order of calls, so any other method may set an attribute before.
        """
        entries = [item for method in _START for item in self._guards_of_method(method, 0, ())]
        for number, definition in enumerate(self._classes):
            for call in self._own_guards(definition, definition.name):
                entries += self._guards_of_method(call.message.removeprefix("self."), number, ())
        assignments = [item.guard for item in entries if item.guard.exception == SET]
        for item in entries:
            text, function = " ".join(item.guard.conditions), item.guard.function
            if item.guard.exception != SET:
                elsewhere = (one for one in assignments if one.function != function and one.message in text)
                yield replace(item, set_elsewhere=tuple((one.message, one.conditions) for one in elsewhere))

    def _own_guards(self, definition: Definition, function: str) -> list[Guard]:
        release = self._releases[definition.module.partition(".")[0]]
        return [item for item in guards_of(release, definition.module) if item.function == function]

    def _guards_of_method(
        self, method: str, first: int, conditions: tuple[str, ...]
    ) -> Iterator[PlacedGuard]:
        """Yield the guards of a method, which is looked for from the class number `first` on, bases last."""
        names = [item.name for item in self._classes]
        places = (
            number
            for number, item in enumerate(self._classes)
            if number >= first and f"{item.name}.{method}" in self._api.facts(item.module)
        )
        number = next(places, -1)
        if number < 0 or (number, method) in self._done:
            return
        self._done.add((number, method))
        definition = self._classes[number]
        for guard in self._own_guards(definition, f"{definition.name}.{method}"):
            all_conditions = (*conditions, *guard.conditions)
            if guard.exception == CALL:
                owner, _, called = guard.message.rpartition(".")
                start = {"self": 0, "super": number + 1}.get(owner, [*names, owner].index(owner))
                yield from self._guards_of_method(called, start, all_conditions)
            else:
                placed = structs.replace(guard, conditions=all_conditions)
                release = self._releases[definition.module.partition(".")[0]]
                yield PlacedGuard(placed, release, definition.module, self._prefix)
