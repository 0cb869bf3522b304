"""Find the new name of an option, name, attribute or argument that a later release of a package does not have."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from difflib import SequenceMatcher

from diagnostics.api_index import query
from diagnostics.api_index.compare import Lookup
from diagnostics.api_index.name_releases import NameReleases
from diagnostics.api_index.uses import Use

_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_CLOSE = 0.8


def find_new_name(
    old: str, releases: NameReleases, names_in: Callable[[str], Collection[str]]
) -> tuple[str, str]:
    """Return (new name, first release without the old one); ('', '') unless exactly one name is similar.

    A name that came in the release without the old one is preferred to one that both names' releases share.

    Args:
        old: The name.
        releases: The releases that have it.
        names_in: Function that returns the names of the same kind that a release has.
    """
    if releases.side_and_ranges[0] != "too new" and not releases.is_probably_too_new:
        return "", ""
    last, first = releases.having[-1], releases.having[0]
    number = releases.indexed.index(last) + 1
    if number == len(releases.indexed):
        return "", ""
    version = releases.indexed[number]
    is_private = old.startswith("_")
    present = {name for name in names_in(version) if name.startswith("_") is is_private and "." not in name}
    came_then = [name for name in present - {*names_in(last)} if _is_similar(old, name)]
    came_before = [name for name in present - {*names_in(first)} if _is_shorter(old, name)]
    found = came_then or came_before
    return (found[0], version) if len(found) == 1 else ("", "")


def names_beside(use: Use, package: str) -> Callable[[str], Collection[str]]:
    """Return a function that returns the names in the module, class or call of a use, by release."""

    def names_in(version: str) -> Collection[str]:
        api = query.api_with_companions(query.Release(package, version))
        if use.kind == "name":
            # A name that the module only imports is none of its own.
            entries = api.facts(use.module).items()
            return [name for name, entry in entries if not entry.lstrip("?").startswith("import ")]
        definition = api.find(use.module, use.name)
        if definition is None:
            return ()
        if use.kind == "attribute":
            return api.members(definition).names
        signature = Lookup(api).signature(use, definition)
        return signature.names if signature else ()

    return names_in


def _words(name: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(name)]


def _is_similar(old: str, new: str) -> bool:
    """Return whether one name has the words of the other one and ends like it, or both are spelt almost alike."""
    first, second = _words(old), _words(new)
    is_part = first[-1:] == second[-1:] and (set(first) <= set(second) or set(second) <= set(first))
    is_longer = min(len(old), len(new)) > 2 and (new.startswith(old) or old.startswith(new))
    return is_part or is_longer or SequenceMatcher(None, old.lower(), new.lower()).ratio() >= _CLOSE


def _is_shorter(old: str, new: str) -> bool:
    """Return whether a name leaves out words, but not the last, or letters at the ends of words."""
    first, second = _words(old), _words(new)
    if len(first) == len(second):
        return all(one.startswith(other) for one, other in zip(first, second, strict=True))
    return bool(second) and first[-1:] == second[-1:] and set(second) < set(first)
