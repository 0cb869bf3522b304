"""The catalogue's signatures made ready for a pass over a log."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from diagnostics.catalog import literal_prefilter
from diagnostics.catalog.loader import pattern_literals
from diagnostics.triage import facts
from diagnostics.triage.leads import Fragments
from diagnostics.triage.nearest import Index, Messages
from diagnostics.triage.reading.prefixes import clean
from diagnostics.triage.tracebacks import HEADER

if TYPE_CHECKING:
    from diagnostics.catalog.model import Issue, LogSample

_ESCAPED = re.compile(r"\\(x[0-9a-f]{2}|.)")
# A frame, also where its quotation mark is written out for JSON or HTML.
FRAME_PATTERN = r'  File ["\\&]'


@dataclass(frozen=True)
class Rule:
    """One pattern of one signature; `key` is `any`, `all` or `none`."""

    code: str
    key: str
    pattern: str


@dataclass
class Rules:
    """All patterns, as a set for one line and as anchors for a block.

    Attributes:
        warned: Codes of issues that show in lines which a logger calls a warning, or less, by their own samples.
        by_anchor: The rules that may match where a text is found.
        anchors: RE2 patterns without groups; a line without any of them is of no interest.
        texts: What the anchors among them find that are texts.
    """

    issues: dict[str, Issue] = field(repr=False)
    rules: list[Rule] = field(default_factory=list, repr=False)
    warned: set[str] = field(default_factory=set, repr=False)
    by_anchor: dict[str, list[int]] = field(default_factory=dict, repr=False)
    anchors: list[str] = field(default_factory=list, repr=False)
    texts: frozenset[str] = field(default_factory=frozenset, repr=False)

    def __post_init__(self) -> None:
        for code, issue in self.issues.items():
            if issue.signature:
                for key in ("any", "all", "none"):
                    self.rules += [Rule(code, key, pattern) for pattern in getattr(issue.signature, key)]
                if any(_in_a_warning(sample) for sample in issue.signature.samples if sample.matches):
                    self.warned.add(code)
        known = pattern_literals()
        for index, rule in enumerate(self.rules):
            for text in known.get(rule.pattern) or literal_prefilter.required_literals(
                rule.code, rule.pattern
            ):
                self.by_anchor.setdefault(literal_prefilter.longest_plain_part(text), []).append(index)
        self.set = literal_prefilter.PatternSet([rule.pattern for rule in self.rules], self.by_anchor)
        self.anchors = [
            *sorted(map(_quoted, self.by_anchor)),
            _quoted(HEADER),
            FRAME_PATTERN,
            *map(_quoted, facts.ANCHORS),
            *facts.ANCHOR_PATTERNS,
        ]
        self.texts = frozenset(map(unquoted, self.anchors)) - set(map(unquoted, facts.ANCHOR_PATTERNS))
        self.prefilter = literal_prefilter.any_of(self.anchors)
        self.facts = literal_prefilter.any_of(list(facts.ANCHOR_PATTERNS))

    @cached_property
    def fragments(self) -> Fragments:
        """The entries in pieces, made when a log first needs them."""
        return Fragments(self.issues)

    @cached_property
    def index(self) -> Index:
        """The entries by their words, made when a log first needs them."""
        return Index(self.issues)

    @cached_property
    def messages(self) -> Messages:
        """The lines of samples of roots, made when a log first needs them."""
        return Messages(
            (code, line.text)
            for code, issue in self.issues.items()
            if issue.signature and issue.signature.role == "root"
            for sample in issue.signature.samples
            if sample.matches
            for line in map(clean, sample.text.splitlines())
            if 'File "' not in line.text and not self.follows(line.text)
        )

    def follows(self, text: str) -> bool:
        """Whether a line only says what follows from some root."""
        roles = (self.issues[self.rules[index].code].signature for index in self.set.match(text))
        return any(signature and signature.role != "root" for signature in roles)


def _in_a_warning(sample: LogSample) -> bool:
    return any(clean(line).harmless for line in sample.text.splitlines())


def unquoted(anchor: str) -> str:
    """The text that a quoted anchor finds."""
    return _ESCAPED.sub(lambda match: chr(int(match[1][1:], 16)) if len(match[1]) > 1 else match[1], anchor)


def _quoted(text: str) -> str:
    """A text as a pattern of bytes: RE2 reads the UTF-8 of it letter by letter."""
    return "".join(map(_quoted_letter, text))


def _quoted_letter(letter: str) -> str:
    if letter.isalnum() or not letter.isascii():
        return letter
    return f"\\{letter}" if letter.isprintable() else f"\\x{ord(letter):02x}"
