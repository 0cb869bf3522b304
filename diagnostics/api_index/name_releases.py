"""Compare the releases that define an API name with the release in use: too old or too new, and what to install.

`NameReleases.side_and_ranges` returns the side (`too old` or `too new`) and the ranges to install. Other methods state
them in sentences. `describe_spans` describes releases in words.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from itertools import chain

from packaging.version import Version

from diagnostics.api_index import query, store
from diagnostics.versions import parse_version

# Code that uses a name which existed for so long is older than the removal, rather than newer than the environment.
_LONG = timedelta(days=180)
# No package has a release before it that is worth a sentence.
_FIRST_RELEASE = Version("0.1")


def describe_spans(versions: Iterable[str], releases: Sequence[str]) -> str:
    """Describe some of a package's releases in words.

    >>> describe_spans(("1", "2", "4"), ["1", "2", "3", "4"])
    'from 1 to 2 and from 4 on'
    """
    texts = [_span_text(first, last, releases) for first, last in _spans(versions, releases)]
    return " and ".join(text if text.startswith("from ") else f"in {text}" for text in texts)


def _spans(versions: Iterable[str], releases: Sequence[str]) -> list[tuple[str, str]]:
    """Return the first and last release of each span of releases."""
    spans = store.spans_of([releases.index(version) for version in versions], len(releases)).split()
    bounds = (span.partition("-") for span in spans)
    return [(releases[int(first)], releases[int(last or -1)]) for first, _, last in bounds]


def _span_text(first: str, last: str, releases: Sequence[str]) -> str:
    if last == releases[-1]:
        return f"from {first} on"
    return first if first == last else f"from {first} to {last}"


def _range_text(first: str, last: str, newest: str) -> str:
    if last == newest:
        return f">={first}"
    return f"=={first}" if first == last else f">={first},<={last}"


@dataclass(frozen=True)
class NameReleases:
    """The releases of a package that have a name, and the release in use.

    Attributes:
        package: The package that should define the name.
        having: The releases that have the name, oldest first.
        installed: The release in use; '' if unknown.
        failing: The releases that may raise the error; empty if any without the name may.
    """

    package: str
    having: tuple[str, ...]
    installed: str = ""
    failing: tuple[str, ...] = ()

    @property
    def indexed(self) -> list[str]:
        """The indexed releases of the package, oldest first."""
        return store.load(self.package).releases

    @property
    def without(self) -> list[str]:
        """The releases that are not among those with the name."""
        return [version for version in self.indexed if version not in self.having]

    @property
    def has_installed(self) -> bool:
        """Whether the release in use has the name, or is not in the index and its neighbours there have it."""
        release = parse_version(self.installed)
        if release is None:
            return False
        having, releases = {*map(Version, self.having)}, [*map(Version, self.indexed)]
        older = [item for item in releases if item < release][-1:]
        newer = [item for item in releases if item > release][:1]
        return release in having or (bool(older) and release not in releases and {*older, *newer} <= having)

    @cached_property
    def side_and_ranges(self) -> tuple[str, tuple[str, ...]]:
        """`too old` or `too new` for the release in use, '' if undecided; and the nearest ranges that have the name.

        If the release in use is unknown, they are all ranges that have the name; if it has the name, there are none.
        """
        if not self.having or self.has_installed:
            return "", ()
        if parse_version(self.installed) is None:
            return self._side_of_unknown_release()
        older, newer = self._neighbours(self.installed, self.installed)
        return "" if newer and older else "too old" if newer else "too new", (*older, *newer)

    def _neighbours(self, first: str, last: str) -> tuple[list[str], list[str]]:
        """Return requirements on the nearest releases with the name before and after a span.

        A newer one has the major number of the release in use, if it can: other packages were made for that.
        """
        older = [item for item in self.having if Version(item) < Version(first)][-1:]
        newer = [item for item in self.having if Version(item) > Version(last)][:1]
        major, newest = Version(last).major, Version(self.indexed[-1]).major
        is_same = bool(self.installed and newer) and Version(newer[0]).major == major < newest
        end = f",<{major + 1}" if is_same else ""
        return [f"{self.package}<={item}" for item in older], [
            f"{self.package}>={item}{end}" for item in newer
        ]

    def _side_of_unknown_release(self) -> tuple[str, tuple[str, ...]]:
        """Return the side if the releases that may fail are on one side, and the ranges with the name, newest first."""
        newest, spans = self.indexed[-1], _spans(self.having, self.indexed)
        ranges = tuple(f"{self.package}{_range_text(*span, newest)}" for span in reversed(spans))
        reaches_newest = spans[0][1] == newest
        if self.failing and Version(self.failing[0]) > Version(self.having[-1]):
            return "too new", ranges
        if self.failing and Version(self.failing[-1]) < Version(self.having[0]):
            return "too old", ranges
        if len(spans) > 1 or (self.having[0] != self.indexed[0] and not reaches_newest):
            return "", ranges
        return "too old" if reaches_newest else "too new", ranges

    def statement(self, subject: str) -> str:
        """Return a sentence on the releases that have the name."""
        span = f"{self.package} from {self.indexed[0]} to {self.indexed[-1]}"
        if not self.having:
            return f"No {span} has {subject}."
        if not self.without:
            return f"Every {span} has {subject}."
        return f"{self.package} has {subject} {describe_spans(self.having, self.indexed)}."

    def describe_release_in_use(self, *, must_be_missing: bool = False, is_own: bool = False) -> str:
        """Return sentences on the release in use; empty if no release has the name.

        Args:
            must_be_missing: Whether the name must be absent, such as a removed argument; `having` then has the releases
                that lack it.
            is_own: Whether the name is the user's, so that releases before the index say nothing about it.
        """
        direction, oldest = self.side_and_ranges[0], self.indexed[0]
        show = f"Run pip show {self.package} to see its release."
        if self.installed and self.having:
            has_it = "does not have it" if self.has_installed == must_be_missing else "has it"
            return (
                f"The installed {self.package} {self.installed} {f'is {direction}' if direction else has_it}."
            )
        if not self.without:
            return f"So the {self.package} in use is older, or Python imports other code. {show}"
        if direction == "too old":
            return f"The {self.package} in use is older. {show}"
        is_first = self.having[:1] == (oldest,) and Version(oldest) >= _FIRST_RELEASE and not is_own
        older = f" (releases before {oldest} are not in the index)" if is_first else ""
        in_use = f"So the {self.package} in use is {direction}{older}."
        side = in_use if direction else self._changes_by_span()
        return f"{side} {show}" if self.having else ""

    def _changes_by_span(self) -> str:
        """Return a sentence for each span of failing releases, with the nearest releases that have the name.

        For one span, the sentence names only the span.
        """
        spans = _spans(self.failing or self.without, self.indexed)
        texts = [_span_text(first, last, self.indexed) for first, last in spans]
        changes = [" or ".join(chain(*self._neighbours(first, last))) for first, last in spans]
        if len(spans) == 1:
            return f"So the {self.package} in use is {texts[0]}."
        pairs = list(zip(texts, changes, strict=True))
        sentences = [f"If the {self.package} in use is {span}, take {change}." for span, change in pairs]
        if self.is_probably_too_new:
            probably = f"The {self.package} in use is probably {texts[-1]}, so too new: take {changes[-1]}."
            sentences = [probably, *sentences[:-1]]
        return " ".join(sentences)

    @property
    def is_probably_too_new(self) -> bool:
        """Whether the release in use is unknown, and the name was there for so long that its removal is the cause."""
        spans = _spans(self.having, self.indexed)
        if self.side_and_ranges[0] or self.installed or len(spans) != 1 or spans[0][1] == self.indexed[-1]:
            return False
        first, last = (query.upload_day(query.Release(self.package, version)) for version in spans[0])
        return last - first > _LONG
