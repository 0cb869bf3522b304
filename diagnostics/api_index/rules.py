"""Apply rules about behaviour that names do not show: each rule lists source lines to search for in both releases.

A rule applies to a trainer whose source has the rule's lines. The cases of the rule are tried in order: the first case
whose lines all occur in the engine's source says whether the rule holds or breaks. If no case matches, the behaviour of
this engine is unknown, and the pair is reported as not checked. `broken_rules` needs no source: it reads the ranges of
releases that each rule records. `is_grpo_file` and `is_needed_by_grpo` return whether a GRPO run reaches TRL's code.
"""

from __future__ import annotations

import fnmatch
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from diagnostics.api_index.compare import MissingUse
from diagnostics.api_index.surface import Sources
from diagnostics.api_index.uses import Use
from diagnostics.versions import in_range

PATH = Path(__file__).with_name("rules.toml")


class SourceLine(Struct, frozen=True, forbid_unknown_fields=True):
    """A line of source that must occur, or must not occur, in a release."""

    files: tuple[str, ...]
    """Files that may contain the line; a release need not have all of them."""
    text: str = ""
    """The source line, with any whitespace between its words; '' for the file itself."""
    absent: bool = False
    """Whether the line must occur in none of the files."""

    def find(self, sources: Sources) -> str | None:
        """Return the `file:line` of the text, or None if no file has it.

        If `absent`, return the first file, or None if a file has the text.
        """
        files = [file for file in self.files if file in sources.names()]
        for file in files:
            source = sources.read(file)
            match = _pattern(self.text).search(source)
            if match:
                return None if self.absent else f"{file}:{source.count(chr(10), 0, match.start()) + 1}"
        return (files or list(self.files))[0] if self.absent else None


class Case(Struct, frozen=True, forbid_unknown_fields=True):
    """One way in which engines implement the behaviour, recognised by source lines, and whether the rule then holds."""

    outcome: Literal["holds", "breaks"]
    why: str
    vllm: tuple[SourceLine, ...]
    releases: str = ""
    """For a case that breaks, the range of vLLM releases that were found to have its lines."""


class Rule(Struct, frozen=True, forbid_unknown_fields=True, rename={"cases": "case"}):
    """A behaviour that a trainer relies on, and the ways in which engines implemented it over time."""

    subject: str
    """The behaviour as one word, for reports."""
    statement: str
    """The behaviour as a sentence."""
    affected_runs: str
    """The runs that rely on the behaviour."""
    trl: tuple[SourceLine, ...]
    cases: tuple[Case, ...]
    releases: str = ""
    """The range of TRL releases that were found to have the rule's lines, for a case that breaks without `option`."""
    option: str = ""
    """Option of the runs that rely on the behaviour; '' if all runs do."""
    decided_types: tuple[str, ...] = ()
    """Attribute paths whose types the source does not show; a case decides about them."""


class Ruling(Struct, frozen=True):
    """The result of a rule for one pair of releases."""

    rule: Rule
    case: Case | None
    """The matching case; None if no case matches."""
    trl: str
    """The file:line in the trainer."""
    vllm: str
    """The file:line in the engine; empty if no case matches."""


class Rules(Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of `rules.toml`."""

    grpo_files: tuple[str, ...]
    """Patterns of the files of TRL that a GRPO run uses."""
    off_by_default: tuple[str, ...]
    """Options of TRL that a GRPO run need not set; a name that is used only with one of them may be missing."""
    rule: tuple[Rule, ...]


@cache
def project_rules() -> Rules:
    """Return the contents of `rules.toml`."""
    return msgspec.convert(tomllib.loads(PATH.read_text(encoding="utf-8")), Rules)


def is_grpo_file(file: str) -> bool:
    """Return whether a GRPO run uses a file of TRL."""
    return any(fnmatch.fnmatch(file, pattern) for pattern in project_rules().grpo_files)


def is_needed_by_grpo(use: Use) -> bool:
    """Return whether a GRPO run reaches a use in TRL's source whatever options it sets."""
    return is_grpo_file(use.file) and not use.option(project_rules().off_by_default)


def broken_rules(trl: str, vllm: str) -> Iterator[MissingUse]:
    """Yield the rules that a pair of releases breaks whatever options a run sets, as missing uses."""
    for rule in project_rules().rule:
        if not rule.option and in_range(trl, rule.releases):
            for case in rule.cases:
                if case.outcome == "breaks" and in_range(vllm, case.releases):
                    use = Use("rule", rule.subject, "", file=rule.trl[0].files[0], late=True)
                    yield MissingUse(use, f"{rule.statement}; {case.why} ({rule.affected_runs})")


def apply_rules(trainer: Sources, engine: Sources, rules: tuple[Rule, ...] | None = None) -> list[Ruling]:
    """Return the result of each rule that applies to this trainer; `rules=None` means those of `rules.toml`."""
    rulings = []
    for rule in project_rules().rule if rules is None else rules:
        location = _find_all(rule.trl, trainer)
        if location is not None:
            rulings.append(_decide(rule, location, engine))
    return rulings


def _decide(rule: Rule, location: str, engine: Sources) -> Ruling:
    """Return the ruling by the first case whose lines all occur in the engine's source, or without a case."""
    for case in rule.cases:
        proof = _find_all(case.vllm, engine)
        if proof is not None:
            return Ruling(rule, case, location, proof)
    return Ruling(rule, None, location, "")


def _find_all(lines: tuple[SourceLine, ...], sources: Sources) -> str | None:
    """Return the location of the first line if all lines are found; None otherwise."""
    locations = [line.find(sources) for line in lines]
    return None if None in locations else locations[0]


@cache
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(r"\s+".join(re.escape(word) for word in text.split()))
