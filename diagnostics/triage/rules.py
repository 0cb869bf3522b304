"""Compile the catalog's signatures into rules for one pass over a log.

Each match of a pattern contains one of its anchors, which are literal texts. So a line without an anchor is skipped,
unless it belongs to a traceback or to torchrun's table. Other anchors find lines that matter for other reasons:
tracebacks, errors, releases (see `line_patterns.py`).
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import re2

from diagnostics.catalog import pattern_literals, signatures
from diagnostics.catalog.model import Issue
from diagnostics.catalog.search import CatalogSearch
from diagnostics.logs.prefixes import parse_line
from diagnostics.logs.tracebacks import HEADER
from diagnostics.triage import line_patterns
from diagnostics.triage.log_facts import Hits

# The beginning of a frame, also with a quotation mark escaped for JSON or HTML.
FRAME_PATTERN = r'  File ["\\&]'
# After this number of matches an anchor is no longer searched, so the counts of its rules are lower bounds.
MAX_HITS = 400
# Name of the anchor that joins `line_patterns.ANCHOR_PATTERNS`.
_FACTS = "facts"


@dataclass(frozen=True)
class Rule:
    """One pattern of a known issue's signature; `key` is the signature's list with it: `any`, `all` or `none`."""

    code: str
    key: str
    pattern: str


class Rules:
    """The patterns of the known issues: a set for matching a line, and anchors for searching a block of the log.

    Attributes:
        issues: The known issues by code.
        rules: One rule for each pattern.
        warned: Codes of issues with a matching sample that contains a harmless line: a warning or lower, or a retry.
        by_anchor: For each literal text, the indexes of the rules that may match a line with this text.
        anchors: Each anchor by name, as an RE2 pattern; the name of a plain text is the text itself. A line without
            any anchor needs no check.
        set: Finds the rules that match a line.
        prefilter: The compiled anchors.
    """

    def __init__(self, issues: dict[str, Issue]) -> None:
        self.issues = issues
        self.rules: list[Rule] = []
        self.warned: set[str] = set()
        self.by_anchor: dict[str, list[int]] = {}
        for code, issue in self.issues.items():
            if issue.signature:
                for key in ("any", "all", "none"):
                    self.rules += [Rule(code, key, pattern) for pattern in getattr(issue.signature, key)]
                texts = [it.text for it in issue.signature.samples if it.matches]
                if any(parse_line(line).is_harmless for text in texts for line in text.splitlines()):
                    self.warned.add(code)
        packed_literals = pattern_literals()
        for index, rule in enumerate(self.rules):
            literals = packed_literals.get(rule.pattern) or signatures.required_literals(
                rule.code, rule.pattern
            )
            for text in literals:
                self.by_anchor.setdefault(signatures.longest_plain_part(text), []).append(index)
        self.set = signatures.PatternSet([rule.pattern for rule in self.rules], self.by_anchor)
        plain = [*sorted(self.by_anchor), HEADER, *line_patterns.ANCHORS]
        self.anchors = {text: re2.escape(text) for text in plain}
        self.anchors |= {FRAME_PATTERN: FRAME_PATTERN, _FACTS: "|".join(line_patterns.ANCHOR_PATTERNS)}
        self.prefilter = signatures.compile_any(list(self.anchors.values()))

    @cached_property
    def issue_search(self) -> CatalogSearch:
        """The search index of the known issues; built on first use."""
        return CatalogSearch(self.issues)


class AnchorSearch:
    """Searches blocks for anchors; an anchor is dropped at its 400th match, except those of tracebacks.

    Its rules with fewer than 100 matches are then searched by their own patterns, so that a noisy log does not hide a
    failure at its end.
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._anchors = dict(rules.anchors)
        self._counts: Counter[str] = Counter()
        # Compiled once for all logs: for 2,000 small logs, compiling took half of the time.
        self._automaton: Any = rules.prefilter

    def search(self, data: bytes, position: int) -> Any:
        """Return the next match of an anchor from a position on; None if there is none."""
        return self._automaton.search(data, position) if self._anchors else None

    def count(self, match: bytes, hits: Mapping[int, Hits]) -> None:
        """Count a match of an anchor, and drop the anchor if it has matched MAX_HITS times."""
        text = match.decode("utf-8", "replace")
        if text == HEADER or text.startswith("  File "):
            return
        name = text if text in self._rules.anchors else _FACTS
        self._counts[name] += 1
        if self._counts[name] == MAX_HITS:
            indexes = self._rules.by_anchor.get(name, ())
            rare = [at for at in indexes if at not in hits or hits[at].count < MAX_HITS // 4]
            patterns = {f"(?m:{self._rules.rules[at].pattern})" for at in rare}
            self._anchors |= {pattern: pattern for pattern in sorted(patterns)}
            self.drop({name})

    def drop(self, names: set[str]) -> None:
        """Stop searching for the anchors with these names."""
        self._anchors = {name: anchor for name, anchor in self._anchors.items() if name not in names}
        if self._anchors:
            self._automaton = signatures.compile_any(list(self._anchors.values()))
