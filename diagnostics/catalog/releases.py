"""Releases against ranges, where either may be a text that is none."""

from __future__ import annotations

from functools import cache

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version


def within(release: str, versions: str | SpecifierSet) -> bool:
    """Whether a release is in a range, release candidates included; what nobody can read is in none.

    >>> within("0.8.5.post1", ">=0.8,<0.9"), within("dev", ">=0.8")
    (True, False)
    """
    wanted = _parsed(versions) if isinstance(versions, str) else versions
    try:
        return wanted.contains(Version(release), prereleases=True)
    except InvalidVersion:
        return False


def readable(release: str) -> bool:
    """Whether a text is a release at all.

    >>> readable("0.8.5.post1"), readable("dev")
    (True, False)
    """
    try:
        Version(release)
    except InvalidVersion:
        return False
    return True


@cache
def _parsed(versions: str) -> SpecifierSet:
    """Entries are asked again and again; reading the text is what takes time."""
    return SpecifierSet(versions)
