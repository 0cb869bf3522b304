"""Compare the uses of a package in another package's source with the API of one release.

`compare` sorts the uses that the release does not satisfy: guarded (in a `try` with an alternative that works), unsure
(under an unknown condition), else missing. `Lookup` checks one use, and `condition_holds` one condition of a use.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from packaging.version import Version

from diagnostics.api_index.release_api import Definition, ReleaseApi, Signature, parse_signature
from diagnostics.api_index.uses import Use
from diagnostics.versions import in_range


@dataclass(frozen=True)
class MissingUse:
    """A use that the release does not satisfy, and the reason."""

    use: Use
    why: str

    @property
    def location(self) -> str:
        """The file:line of the use, in the wheel of the package that uses the name; only the file without a line."""
        return f"{self.use.file}:{self.use.line}" if self.use.line else self.use.file


@dataclass
class Comparison:
    """The result of comparing uses with a release: how many were checked, and those that fail."""

    checked: int = 0
    """Number of different uses whose conditions may hold."""
    missing: list[MissingUse] = field(default_factory=list)
    guarded: list[MissingUse] = field(default_factory=list)
    """Missing, but in a `try` statement with an alternative that works, or where a name of such a `try` is used."""
    unsure: list[MissingUse] = field(default_factory=list)
    """Missing, under an unknown condition."""
    unfollowed: list[tuple[Use, str]] = field(default_factory=list)
    """Uses that the source code does not decide, each with the reason or the last known attribute."""


def compare(
    uses: Iterable[Use],
    api: ReleaseApi,
    versions: Mapping[str, Version],
    own_routes: frozenset[str] = frozenset(),
) -> Comparison:
    """Look up the uses of a package, if their conditions may hold, in one release of this package.

    Args:
        uses: The uses of this package in the other package's source.
        api: The API of the release.
        versions: Known releases by module name, including this release.
        own_routes: HTTP routes of the other package's own server, which its client uses instead.
    """
    reached = [
        use for use in uses if all(condition_holds(item, versions) is not False for item in use.conditions)
    ]
    comparison, lookup = Comparison(), Lookup(api, own_routes)
    unique = [use for use in dict.fromkeys(reached) if use.kind != "arm"]
    problems = {use: problem for use in unique if (problem := lookup.problem(use))}
    working = _working_tries(reached, problems)
    tried = {use for use in problems if any((use.file, number) in working for number in _try_numbers(use))}
    # The code runs under these conditions only if the import succeeded: it uses the imported name.
    names = {(use.file, use.module, use.name) for use in tried if use.kind == "name"}
    unreached = {
        (use.file, frozenset(use.conditions))
        for use in unique
        if (use.file, use.module, use.name) in names
        and any(text.startswith("set:") for text in use.conditions)
    }
    for use, problem in problems.items():
        item = MissingUse(use, problem)
        if use in tried or any(
            use.file == file and conditions_there <= {*use.conditions} for file, conditions_there in unreached
        ):
            comparison.guarded.append(item)
        elif any(
            condition_holds(text, versions) is None for text in use.conditions if not text.startswith("set:")
        ):
            comparison.unsure.append(item)
        else:
            comparison.missing.append(item)
    comparison.checked = len({use.text for use in unique})
    comparison.unfollowed = lookup.unfollowed
    return comparison


def condition_holds(condition: str, versions: Mapping[str, Version]) -> bool | None:
    """Return whether the condition of a use holds for these installed versions; None if unknown.

    A condition on a run's option (`set:`) and the mark of a `try` count as true.

    >>> condition_holds("vllm>=0.9", {"vllm": Version("0.8")}), condition_holds("peft", {})
    (False, None)
    """
    if condition == "?":
        return None
    if condition.startswith(("set:", "try:")):
        return True
    if condition.startswith("!"):
        return False if condition[1:] in versions else None
    # The rest of the condition is a version range, or empty, which includes each version.
    package = re.split("[<>=!]", condition, maxsplit=1)[0]
    version = versions.get(package)
    return None if version is None else in_range(version.public, condition.removeprefix(package))


@dataclass
class Lookup:
    """Looks uses up in the API of one release, and records those that could not be decided."""

    api: ReleaseApi
    own_routes: frozenset[str] = frozenset()
    unfollowed: list[tuple[Use, str]] = field(default_factory=list)

    def problem(self, use: Use) -> str:  # noqa: PLR0911 - one line a kind of use
        """Return why the release does not satisfy a use; empty if it does, or if that is unknown.

        For a member or argument of a missing name it is empty, too, because the import of the name is the problem.
        """
        api = self.api
        if use.kind == "route":
            if self.own_routes:
                return "" if use.name in self.own_routes else f"TRL's own server has no route {use.name}"
            return "" if api.has_route(use.name) else f"vLLM's server has no route {use.name}"
        if use.kind == "launch":
            known = self.own_routes or api.has_serve_option(use.name)
            return "" if known else f"`vllm serve` takes no {use.name}"
        if use.kind in {"registered", "model_type"}:
            known, name = api.has_model_type(use.path[0]), f"model type {use.path[0]!r}"
            if known == (use.kind == "model_type"):
                return ""
            return f"transformers has the {name} itself" if known else f"transformers has no {name}"
        definition = api.find(use.module, use.name)
        if definition is None:
            if use.kind not in {"name", "patched"}:
                return ""  # already reported for its import
            has_module = api.has_module(use.module)
            return f"no {use.name} in {use.module}" if has_module else f"no module {use.module}"
        if use.kind == "argument":
            return self._argument(use, definition)
        if use.kind in {"positional", "without"}:
            return self._call(use, definition)
        return self._attribute(use, definition) if use.path else ""

    def _argument(self, use: Use, definition: Definition) -> str:
        """Return why a call does not accept a keyword; '' if it does, or if its parameters are not all known."""
        *outer, keyword = use.path
        if len(outer) > (1 if definition.is_class else 0):
            return ""  # a longer path is looked up as an attribute
        signature = self.signature(use, definition)
        if signature and signature.takes_others and use.name == "LLM" and not outer:
            # LLM passes unknown keywords on to EngineArgs, whose fields are the real signature.
            arguments = self.api.find(f"{self.api.package}.engine.arg_utils", "EngineArgs")
            more = self.api.constructor(arguments) if arguments else signature
            signature = replace(more, names=signature.names | more.names)
        if signature is None or keyword in signature.names:
            return ""
        is_constructor = definition.is_class and not outer
        if signature.takes_others:
            if is_constructor:
                self.unfollowed.append((use, f"{use.name} passes on arguments that it does not name"))
            return ""
        return (
            f"{outer[0] if outer else use.name}{'' if is_constructor else '()'} takes no argument {keyword!r}"
        )

    def _call(self, use: Use, definition: Definition) -> str:
        """Return why a call with a number of positional arguments, or without an argument, fails; '' if not."""
        signature, value = self.signature(use, definition), use.path[-1]
        if signature is None:
            self.unfollowed.append((use, f"the parameters of {use.name} are unknown"))
            return ""
        if use.kind == "without":
            return f"{use.name} requires {value!r}" if value in signature.required else ""
        if signature.positional is None or int(value) <= signature.positional:
            return ""
        return f"{use.name} takes {signature.positional} positional arguments"

    def signature(self, use: Use, definition: Definition) -> Signature | None:
        """Return the parameters of the function, method or constructor that a use calls; None if unknown."""
        if definition.entry.startswith("def"):
            return parse_signature(definition.entry)
        if not definition.is_class:
            return None
        if len(use.path) > 1:
            return self.api.method_signature(definition, use.path[0])
        return self.api.constructor(definition)

    def _attribute(self, use: Use, definition: Definition) -> str:
        """Return which attribute of a path is missing; '' if none is, or if the source does not show its type."""
        api, current, path, exact = self.api, definition, list(use.path), True
        while current.kind == "module" and path:
            inner = api.find(current.module, path[0])
            if inner is None:
                return f"no {path[0]} in {current.module}"
            current, path = inner, path[1:]
        while path and current.is_class:
            members = api.members(current)
            exists = path[0] in members.names
            if not exists and exact and members.complete:
                return f"{current.name} has no {path[0]}"
            types = api.attribute_types(current, path[0]) if exists and len(path) > 1 else []
            if not types:
                if len(path) > 1 or not exists:
                    reached = f"{current.name}.{path[0]}" if exists else current.name
                    self.unfollowed.append((use, f"followed as far as {reached}"))
                return ""
            # Of several possible types, one that has the next attribute.
            matching = [item for item in types if path[1] in api.members(item[0]).names]
            (current, certain), path = (matching or types)[0], path[1:]
            exact = certain and len(types) == 1
        return ""


def _try_numbers(use: Use) -> list[int]:
    """Return the numbers of the `try` statements that contain a use."""
    outer = [int(item.removeprefix("try:")) for item in use.conditions if item.startswith("try:")]
    return [*outer, *([use.choice[0]] if use.choice else [])]


def _working_tries(uses: Iterable[Use], problems: Mapping[Use, str]) -> set[tuple[str, int]]:
    """Return the `try` statements, as (file, number), that have an arm whose names are all there."""
    arms: dict[tuple[str, int], dict[int, bool]] = {}
    for use in uses:
        if use.choice is not None:
            number, arm = use.choice
            states = arms.setdefault((use.file, number), {})
            states[arm] = states.get(arm, True) and use not in problems
    return {key for key, states in arms.items() if any(states.values())}
