"""Look up the guards that a run passes at its start: of the classes of its options, and of its main program."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from msgspec import structs

from diagnostics.api_index import query, store
from diagnostics.api_index.guards import CALL, SET, Guard
from diagnostics.api_index.packages import PACKAGES
from diagnostics.api_index.query import Release
from diagnostics.api_index.store import UnpackedValues
from diagnostics.api_index.surface import Definition, Surface

_START = ("__post_init__", "__init__")
_MOST_GUARDS = 2000
_TARGET = "._target_"
_FIELD_OF = re.compile(r" = (?:get_field\()?([A-Z]\w+Config)\b")


@dataclass(frozen=True)
class PlacedGuard:
    """A guard of a release.

    Attributes:
        guard: The guard, with the conditions of the calls that lead to its function.
        release: The release that has it.
        module: Its module.
        prefix: The part of the config that `self` is in its conditions, such as `actor_rollout_ref.actor.`; None if its
            function is no method of a config class.
        set_elsewhere: Attributes in its conditions that other methods may set before, each with its conditions.
        only_set: Whether the framework may replace an option that is not set before the guard reads it.
    """

    guard: Guard
    release: Release
    module: str
    prefix: str | None = None
    set_elsewhere: tuple[tuple[str, tuple[str, ...]], ...] = ()
    only_set: bool = False

    def enum_value(self, name: str) -> str | None:
        """Return the text that a member of an Enum stands for, such as `IntervalStrategy.STEPS`; None if it is none."""
        owner, _, member = name.partition(".")
        surface = query.surface_of(self.release)
        definition = surface.find(self.module, owner) if surface and owner[:1].isupper() else None
        entry = (
            surface.facts(definition.module).get(f"{definition.name}.{member}", "")
            if surface and definition
            else ""
        )
        match = re.fullmatch(r"value '([^'\\]*)'", entry)
        return match[1] if match else None


@cache
def start_guards(release: Release) -> tuple[PlacedGuard, ...]:
    """Return the guards that a run passes at its start: of the classes of its options, and of its main program."""
    settings, companions = PACKAGES[release.package], query.companions_of(release)
    surface = query.surface_of(release, *companions)
    if surface is None:
        return ()
    releases = {query.module_of(item.package): item for item in (release, *companions)}
    classes = [(module, name, "") for module, name in settings.option_classes]
    found: list[PlacedGuard] = []
    for module, name, prefix in (*classes, *_config_classes(surface, settings.option_modules)):
        if definition := surface.find(module, name):
            found += _ClassReader(surface, releases, definition, prefix).read()
            for owner in _field_owners(surface, definition):
                found += [
                    replace(item, only_set=True) for item in _ClassReader(surface, releases, owner, "").read()
                ]
    for module in store.load(release.package).about["modules"]:  # type: ignore[union-attr]
        if re.fullmatch(settings.guarding, module):
            functions = (item for item in _guards_of(release, module) if _is_start(item.function))
            found += [
                PlacedGuard(item, release, module) for item in functions if item.exception not in {CALL, SET}
            ]
    return tuple(dict.fromkeys(found[:_MOST_GUARDS]))


def _is_start(function: str) -> bool:
    """Return whether a main program or the trainer's constructor runs a function; no method of a config class is."""
    owner, _, name = function.rpartition(".")
    is_constructor = name == "__init__" and owner in {"GRPOTrainer", "RayPPOTrainer"}
    return (
        is_constructor
        or owner == "TaskRunner"
        or name in {"", "train", "validate_config", "_validate_config"}
    )


def _config_classes(surface: Surface, files: tuple[str, ...]) -> Iterator[tuple[str, str, str]]:
    """Yield (module, class, prefix) of the config classes that Hydra creates for a part of the config."""
    for file in files:
        facts = surface.facts(file)
        for key in facts:
            target = facts[key].removeprefix("field = ") if key.endswith(_TARGET) else ""
            module, _, name = target.rpartition(".")
            if module:
                yield module, name, key.removesuffix("_target_")
        if facts:
            return


def _field_owners(surface: Surface, definition: Definition) -> Iterator[Definition]:
    """Yield the classes from whose fields options take their defaults, as vLLM's EngineArgs from ParallelConfig."""
    matches = (_FIELD_OF.search(entry) for entry in surface.own_members(definition).values())
    for name in dict.fromkeys(match[1] for match in matches if match):
        if owner := surface.find(definition.module, name):
            yield owner


class _ClassReader:
    """Reads the guards that run when an object of a class is made, following calls of its own methods."""

    def __init__(
        self, surface: Surface, releases: Mapping[str, Release], definition: Definition, prefix: str
    ) -> None:
        self._surface, self._releases, self._prefix = surface, releases, prefix
        self._classes = [item for item in surface.class_and_bases(definition) if item]
        self._done: set[tuple[Definition, str]] = set()

    def read(self) -> Iterator[PlacedGuard]:
        """Yield the guards of `__post_init__`, of `__init__` and of validators.

        The index keeps no order of calls, so any other method may set an attribute before.
        """
        found = [item for method in _START for item in self._method("self", method, 0, ())]
        for number, definition in enumerate(self._classes):
            for guard in self._guards(definition, definition.name):
                found += self._method("self", guard.message.removeprefix("self."), number, ())
        settings = [item.guard for item in found if item.guard.exception == SET]
        for item in found:
            text, function = " ".join(item.guard.conditions), item.guard.function
            others = [one for one in settings if one.function != function and one.message in text]
            if item.guard.exception != SET:
                yield replace(item, set_elsewhere=tuple((one.message, one.conditions) for one in others))

    def _guards(self, definition: Definition, function: str) -> list[Guard]:
        release = self._releases.get(definition.module.partition(".")[0])
        guards = _guards_of(release, definition.module) if release else []
        return [item for item in guards if item.function == function]

    def _method(
        self, owner: str, method: str, number: int, conditions: tuple[str, ...]
    ) -> Iterator[PlacedGuard]:
        """Yield the guards of a method; `number` is the position of the calling class among class and bases."""
        first = {"self": 0, "super": number + 1}.get(owner)
        if first is None:
            first = next(
                (at for at, item in enumerate(self._classes) if item.name == owner), len(self._classes)
            )
        for at, definition in enumerate(self._classes[first:], first):
            if f"{definition.name}.{method}" not in self._surface.facts(definition.module):
                continue
            if (definition, method) in self._done:
                return
            self._done.add((definition, method))
            for guard in self._guards(definition, f"{definition.name}.{method}"):
                every = (*conditions, *guard.conditions)
                if guard.exception == CALL:
                    inner, _, called = guard.message.rpartition(".")
                    yield from self._method(inner, called, at, every)
                else:
                    placed = structs.replace(guard, conditions=every)
                    release = self._releases[definition.module.partition(".")[0]]
                    yield PlacedGuard(placed, release, definition.module, self._prefix)
            return


@cache
def _guards_of(release: Release, module: str) -> list[Guard]:
    """Return the guards of a module."""
    package = store.load(release.package)
    number = package.number(release.version) if package else None
    if package is None or number is None:
        return []
    document, base = package.document("guards"), module.replace(".", "/")
    packed: dict[str, Any] = document.get(f"{base}.py") or document.get(f"{base}/__init__.py") or {}
    return [Guard.from_key(key) for key in UnpackedValues(packed, number)]
