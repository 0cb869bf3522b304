"""Load `rules.toml`: behaviour of vLLM that TRL relies on but that no name shows, and the releases that have it.

A rule applies to a range of TRL releases. Each of its cases has the range of vLLM releases that implement the behaviour
in one way, and says whether the rule then holds or breaks. No range includes a release whose source was not searched;
`evaluation/matrix/rule_releases.py` searches the lines of the rules in released wheels. `is_grpo_file` and
`is_needed_by_grpo` return whether a GRPO run reaches TRL's code. `broken_rules` yields the rules that a pair of
releases breaks, and `matching_cases` all that apply to it.
"""

import fnmatch
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from diagnostics.api_index.compare import MissingUse
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


class Case(Struct, frozen=True, forbid_unknown_fields=True):
    """One way in which engines implement the behaviour, recognised by source lines, and whether the rule then holds."""

    outcome: Literal["holds", "breaks"]
    why: str
    releases: str
    """The vLLM releases in which the lines of this case were found, and the lines of no earlier case."""
    vllm: tuple[SourceLine, ...]


class Rule(Struct, frozen=True, forbid_unknown_fields=True, rename={"cases": "case"}):
    """A behaviour that a trainer relies on, and the ways in which engines implemented it over time."""

    subject: str
    """The behaviour as one word, for reports."""
    statement: str
    """The behaviour as a sentence."""
    affected_runs: str
    """The runs that rely on the behaviour."""
    releases: str
    """The TRL releases in which the rule's lines were found."""
    trl: tuple[SourceLine, ...]
    cases: tuple[Case, ...]
    option: str = ""
    """Option of the runs that rely on the behaviour; '' if all runs do."""
    decided_types: tuple[str, ...] = ()
    """Attribute paths whose types the source does not show; a case decides about them."""


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


def matching_cases(trl: str, vllm: str) -> Iterator[tuple[Rule, Case | None]]:
    """Yield the rules that apply to a TRL release, each with the case of a vLLM release; None if no case has it."""
    for rule in project_rules().rule:
        if in_range(trl, rule.releases):
            yield rule, next((case for case in rule.cases if in_range(vllm, case.releases)), None)


def broken_rules(trl: str, vllm: str) -> Iterator[MissingUse]:
    """Yield the rules that a pair of releases breaks whatever options a run sets, as missing uses."""
    for rule, case in matching_cases(trl, vllm):
        if case and case.outcome == "breaks" and not rule.option:
            use = Use("rule", rule.subject, "", file=rule.trl[0].files[0], late=True)
            yield MissingUse(use, f"{rule.statement}; {case.why} ({rule.affected_runs})")
