"""What a plan is: steps in their order, sets of versions known to work together, and what contradicts what."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from diagnostics.output import wording
from diagnostics.output.findings import Severity
from diagnostics.output.remedies import Action

SCHEMA = "grpo-doctor.plan.v1"
# In the order in which they are done: a driver comes before the packages that need it.
KINDS = ("system", "variables", "repair", "packages", "configuration", "look")


@dataclass(frozen=True)
class Step:
    """One thing to do.

    Attributes:
        kind: One of KINDS.
        severity: The worst of the findings that it settles.
        codes: Those findings.
        why: One line each.
        known_by: How it is known that this helps: declared, static or executed; empty where nothing says so.
        cost: What it costs, or that this is not known.
        undo: How to take it back.
        commands: Exact, to be copied; never run.
        text: What can't be said as a command.
        established: Whether it is sure that this concerns the user; a known issue of a release may never occur.
    """

    kind: str
    title: str
    severity: Severity
    codes: tuple[str, ...]
    why: tuple[str, ...]
    known_by: str
    cost: str
    undo: tuple[Action, ...]
    commands: tuple[Action, ...] = ()
    text: tuple[Action, ...] = ()
    established: bool = True

    @property
    def need(self) -> str:
        """`must` what stops training, `should` what is wrong, `consider` what can happen, `then` a last look."""
        if self.kind == "look":
            return "then"
        if self.severity >= Severity.ERROR:
            return "must"
        wrong = self.severity is Severity.WARNING and self.established
        return "should" if wrong else "consider"

    def to_json(self) -> dict[str, Any]:
        """As it stands in the plan: actions as they are printed."""
        return vars(self) | {
            "severity": self.severity.word,
            "codes": list(self.codes),
            "why": list(self.why),
            "undo": list(map(wording.edit_of, self.undo)),
            "commands": list(map(wording.command_of, self.commands)),
            "text": list(map(wording.edit_of, self.text)),
        }


@dataclass(frozen=True)
class Pin:
    """A version in a set, and why it is fixed at all."""

    name: str
    version: str
    why: str

    @property
    def requirement(self) -> str:
        """As an installer takes it."""
        return f"{self.name}=={self.version}"


@dataclass(frozen=True)
class Change:
    """A package that a set has in another version than what is installed, and how many minor releases away."""

    name: str
    installed: str | None
    version: str
    away: int = 0

    def __str__(self) -> str:
        away = f", {self.away} minor release{'s' if self.away != 1 else ''} away" if self.away else ""
        return f"{self.name}: {self.installed or 'none'} -> {self.version}{away}"


@dataclass(frozen=True)
class PinnedSet:
    """Versions that are known to work together, and how well.

    Attributes:
        source: The cell of the compatibility table, or its static part.
        evidence: `executed` if the pair ran together, `static` if it was only read.
        resolves: Whether a resolver found that the requirements of all can be had together.
        changes: What differs from what is installed, one package each.
        distance: Minor releases between it and what is installed, over vLLM and TRL.
        verified: What was seen.
        unverified: What was not.
        fails: Layers of its cell that failed, for which doctor names it still.
        gone: Codes of known issues that these versions do not have, and what is installed has.
        brings: Codes of those that they have, and what is installed does not.
        against: Requirements of other installed packages that it breaks.
    """

    source: str
    pins: tuple[Pin, ...]
    evidence: str
    changes: tuple[Change, ...]
    distance: int
    verified: tuple[str, ...]
    unverified: tuple[str, ...]
    fails: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    brings: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    resolves: bool = True

    def to_json(self) -> dict[str, Any]:
        """As it stands in the plan."""
        told = asdict(self) | {"changes": list(map(str, self.changes))}
        del told["resolves"]  # told in words, in `unverified`
        return told


@dataclass(frozen=True)
class Conflict:
    """Two wishes that can't both be had, and what the plan does about it."""

    between: tuple[str, ...]
    resolution: str


@dataclass(frozen=True)
class Plan:
    """All that is to be done.

    Attributes:
        installer: Its name.
        marks: What it was recognised by.
        outcome: `nothing` to do, `plan`, or `unknown`: there are findings, but nothing is known to help.
        unseen: Checks that were not made; what they would have found is in no step.
        help: Where to go on.
    """

    subject: dict[str, Any]
    installer: str
    marks: tuple[str, ...]
    outcome: str
    steps: tuple[Step, ...]
    sets: tuple[PinnedSet, ...]
    conflicts: tuple[Conflict, ...]
    unseen: tuple[str, ...]
    help: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The document of `--format json`."""
        return {
            "schema": SCHEMA,
            "tool": "doctor --fix-plan",
            "subject": self.subject,
            "outcome": self.outcome,
            "installer": {"name": self.installer, "known_by": list(self.marks)},
            "steps": [
                {"number": number, "need": step.need} | step.to_json()
                for number, step in enumerate(self.steps, start=1)
            ],
            "pinned_sets": [item.to_json() for item in self.sets],
            "conflicts": [asdict(item) for item in self.conflicts],
            "not_looked_at": list(self.unseen),
            "help": list(self.help),
        }
