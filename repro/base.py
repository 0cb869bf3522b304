"""Define the data of a repro: triggers that cause a known issue, mitigations, and the outcome of an attempt.

A repro drives upstream code as it was released and never raises the failure itself: an attempt counts as reproduced
when the failure came out of a frame of upstream's code or, for a silent failure, when the figures show it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

ISSUES = Path(__file__).parents[1] / "diagnostics" / "catalog" / "issues"
# Why a mitigation is not tried.
NOT_RECORDED = "the entry lists this trigger in neither `helps` nor `fails` of the mitigation"
_TABLE = re.compile(r"^\[(triggers|mitigations)\.(\w+)\]\n(.*?)(?=^\[|\Z)", re.MULTILINE | re.DOTALL)


class AttemptOutcome(str, Enum):
    """The outcome of an attempt."""

    REPRODUCED = "reproduced"
    NOT_REPRODUCED = "not_reproduced"
    MITIGATED = "mitigated"
    NOT_MITIGATED = "not_mitigated"
    INAPPLICABLE = "inapplicable"
    ERROR = "error"
    TIMEOUT = "timeout"


INCOMPLETE = frozenset({AttemptOutcome.ERROR, AttemptOutcome.TIMEOUT})


class InapplicableError(Exception):
    """Raised by a trigger that cannot run here; the message is the reason."""


class ElsewhereError(Exception):
    """Raised for an exception of upstream's code in another process of the attempt; has that exception's data.

    Args:
        kind: name of the exception's class.
        text: its message.
        frames: of its traceback, outermost first: (path, line, function).
        note: other observations in that process, in one line.
    """

    def __init__(self, kind: str, text: str, frames: Sequence[tuple[str, int, str]], note: str = "") -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind
        self.text = text
        self.frames = tuple(frames)
        self.note = note


class BrokenInvariantError(Exception):
    """Raised by our checks: upstream's state or its results violate an invariant."""

    def __init__(self, name: str, detail: str) -> None:
        super().__init__(f"{name}: {detail}")
        self.name = name
        self.detail = detail


@dataclass(frozen=True)
class Work:
    """What an attempt delivered, as its callers saw it.

    Args:
        due: number of tokens due, by request; None if any answer is right, also an empty one.
        received: (request, tokens) of each finished completion that reached the caller that requested it.
        stray: finished completions that reached another caller.
        leaked_blocks: KV cache blocks still taken after everything was drained.
        parked: sequences still listed as stopped after everything was drained.
        note: a further remark, in one line.
        counted: what the entries of `due` are if not requests, such as "log-probs are the trainer's".
    """

    due: Mapping[str, int | None]
    received: Sequence[tuple[str, int]]
    stray: int = 0
    leaked_blocks: int = 0
    parked: int = 0
    note: str = ""
    counted: str = ""

    @staticmethod
    def of_checks(passed: Mapping[str, bool], counted: str, note: str = "") -> Work:
        """Return the work of named items, each of which passed a check or not; `counted` names those that passed."""
        received = [(name, 1) for name, result in passed.items() if result]
        return Work(dict.fromkeys(passed, 1), received, note=note, counted=counted)

    def is_served(self, request: str) -> bool:
        """Return whether the request was finished exactly once, with all its tokens."""
        answers = [tokens for name, tokens in self.received if name == request]
        return len(answers) == 1 and self.due[request] in {None, answers[0]}

    @property
    def finished(self) -> int:
        """Requests that were finished exactly once, with all their tokens."""
        return sum(self.is_served(request) for request in self.due)

    @property
    def tokens(self) -> int:
        """Tokens that reached their callers."""
        return sum(tokens for _, tokens in self.received)

    @property
    def complete(self) -> bool:
        """Return whether every request was served, and nothing was misdelivered or leaked."""
        return self.finished == len(self.due) and not (self.stray or self.leaked_blocks or self.parked)

    def describe(self) -> str:
        """Return in one line what was done and what was not."""
        if self.counted:
            return "; ".join(filter(None, [f"{self.finished} of {len(self.due)} {self.counted}", self.note]))
        unserved = [request for request in self.due if not self.is_served(request)]
        parts = [f"{self.finished} of {len(self.due)} requests finished, {self.tokens} tokens"]
        if unserved:
            parts.append(f"not served: {', '.join(unserved)}")
        if self.stray:
            parts.append(f"{self.stray} completions went to a caller that had not asked for them")
        if self.leaked_blocks:
            parts.append(f"{self.leaked_blocks} KV cache blocks leaked")
        if self.parked:
            parts.append(f"{self.parked} sequences left parked as stopped")
        if self.note:
            parts.append(self.note)
        return "; ".join(parts)


