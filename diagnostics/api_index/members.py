"""Find the class that an error names without its module, and the indexed package that defines its missing member."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from diagnostics.api_index import query, store
from diagnostics.api_index.compare import Lookup
from diagnostics.api_index.query import Release
from diagnostics.api_index.surface import Surface
from diagnostics.api_index.uses import Use


def find_member(
    kind: str, owner: str, path: tuple[str, ...], providers: Collection[str]
) -> tuple[Use, str] | None:
    """Return a class's member as a use, and the package that defines it; None unless exactly one package can be meant.

    A package can be meant if each of its releases has at most one class of that name, apart from its subclasses, and if
    some releases are known to have the member and others to lack it.

    Args:
        kind: `attribute` or `argument`, as in Use.
        owner: Name of the class.
        path: The attribute; or the method, if any, and the argument.
        providers: Packages that others build on; of several packages with such a class, one of these is meant.
    """
    found = []
    for package in store.indexed_packages():
        module = _find_module(package, owner)
        use = Use(kind, module, owner, path)
        if module and _differs_by_release(package, use):
            found.append((use, package))
    if len(found) > 1:
        found = [item for item in found if item[1] in providers]
    return found[0] if len(found) == 1 else None


def _find_module(package: str, owner: str) -> str:
    """Return the module from which most releases can import a class; '' if a release has two unrelated such classes."""
    index = store.load(package)
    if index is None:
        return ""
    defined = {module: set(_releases_with_class(index, module, owner)) for module in index.find_name(owner)}
    defined = {module: places for module, places in defined.items() if places}
    surfaces = [query.surface_of(Release(package, version)) for version in index.releases]
    bases = {
        module: places
        for module, places in defined.items()
        if not _extends_namesake(surfaces[max(places)], module, owner)
    }
    numbers = [number for places in bases.values() for number in places]
    if not numbers or len(numbers) > len(set(numbers)):
        return ""
    return max(
        sorted(bases), key=lambda module: sum(bool(item and item.find(module, owner)) for item in surfaces)
    )


def _extends_namesake(surface: Surface | None, module: str, owner: str) -> bool:
    """Return whether a class inherits from a class of the same name."""
    definition = surface.find(module, owner) if surface else None
    if surface is None or definition is None:
        return False
    return any(
        item and item.name == owner for item in surface.class_and_bases(definition) if item != definition
    )


def _releases_with_class(index: store.Package, module: str, owner: str) -> Iterator[int]:
    """Yield the numbers of the releases in which a module defines the class."""
    entry = index.packed(module).get(owner, "")
    texts: Mapping[str, str] = entry if isinstance(entry, dict) else {index.life(module): entry}
    for spans, text in texts.items():
        if text.lstrip("?").startswith("class"):
            yield from store.expand_spans(spans, len(index.releases))


def _differs_by_release(package: str, use: Use) -> bool:
    """Return whether some releases have the member, others lack it, and none is undecided."""
    results = set()
    for version in query.find_releases(package, ""):
        surface = query.surface_of(Release(package, version))
        if surface is None or surface.find(use.module, use.name) is None or not defines_method(surface, use):
            continue
        lookup = Lookup(surface)
        results.add(bool(lookup.problem(use)))
        if lookup.unfollowed:
            return False
    return len(results) > 1


def defines_method(surface: Surface | None, use: Use) -> bool:
    """Return whether a release defines the method whose argument is used; true for any other use."""
    if use.kind != "argument" or len(use.path) < 2:
        return True
    definition = surface.find(use.module, use.name) if surface else None
    if surface is None or definition is None:
        return False
    return not definition.is_class or use.path[0] in surface.members(definition).names
