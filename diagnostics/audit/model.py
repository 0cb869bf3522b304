"""What an audit says: one answer a class of faults, and what was not asked. Data alone; report/audits makes sentences.

The sentence of an answer is the template of its family, and that of a fact the one of its name: `report/audits/live.py`
and `recorded.py` hold them. A template speaks of values by name, so what a sentence says stands beside it as data.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

FAULT, CLEAN, NOT_DECIDED, MASKED, NOT_ASKED = "fault", "clean", "not_decided", "masked", "not_asked"
OUTCOMES = (FAULT, CLEAN, NOT_DECIDED, MASKED, NOT_ASKED)
LIVE, RECORDED, RUNNING = "live", "recorded", "running"


@dataclass(frozen=True)
class Fact:
    """Something that was seen, with its values; a sentence is made of it when it is shown.

    Attributes:
        name: Which template of report/audits tells it.
        values: What the template speaks of, by name: texts and numbers.
        place: Where it was seen: an endpoint, a file and its line; empty where that goes without saying.
    """

    name: str
    values: dict[str, Any] = field(default_factory=dict)
    place: str = ""


@dataclass(frozen=True)
class Estimate:
    """A value that was found out.

    Attributes:
        name: What it is of: temperature, top_p, version, tensors, slope.
        value: A number, a name, or names.
        low: The lower end of its interval of 95 %; None where it is no number, or exact.
        high: The upper end.
        expected: What it should be, None where that is not known.
    """

    name: str
    value: float | int | str | tuple[str, ...]
    low: float | None = None
    high: float | None = None
    expected: float | int | str | tuple[str, ...] | None = None


@dataclass(frozen=True)
class RunnerUp:
    """The explanation that fits second best.

    Attributes:
        name: In a few words: the law, the version, the family.
        residual: How far it is off, in the unit of the answer's own residual.
    """

    name: str
    residual: float


@dataclass(frozen=True)
class ProbeAnswer:
    """What came of asking for one class of faults.

    Attributes:
        family: The class, as sampling/temperature: kind and what is wrong. Of a clean answer the kind may be all.
        outcome: One of OUTCOMES.
        probe: Which probe told, as P5.
        code: Of the known issue; empty where none fits.
        values: What the sentence of the family speaks of.
        estimates: What the probe put a number or name to.
        residual: How far what was seen is off from what this answer says it is.
        floor: How far it would be off by the arithmetic alone.
        alarm: From which difference on it would have been a fault.
        runner_up: What else it might be.
        count: Of tokens, rows or files that it rests on.
        tokens: What it cost the engine: prompt and sampled tokens; 0 of what was recorded.
        facts: The evidence, the most telling first.
        wanted: What would decide it, where it is not decided or not asked: one switch, file or number each.
        by: Of a masked answer, the family of the fault that hides it.
        decisive: Whether an audit without this answer may not call itself clean.
    """

    family: str
    outcome: str
    probe: str
    code: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    estimates: tuple[Estimate, ...] = ()
    residual: float | None = None
    floor: float | None = None
    alarm: float | None = None
    runner_up: RunnerUp | None = None
    count: int = 0
    tokens: int = 0
    facts: tuple[Fact, ...] = ()
    wanted: tuple[Fact, ...] = ()
    by: str = ""
    decisive: bool = False


@dataclass(frozen=True)
class Audit:
    """All answers of an audit.

    Attributes:
        source: LIVE, RECORDED or RUNNING.
        subject: What was asked: addresses and folders, by role.
        answers: One a class, in the order in which they were asked.
        tokens: What all of it cost the engine.
        requests: Calls that were made.
        seconds: How long it took.
        pictures: Series that a page can draw, by name: numbers alone, no ids and no texts.
    """

    source: str
    subject: dict[str, str]
    answers: tuple[ProbeAnswer, ...]
    tokens: int = 0
    requests: int = 0
    seconds: float = 0.0
    pictures: dict[str, Any] = field(default_factory=dict)

    @property
    def outcome(self) -> str:
        """Fault; not_decided where what decides was not asked or told nothing; else clean, as far as was asked."""
        return overall(self.answers)

    def of(self, outcome: str) -> tuple[ProbeAnswer, ...]:
        """The answers of an outcome."""
        return tuple(each for each in self.answers if each.outcome == outcome)


def overall(answers: Iterable[ProbeAnswer]) -> str:
    """One outcome for many answers.

    >>> overall([])
    'not_decided'
    >>> overall([ProbeAnswer("weights", CLEAN, "P1"), ProbeAnswer("replicas", NOT_ASKED, "P14")])
    'clean'
    >>> overall([ProbeAnswer("weights", CLEAN, "P1"), ProbeAnswer("ids", NOT_ASKED, "P10", decisive=True)])
    'not_decided'
    """
    found = tuple(answers)
    if any(each.outcome == FAULT for each in found):
        return FAULT
    if any(
        each.outcome in (NOT_DECIDED, MASKED) or (each.outcome == NOT_ASKED and each.decisive)
        for each in found
    ):
        return NOT_DECIDED
    return CLEAN if any(each.outcome == CLEAN for each in found) else NOT_DECIDED