@dataclass(frozen=True)
class Trigger:
    """One sequence of events that causes the failure.

    Args:
        name: as given to `--trigger`.
        run: executes the events under the named mitigation (None: without one). Upstream's exceptions pass through.
        about: the events, in a line; read from the catalog entry.
        silent: whether the failure raises nothing and only results show it.
        simulated: simulated parts of its attempts, if they differ from the repro's.
        lacks: returns a missing requirement, or None; called once, and imports nothing.
    """

    name: str
    run: Callable[[str | None], Work]
    about: str = ""
    silent: bool = False
    simulated: tuple[str, ...] | None = None
    lacks: Callable[[], str | None] | None = None


@dataclass(frozen=True)
class TriedMitigation:
    """A change that is recommended against the failure.

    Args:
        name: as in the known issue's entry, and as given to `--mitigation`.
        about: what is changed, in a line.
        helps: the triggers it is recorded to help with.
        fails: the triggers it is recorded not to help with; with the others it is not tried.
        recommended: where users or maintainers recommend it; empty if nobody does.
    """

    name: str
    about: str
    helps: frozenset[str]
    fails: frozenset[str] = frozenset()
    recommended: str = ""


@dataclass(frozen=True, kw_only=True)
class Repro:
    """A known issue that can be reproduced.

    Args:
        code: of the known issue.
        title: one line.
        distributions: packages of which one must be installed.
        triggers: what makes it happen.
        mitigations: recommended changes.
        inapplicable: returns why the failure can't occur with the installed code, or None.
        modules: imported once, before the attempts, which need them.
        helpful_modules: imported as well if that is possible.
        simulated: simulated parts of an attempt, unless its trigger has others.
        assertion: the statement that fails, as upstream wrote it; "" where nothing is raised, or any statement will do.
        raises: the exception that the statement raises.
        function: the statement's function; "" if the statement alone is unique.
        message: part of the exception's text.
    """

    code: str
    title: str
    distributions: tuple[str, ...]
    triggers: tuple[Trigger, ...]
    mitigations: tuple[TriedMitigation, ...]
    inapplicable: Callable[[], str | None]
    modules: tuple[str, ...] = ()
    helpful_modules: tuple[str, ...] = ()
    simulated: tuple[str, ...] = ()
    assertion: str = ""
    raises: str = "AssertionError"
    function: str = ""
    message: str = ""

    @property
    def failure(self) -> str:
        """The expected failure: the statement, or else the exception and a part of its text; empty if silent."""
        return self.assertion or (f"{self.raises}: {self.message}" if self.message else "")

    def trigger(self, name: str) -> Trigger:
        """Return the trigger of that name."""
        return next(trigger for trigger in self.triggers if trigger.name == name)

    def simulates(self, trigger: str) -> tuple[str, ...]:
        """Return the simulated parts in the attempts of a trigger."""
        local = self.trigger(trigger).simulated
        return self.simulated if local is None else local

    def mitigation(self, name: str) -> TriedMitigation:
        """Return the mitigation of that name."""
        return next(mitigation for mitigation in self.mitigations if mitigation.name == name)


@dataclass(frozen=True)
class CatalogEntry:
    """The parts of a known issue's catalog entry that its repro reads.

    Args:
        title: of the issue.
        triggers: by name, what each does.
        mitigations: in order, what each changes, and the triggers it is recorded to help with or not to.
    """

    title: str
    triggers: dict[str, str]
    mitigations: tuple[TriedMitigation, ...]


