"""The first look at a block: which places are worth a second one; what is seen too often is no longer looked for."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from diagnostics.catalog import literal_prefilter
from diagnostics.triage import facts
from diagnostics.triage.rules import unquoted
from diagnostics.triage.tracebacks import HEADER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from diagnostics.triage.rules import Rules
    from diagnostics.triage.seen import Hits

# An anchor seen so often says nothing new: it is no longer looked for, and its count is a lower bound.
MOST_HITS = 400
# So many lines are looked at for patterns whose anchors are in too many lines that they don't match.
_MOST_RAW = 4000
_FACTS = "facts"
_RAW = "raw"


class FirstLook:
    """Searches for anchors and counts them.

    An anchor that was in 400 lines is dropped. Where most of those were not what its patterns are about, the patterns
    take its place, so that a noisy log does not hide what comes late in it.
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._anchors = list(rules.anchors)
        # Made once for all logs: of 2,000 small ones it was half of the time.
        self._texts = rules.texts
        self._raw: set[str] = set()
        self._counts: Counter[str] = Counter()
        self._automaton: Any = rules.prefilter
        self._facts: Any = rules.facts

    def search(self, data: bytes, position: int) -> Any:
        """The next match of an anchor, or None."""
        return self._automaton.search(data, position) if self._anchors else None

    def count(self, found: bytes, hits: Mapping[int, Hits]) -> None:
        """Counts what was found, and drops it once it has been seen too often."""
        text = found.decode("utf-8", "replace")
        if text == HEADER or (text.startswith("  File ") and len(text) == 8):
            return
        name = text if text in self._texts else self._group(text)
        self._counts[name] += 1
        if name == _RAW:
            if self._counts[name] % MOST_HITS == 0:
                self._drop_seen(hits, everything=self._counts[name] >= _MOST_RAW)
        elif self._counts[name] == MOST_HITS:
            self._replace(name, hits)

    def drop(self, names: set[str]) -> None:
        """Looks for these no longer; names are texts or patterns."""
        self._anchors = [anchor for anchor in self._anchors if not {anchor, unquoted(anchor)} & names]
        if self._anchors:
            self._automaton = literal_prefilter.any_of(self._anchors)

    def _group(self, text: str) -> str:
        return _FACTS if not self._raw or self._facts.match(text.encode()) else _RAW

    def _replace(self, name: str, hits: Mapping[int, Hits]) -> None:
        """Takes the patterns that need an anchor instead of it, but for those that have matched often enough."""
        patterns = {
            f"(?m:{self._rules.rules[index].pattern})"
            for index in self._rules.by_anchor.get(name, ())
            if (index not in hits or hits[index].count < MOST_HITS // 4)
        }
        self._raw |= patterns
        self._anchors += sorted(patterns - set(self._anchors))
        self.drop(set(facts.ANCHOR_PATTERNS) if name == _FACTS else {name})

    def _drop_seen(self, hits: Mapping[int, Hits], *, everything: bool) -> None:
        often = {
            f"(?m:{self._rules.rules[index].pattern})"
            for index, found in hits.items()
            if found.count >= MOST_HITS
        }
        gone = self._raw if everything else self._raw & often
        self._raw -= gone
        if gone:
            self.drop(set(gone))
