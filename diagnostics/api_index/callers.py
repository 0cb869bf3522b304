"""Find the packages whose code uses a name, and the locations of these uses.

`find_callers` returns them. `recorded_uses` yields the recorded uses whose key contains a text.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from diagnostics.api_index import query, store
from diagnostics.api_index.compare import condition_holds
from diagnostics.api_index.uses import Use
from diagnostics.versions import parse_version


@dataclass(frozen=True)
class Caller:
    """A package that uses a missing name.

    Attributes:
        location: file:line of the use, in the newest release that has it.
        versions: Releases of the package that use the name, oldest first.
        verb: What the package does with the name.
    """

    package: str
    location: str
    versions: tuple[str, ...]
    verb: str = "is known to use"

    @property
    def span(self) -> str:
        """The first and the last release that use the name."""
        return " to ".join(dict.fromkeys((self.versions[0], self.versions[-1])))

    def change(self, installed: Mapping[str, str], caller: str, direction: str) -> str:
        """Return a requirement on the package so that it does not use the name; '' if none is known or needed.

        The package needs it if its installed release, or its code in the traceback, uses the name. If the provider of
        the name is too old, an older release of the package is meant, otherwise a newer one.
        """
        releases = store.load(self.package).releases
        first, last = (releases.index(version) for version in (self.versions[0], self.versions[-1]))
        if installed.get(self.package) not in self.versions and self.package != caller:
            return ""
        if direction == "too old":
            return f"{self.package}<={releases[first - 1]}" if first else ""
        return f"{self.package}>={releases[last + 1]}" if self.versions[-1] != releases[-1] else ""


def recorded_uses(provider: str, text: str) -> Iterator[tuple[str, str, Use, dict[str, int]]]:
    """Yield each recorded use of a provider whose key contains a text, as (package, file, use, {spans: line})."""
    for package in store.indexed_packages():
        for file, packed in store.load(package).document(f"uses-{provider}").items():
            for key, lines in packed.items():
                if text in key:
                    spans = lines if isinstance(lines, dict) else {"0-": lines}
                    yield package, file, Use.from_key(key, file, 0), spans


def find_callers(provider: str, target: Use, failing: Iterable[str]) -> Iterator[Caller]:
    """Yield the packages that use a name without an alternative, with the newest location of the use.

    Args:
        provider: Package that should define the name.
        target: The use that fails.
        failing: Releases of the provider that may be in use; a use under conditions that none of them meets is left
            out.
    """
    by_package: dict[str, dict[int, str]] = {}
    versions = [{query.module_of(provider): version} for version in filter(None, map(parse_version, failing))]
    text = f'"{target.name}"' if target.name else f'"{target.module}'
    for package, file, use, lines in recorded_uses(provider, text):
        reached = any(
            all(condition_holds(item, known) is not False for item in use.conditions)
            for known in versions or [{}]
        )
        if not _is_same_use(use, target) or not reached or use.choice:
            continue
        for spans, line in lines.items():
            for number in store.expand_spans(spans, len(store.load(package).releases)):
                by_package.setdefault(package, {})[number] = f"{file}:{line}"
    verb = "registers" if target.kind == "registered" else "is known to use"
    for package, places in by_package.items():
        numbers = sorted(places)
        releases = tuple(store.load(package).releases[number] for number in numbers)
        yield Caller(package, places[numbers[-1]], releases, verb)


def _is_same_use(use: Use, target: Use) -> bool:
    """Return whether a use needs the name and attributes of the target; for a module, that module or one in it."""
    if not target.name:
        return f"{use.module}.".startswith(f"{target.module}.")
    same_name = (use.module, use.name) == (target.module, target.name)
    return same_name and use.path[: len(target.path)] == target.path
