"""Rules of behaviour, which no name tells: data with the lines of source that show them, looked up in both releases.

A rule speaks of a trainer whose source has its lines. Its cases are tried in order: the first whose lines all stand in
the engine's source says whether the way holds or breaks. Where none fits, nobody has read this engine for it, and the
pair is not judged.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from diagnostics.tables import Table, TableSource

if TYPE_CHECKING:
    from diagnostics.matrix.build.sources import Sources

PATH = Path(__file__).with_name("rules.toml")
HOLDS, BREAKS = "holds", "breaks"


@dataclass(frozen=True)
class Line:
    """A line of source, or the absence of one."""

    files: tuple[str, ...]
    """Where it may stand; the files of which a release has none are looked at."""
    text: str
    """As written, whatever blanks and line ends lie between its words; '' for the file itself."""
    absent: bool = False
    """It stands in none of the files, of which there may be none."""

    def place(self, sources: Sources) -> str | None:
        """Returns file:line of what is asked for, a file of which something is absent, None if it isn't so."""
        there = [file for file in self.files if file in sources.names()]
        for file in there:
            found = _pattern(self.text).search(text := sources.read(file))
            if found and not self.absent:
                return f"{file}:{text.count(chr(10), 0, found.start()) + 1}"
            if found:
                return None
        return (there or list(self.files))[0] if self.absent else None


@dataclass(frozen=True)
class Case:
    """What one kind of engine does."""

    outcome: str
    """`holds` or `breaks`."""
    why: str
    vllm: tuple[Line, ...]


@dataclass(frozen=True)
class Rule:
    """One way of a trainer, and how engines took it over time."""

    subject: str
    """What the trainer relies on, as one word."""
    says: str
    way: str
    """Which runs go there."""
    option: str
    """Reached only by a run with this, '' by any that goes the way."""
    settles: tuple[str, ...]
    """Attribute paths that end or lead on where source tells no type, and that a case answers for."""
    trl: tuple[Line, ...]
    cases: tuple[Case, ...]


@dataclass(frozen=True)
class Ruling:
    """What a rule comes to in one pair."""

    rule: Rule
    case: Case | None
    """None where no case fits."""
    trl: str
    """file:line of the trainer."""
    vllm: str
    """file:line of the engine."""


def rulings(trainer: Sources, engine: Sources, rules: tuple[Rule, ...] | None = None) -> list[Ruling]:
    """Returns what each rule that speaks of this trainer comes to with this engine."""
    found = []
    for rule in known() if rules is None else rules:
        where = _all(rule.trl, trainer)
        if where is not None:
            found.append(_ruling(rule, where, engine))
    return found


def _ruling(rule: Rule, where: str, engine: Sources) -> Ruling:
    for case in rule.cases:
        there = _all(case.vllm, engine)
        if there is not None:
            return Ruling(rule, case, where, there)
    return Ruling(rule, None, where, "")


def _all(lines: tuple[Line, ...], sources: Sources) -> str | None:
    """Returns where the first of the lines stands if all of them do."""
    places = []
    for line in lines:
        place = line.place(sources)
        if place is None:
            return None
        places.append(place)
    return places[0]


@cache
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(r"\s+".join(re.escape(word) for word in text.split()))


@cache
def known() -> tuple[Rule, ...]:
    """Returns the rules of the project."""
    text = PATH.read_text(encoding="utf-8")
    table = Table(TableSource(PATH, text), (), tomllib.loads(text))
    found = tuple(_rule(item) for item in table.items("rule"))
    table.close()
    return found


def _rule(table: Table) -> Rule:
    found = Rule(
        subject=table.take("subject", str, required=True),
        says=table.take("says", str, required=True),
        way=table.take("way", str, required=True),
        option=table.take("option", str, ""),
        settles=table.strings("settles"),
        trl=tuple(_line(item) for item in table.items("trl")),
        cases=tuple(_case(item) for item in table.items("case")),
    )
    if len(found.subject.split()) != 1:
        raise table.refuse("subject", "one word")
    table.close()
    return found


def _case(table: Table) -> Case:
    found = Case(
        outcome=table.take("outcome", str, required=True),
        why=table.take("why", str, required=True),
        vllm=tuple(_line(item) for item in table.items("vllm")),
    )
    if found.outcome not in {HOLDS, BREAKS}:
        raise table.refuse("outcome", f"{HOLDS} or {BREAKS}")
    table.close()
    return found


def _line(table: Table) -> Line:
    found = Line(
        table.strings("files"), table.take("text", str, ""), table.take("absent", bool, default=False)
    )
    table.close()
    return found