def read_entry(code: str) -> CatalogEntry:
    """Read the title, triggers and mitigations of a known issue.

    Cells may run Python 3.10, which has no `tomllib`; the keys are read by patterns. A test compares with `tomllib`.
    """
    text = (ISSUES / f"{code}.toml").read_text(encoding="utf-8")
    triggers, mitigations = {}, []
    for kind, name, table in _TABLE.findall(text):
        about = str(_value(table, "about", r"[\"'].*?$"))
        if kind == "triggers":
            triggers[name] = about
        else:
            helps, fails = (frozenset(_value(table, key, r"\[.*?\]") or ()) for key in ("helps", "fails"))
            mitigations.append(TriedMitigation(name, about, helps, fails))
    return CatalogEntry(str(_value(text, "title", r"[\"'].*?$")), triggers, tuple(mitigations))


def _value(table: str, key: str, pattern: str) -> Any:
    result = re.search(rf"^{key} = ({pattern})", table, re.MULTILINE | re.DOTALL)
    return ast.literal_eval(result[1]) if result else None


REGISTRY: dict[str, Repro] = {}


def repro(
    code: str, *, triggers: Sequence[Trigger], recommended: Mapping[str, str] | None = None, **parts: Any
) -> Repro:
    """Make the repro of a known issue and register it; title, descriptions and mitigations are its catalog entry's.

    Args:
        code: of the known issue.
        triggers: what makes it happen.
        recommended: where the field recommends a mitigation.
        parts: the other arguments of `Repro`.
    """
    entry, advised = read_entry(code), recommended or {}
    missing = [item.name for item in triggers if item.name not in entry.triggers]
    if missing:
        raise ValueError(f"{code}: its entry in diagnostics/catalog/issues has no [triggers.{missing[0]}]")
    tried = {(name, item.name) for item in entry.mitigations for name in item.helps | item.fails}

    def try_recorded(trigger: Trigger, mitigation: str | None) -> Work:
        if mitigation is not None and (trigger.name, mitigation) not in tried:
            raise InapplicableError(NOT_RECORDED)
        return trigger.run(mitigation)

    REGISTRY[code] = Repro(
        code=code,
        title=entry.title,
        triggers=tuple(
            replace(item, run=partial(try_recorded, item), about=entry.triggers[item.name])
            for item in triggers
        ),
        mitigations=tuple(
            replace(item, recommended=advised.get(item.name, "")) for item in entry.mitigations
        ),
        **parts,
    )
    return REGISTRY[code]


@dataclass(frozen=True)
class Attempt:
    """One run of a trigger under one mitigation or none, and its outcome.

    Args:
        assertion: the statement that failed; None where nothing was raised.
        where: `path:line` below site-packages.
        function: in which it stands.
        chain: `function (path:line)` of each frame from the trigger on, outermost first; ours mirror upstream's.
        simulated: simulated parts of this attempt.
        detail: one line.
        finished: requests finished exactly once with all their tokens, of `expected`.
        tokens: that reached their callers.
        leaked_blocks: KV cache blocks not given back.
        as_recorded: whether the outcome is the one recorded in the repro; None where none is.
    """

    trigger: str
    mitigation: str | None
    outcome: AttemptOutcome
    assertion: str | None = None
    where: str | None = None
    function: str | None = None
    chain: tuple[str, ...] = ()
    simulated: tuple[str, ...] = ()
    detail: str = ""
    finished: int = 0
    expected: int = 0
    tokens: int = 0
    leaked_blocks: int = 0
    seconds: float = 0.0
    as_recorded: bool | None = None

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON data."""
        return asdict(self) | {"outcome": self.outcome.value}

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> Attempt:
        """Read the data of `to_json`."""
        lists = {name: tuple(document[name]) for name in ("chain", "simulated")}
        outcome = AttemptOutcome(document["outcome"])
        return Attempt(**{**document, **lists, "outcome": outcome})


def overall(attempts: Sequence[Attempt]) -> AttemptOutcome:
    """Return a code's overall outcome: whether the failure occurs in this release without a mitigation."""
    bare = [attempt.outcome for attempt in attempts if attempt.mitigation is None]
    for outcome in (
        AttemptOutcome.REPRODUCED,
        AttemptOutcome.ERROR,
        AttemptOutcome.TIMEOUT,
        AttemptOutcome.NOT_REPRODUCED,
    ):
        if outcome in bare:
            return outcome
    return AttemptOutcome.INAPPLICABLE
