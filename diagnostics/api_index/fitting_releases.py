"""Narrow version requirements, such as `trl>=0.16.0`, so that the newest release in the range fits other packages.

Releases between the ends of the range are not all checked, and the search stops after 12 at one end. If none fits,
`fitting_changes` names the packages that must change, too. An installed package that lacks
names of the installed release of the package to change, too, is ignored, unless it is the caller.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping

from packaging.requirements import Requirement
from packaging.version import Version

from diagnostics.api_index import query
from diagnostics.api_index.query import Release
from diagnostics.versions import in_range

_MAX_TRIED = 12
_EXPERIMENTAL = "/experimental/"


def fitting_changes(
    changes: Iterable[str], installed: Mapping[str, str], caller: str, required: Iterable[Requirement] = ()
) -> tuple[str, ...]:
    """Return the changes, narrowed to releases that fit the installed ones.

    If none fits, return the first change with the packages that must change, too, as in `trl>=0.19.0 with another peft
    that fits`; nothing if no such package is known.

    Args:
        changes: Requirements, each of which is sufficient, such as `trl>=0.16.0`.
        installed: Known releases by package.
        caller: The package that uses the missing name; '' if unknown.
        required: Further requirements, which a log states.
    """
    required = list(required)
    checks = [FitCheck(change, installed, caller, required) for change in changes]
    narrowed = [found for check in checks if (found := check.narrowed_requirement())]
    return tuple(narrowed or [found for check in checks[:1] if (found := check.with_other_packages())])


class FitCheck:
    """Checks the releases of one requirement against the installed releases of other packages."""

    def __init__(
        self, change: str, installed: Mapping[str, str], caller: str, required: list[Requirement]
    ) -> None:
        requirement = Requirement(change)
        self._change, self._package = change, requirement.name
        releases = query.find_releases(self._package, "")
        companions = [Release(name, version) for name, version in installed.items() if name != self._package]
        if self._package in installed:
            # A missing name that the installed release lacks, too, is not the one to solve. The release before it
            # stands for one that is not in the index.
            in_use = installed[self._package]
            older = (item for item in releases if Version(item) <= Version(in_use))
            present = Release(self._package, next(older, in_use))
            companions = [
                it
                for it in companions
                if it.package == caller or not _contradict(it, present) or not _in_ranges(it, present)
            ]
        self._others = companions
        # Packages whose requirements the installed releases do not meet anyway.
        self._unmet = {
            item.package
            for item in companions
            if any(
                not query.is_in_ranges(item, Release(name, version)) for name, version in installed.items()
            )
        }
        self._ranges = [item.specifier for item in required if item.name == self._package]
        self._newest_first = [item for item in releases if in_range(item, requirement.specifier)]

    def narrowed_requirement(self) -> str:
        """Return the requirement, narrowed so that the newest release in it fits; '' if no such range is found."""
        ranges = [one for item in self._others for one in query.plain_ranges(item, self._package)]
        ranges += self._ranges
        releases = [item for item in self._newest_first if all(in_range(item, one) for one in ranges)]
        if not releases:
            return ""
        if releases[0] == self._newest_first[0] and not self._problems(releases[0]):
            is_narrower = "<" not in self._change and releases[-1] != self._newest_first[-1]
            return f"{self._package}>={releases[-1]}" if is_narrower else self._change
        if "<" in self._change or "==" in self._change:
            newest = next((item for item in releases[:_MAX_TRIED] if not self._problems(item)), "")
            if newest or ">" not in self._change:
                least = f">={releases[-1]}," if ">" in self._change else ""
                return f"{self._package}{least}<={newest}" if newest else ""
        oldest_first = releases[::-1]
        tried = (at for at, item in enumerate(oldest_first[:_MAX_TRIED]) if not self._problems(item))
        if (first := next(tried, None)) is None:
            return ""
        fitting = oldest_first[first:]
        last = fitting[bisect_left(fitting, True, key=lambda item: bool(self._problems(item))) - 1]
        return f"{self._package}>={fitting[0]},<={last}"

    def with_other_packages(self) -> str:
        """Return the requirement with releases of the packages that contradict it; '' if there are none.

        The nearest release counts for which they have fitting ones, or the nearest at all if there is none.
        """
        nearest = (self._newest_first[::-1] if ">" in self._change else self._newest_first)[:_MAX_TRIED]
        change, is_nearest = self._change, True
        for version in nearest:
            if not is_nearest:
                change = f"{self._package}{'>=' if '>' in self._change else '<='}{version}"
            companions = [self._companion(name, version) for name in self._problems(version)]
            if companions and all(companions):
                return f"{change} with {' and '.join(companions)}"
            is_nearest = False
        others = [f"another {name} that fits" for name in self._problems(nearest[0])] if nearest else []
        return f"{self._change} with {' and '.join(others)}" if others else ""

    def _companion(self, name: str, version: str) -> str:
        """Return a requirement on another package that fits a release: its release nearest in time; '' if none fits."""
        release = Release(self._package, version)
        candidates = [Release(name, item) for item in query.find_releases(name, "")]
        candidates = [item for item in candidates if _in_ranges(item, release)]
        candidates.sort(key=lambda item: abs(query.upload_day(item) - query.upload_day(release)))
        # Without an upper bound, an old package allows releases that came long after it.
        fitting = (
            item
            for item in candidates[:_MAX_TRIED]
            if not (query.plain_ranges(item, self._package) and query.compatibility(item, release).is_later)
            and not _contradict(item, release)
        )
        return next((f"{name}=={item.version}" for item in fitting), "")

    def _problems(self, version: str) -> list[str]:
        """Return the packages whose installed releases contradict a release."""
        release = Release(self._package, version)
        return [
            item.package
            for item in self._others
            if _contradict(item, release)
            or (item.package not in self._unmet and any(query.conflicts(item, release)))
        ]


def _in_ranges(first: Release, second: Release) -> bool:
    """Return whether each of two releases is in the ranges that the other one requires."""
    return query.is_in_ranges(first, second) and query.is_in_ranges(second, first)


def _contradict(first: Release, second: Release) -> bool:
    """Return whether required ranges, a published run, or names missing at import contradict two releases.

    Names that only experimental files use do not count.
    """
    if not _in_ranges(first, second):
        return True
    for user, provider in ((first, second), (second, first)):
        pair = query.compatibility(user, provider)
        if pair.run == "fails" or any(_EXPERIMENTAL not in item.use.file for item in pair.at_import):
            return True
    return False
