"""Explain an error about a missing name: which releases define it, which packages use it, and the smallest change."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from packaging.version import Version

from diagnostics.api_index import query, store
from diagnostics.api_index.compare import condition_holds
from diagnostics.api_index.extract import MODEL_TYPES
from diagnostics.api_index.members import defines_method, find_member
from diagnostics.api_index.query import Release
from diagnostics.api_index.uses import CONFIGS, Use
from diagnostics.versions import parse_version

_ERRORS = (
    (re.compile(r"cannot import name '(?P<name>\w+)' from '(?P<module>[\w.]+)'"), "name"),
    (re.compile(r"No module named '(?P<module>\w+\.[\w.]+)'"), "module"),
    (re.compile(r"module '(?P<module>[\w.]+)' has no attribute '(?P<name>\w+)'"), "name"),
    (re.compile(r"type object '(?P<owner>\w+)' has no attribute '(?P<name>\w+)'"), "attribute"),
    (re.compile(r"'(?P<owner>[A-Z]\w+)' object has no attribute '(?P<name>\w+)'"), "attribute"),
    (
        re.compile(r"(?P<owner>\w+)(?:\.__init__)?\(\) got an unexpected keyword argument '(?P<name>\w+)'"),
        "argument",
    ),
    (
        re.compile(r"(?P<owner>\w+)\.(?P<method>\w+)\(\) got an unexpected keyword argument '(?P<name>\w+)'"),
        "argument",
    ),
    (re.compile(r"'(?P<model_type>[\w.-]+)' is already used by a Transformers config"), "registered"),
)
_LONGEST = 2000
_PROVIDERS = ("vllm", "transformers", "peft", "accelerate", "trl")
_CALLERS = 3


@dataclass(frozen=True)
class Caller:
    """A package that uses the missing name.

    Attributes:
        place: file:line of the use, in the newest release that has it.
        versions: Releases of the package that use the name, oldest first.
    """

    package: str
    place: str
    versions: tuple[str, ...]


@dataclass(frozen=True)
class Explanation:
    """The releases that define a missing name, the packages that use it, and possible changes.

    Attributes:
        subject: The name as source code would write it.
        provider: The package that should define the name.
        versions: The provider's releases that define the name, oldest first.
        callers: Packages that use the name.
        installed: The installed release of the provider; '' if unknown.
        direction: `too old` or `too new` for the installed release; '' if unknown.
        changes: Requirements, each of which is sufficient.
        model_type: The model type that was registered though transformers has it; '' if a name is missing.
    """

    subject: str
    provider: str
    versions: tuple[str, ...]
    callers: tuple[Caller, ...]
    installed: str = ""
    direction: str = ""
    changes: tuple[str, ...] = ()
    model_type: str = ""

    @property
    def headline(self) -> str:
        """Sentences that say which releases define the name and whether the installed one is too old or too new."""
        releases = _releases(self.provider)
        if self.model_type:
            taken = [version for version in releases if version not in self.versions]
            span = f"from {taken[0]} to {taken[-1]}"
            text = f"{self.provider} has the model type {self.model_type!r} itself {span}."
        elif not self.versions:
            text = f"No {self.provider} from {releases[0]} to {releases[-1]} has {self.subject}."
        elif len(self.versions) == len(releases):
            text = f"Every {self.provider} from {releases[0]} to {releases[-1]} has {self.subject}."
        else:
            text = f"{self.provider} has {self.subject} {_describe_spans(self.versions, releases)}."
        if self.installed and self.versions:
            fine = "does not have it" if self.model_type else "has it"
            state = f"is {self.direction}" if self.direction else fine
            text += f" The installed {self.provider} {self.installed} {state}."
        return text

    @property
    def sentences(self) -> str:
        """The headline, and sentences on the packages that use the name or register the model type."""
        verb = "registers" if self.model_type else "takes"
        callers = (
            f"{item.package} {item.versions[0]} to {item.versions[-1]} {verb} it ({item.place})."
            for item in self.callers[:_CALLERS]
        )
        return " ".join([self.headline, *callers])


def explain_missing(message: str, installed: Mapping[str, str] | None = None) -> Explanation | None:
    """Explain an exception's message; return None if it is not about a missing name of an indexed package.

    Args:
        message: Exception type and message, as Python prints them.
        installed: Known releases by package.
    """
    installed = installed or {}
    for use, provider in _candidates(message[:_LONGEST]):
        releases = (Release(provider, version) for version in _releases(provider))
        versions = tuple(
            release.version
            for release in releases
            if query.has_name(release, use) and defines_method(query.surface_of(release), use)
        )
        callers = tuple(_callers(provider, use, installed.get(provider, "")))
        if not callers and (not versions or use.kind == "registered"):
            continue
        if use.kind == "registered" and len(versions) == len(_releases(provider)):
            continue  # transformers has no such model type: another package registers it twice
        release = installed.get(provider, "")
        direction, changes = _changes(provider, versions, release)
        changes += [change for item in callers if (change := _newer_caller(item, installed))]
        model_type = use.path[0] if use.kind == "registered" else ""
        return Explanation(
            use.text, provider, versions, callers, release, direction, tuple(changes), model_type
        )
    return None


def _candidates(message: str) -> Iterator[tuple[Use, str]]:
    """Yield the uses that a message may refer to, each with the package that should define the name."""
    for pattern, kind in _ERRORS:
        match = pattern.search(message)
        parts = match.groupdict() if match else {}
        if "module" in parts:
            provider = next(
                (
                    item
                    for item in store.indexed_packages()
                    if query.module_of(item) == parts["module"].partition(".")[0]
                ),
                "",
            )
            if provider:
                yield Use("name", parts["module"], parts.get("name") or ""), provider
        elif "model_type" in parts:
            yield Use(kind, CONFIGS, MODEL_TYPES, (parts["model_type"],)), "transformers"
        elif parts:
            path = tuple(filter(None, (parts.get("method"), parts["name"])))
            matching_uses = (
                (Use(kind, use.module, use.name, path), name)
                for name in _PROVIDERS
                for _package, _file, use, _spans in _uses_of_all(name, f'"{parts["owner"]}"')
                if (use.name, use.path, use.kind) == (parts["owner"], path, kind)
            )
            yield from dict.fromkeys(matching_uses)
            if member := find_member(kind, parts["owner"], path, _PROVIDERS):
                yield member


def _uses_of_all(provider: str, text: str) -> Iterator[tuple[str, str, Use, dict[str, int]]]:
    """Yield the uses of a provider in all packages that contain a text, as (package, file, use, spans)."""
    for package in store.indexed_packages():
        index = store.load(package)
        documents = index.document(f"uses-{provider}") if index else {}
        for file, packed in documents.items():
            for key, lines in packed.items():
                if text in key:
                    yield (
                        package,
                        file,
                        Use.from_key(key, file, 0),
                        lines if isinstance(lines, dict) else {"0-": lines},
                    )


def _callers(provider: str, target: Use, installed: str) -> Iterator[Caller]:
    """Yield the packages that use a name without an alternative, with the newest place of the use."""
    by_package: dict[str, dict[int, str]] = {}
    version = parse_version(installed)
    versions = {query.module_of(provider): version} if version else {}
    text = f'"{target.name}"' if target.name else f'"{target.module}'
    for package, file, use, lines in _uses_of_all(provider, text):
        reached = all(condition_holds(item, versions) is not False for item in use.conditions)
        if not _is_same_use(use, target) or not reached or use.choice:
            continue
        index = store.load(package)
        count = len(index.releases) if index else 0
        for spans, line in lines.items():
            for number in store.expand_spans(spans, count):
                by_package.setdefault(package, {})[number] = f"{file}:{line}"
    for package, places in by_package.items():
        numbers = sorted(places)
        yield Caller(package, places[numbers[-1]], tuple(_releases(package)[number] for number in numbers))


def _is_same_use(use: Use, target: Use) -> bool:
    if not target.name:
        return f"{use.module}.".startswith(f"{target.module}.")
    same_name = (use.module, use.name) == (target.module, target.name)
    return same_name and use.path[: len(target.path)] == target.path


def _describe_spans(versions: tuple[str, ...], releases: list[str]) -> str:
    """Return in words which of a package's releases are meant.

    >>> _describe_spans(("1", "2", "4"), ["1", "2", "3", "4"])
    'from 1 to 2 and from 4 on'
    """
    spans = store.spans_of([releases.index(version) for version in versions], len(releases)).split()
    texts = []
    for first, _, last in (span.partition("-") for span in spans):
        until = f"to {releases[int(last)]}" if last else "on"
        texts.append(
            f"in {releases[int(first)]}" if first == last else f"from {releases[int(first)]} {until}"
        )
    return " and ".join(texts)


def _releases(package: str) -> list[str]:
    index = store.load(package)
    return index.releases if index else []


def _changes(provider: str, versions: tuple[str, ...], installed: str) -> tuple[str, list[str]]:
    """Return whether the installed release is too old or too new, and the nearest range that defines the name."""
    known = parse_version(installed)
    if known is None:
        return "", []
    newer = [version for version in versions if Version(version) > known]
    older = [version for version in versions if Version(version) < known]
    if known in map(Version, versions) or not versions:
        return "", []
    if newer:
        return "too old", [f"{provider}>={newer[0]}"]
    return "too new", [f"{provider}<={older[-1]}"]


def _newer_caller(caller: Caller, installed: Mapping[str, str]) -> str:
    """Return the requirement of the first later release of an installed caller without the use; '' if there is none."""
    releases = _releases(caller.package)
    if installed.get(caller.package) not in caller.versions or caller.versions[-1] == releases[-1]:
        return ""
    return f"{caller.package}>={releases[releases.index(caller.versions[-1]) + 1]}"
