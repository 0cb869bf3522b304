"""Define and register repros (triggers that cause a known issue, and mitigations), and the outcomes of their attempts.

`repro` registers a `Repro`; titles, descriptions and mitigations are read from the catalog entry of the known issue. A
trigger drives upstream code as it was released, does not raise the failure itself, and returns a `Tally` of what was
due and completed. An attempt counts as reproduced if the failure was raised in a frame of upstream's code or, for a
silent failure, if the tally is incomplete (see `judge.py`).
"""

from __future__ import annotations

import ast
import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

ISSUES = Path(__file__).parents[1] / "diagnostics" / "catalog" / "issues"
# Reason why a mitigation is not tried.
NOT_RECORDED = "the entry lists this trigger in neither `helps` nor `fails` of the mitigation"
_TABLE = re.compile(r"^\[(triggers|mitigations)\.(\w+)\]\n(.*?)(?=^\[|\Z)", re.MULTILINE | re.DOTALL)


class AttemptOutcome(str, Enum):
    """The outcome of an attempt; `overall_outcome` returns the first member that occurs."""

    REPRODUCED = "reproduced"
    ERROR = "error"
    TIMEOUT = "timeout"
    NOT_REPRODUCED = "not_reproduced"
    INAPPLICABLE = "inapplicable"
    MITIGATED = "mitigated"
    NOT_MITIGATED = "not_mitigated"


class InapplicableError(Exception):
    """Raised by a trigger that cannot run in this environment or with this mitigation; the message is the reason."""


class UpstreamFailureError(Exception):
    """Raised in place of an exception of upstream's code, as data, because it may come from another process.

    The failure counts as a result of the attempt if one of its frames is upstream's, whatever the exception's class.

    Args:
        kind: Name of the exception's class.
        text: Message of the exception.
        frames: (path, line, function) for each frame of the traceback, outermost first.
        note: Other observations in that process, in one line.
    """

    def __init__(self, kind: str, text: str, frames: Sequence[tuple[str, int, str]], note: str = "") -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind
        self.text = text
        self.frames = tuple(frames)
        self.note = note

    @staticmethod
    def from_exception(error: BaseException, note: str = "") -> UpstreamFailureError:
        """Return the failure for an exception, with the frames of its traceback."""
        calls = traceback.extract_tb(error.__traceback__)
        frames = [(call.filename, call.lineno or 0, call.name) for call in calls]
        return UpstreamFailureError(type(error).__name__, str(error), frames, note)


class BrokenInvariantError(Exception):
    """Raised by our checks if upstream's state or results violate an invariant."""

    def __init__(self, name: str, detail: str) -> None:
        super().__init__(f"{name}: {detail}")
        self.name = name
        self.detail = detail


@dataclass(frozen=True)
class Tally:
    """Tally of an attempt: the requests or checks that were due, and those that were completed.

    Args:
        due: Number of tokens due, by request; None if any answer is right, even an empty one.
        received: (request, tokens) for each finished completion that reached the caller that requested it.
        stray: Number of finished completions that reached another caller.
        leaked_blocks: Number of KV cache blocks still taken after all requests were drained.
        parked: Number of sequences still listed as stopped after all requests were drained.
        note: A further remark, in one line.
        counted: Text after "3 of 4", such as "log-probs are the trainer's"; empty if requests are counted.
    """

    due: Mapping[str, int | None]
    received: Sequence[tuple[str, int]]
    stray: int = 0
    leaked_blocks: int = 0
    parked: int = 0
    note: str = ""
    counted: str = ""

    @staticmethod
    def of_checks(passed: Mapping[str, bool], counted: str, note: str = "") -> Tally:
        """Return the tally of items that passed a check or not; `counted` says what the items that passed are."""
        received = [(name, 1) for name, result in passed.items() if result]
        return Tally(dict.fromkeys(passed, 1), received, note=note, counted=counted)

    def is_served(self, request: str) -> bool:
        """Return whether the request was finished exactly once, with all its tokens."""
        answers = [tokens for name, tokens in self.received if name == request]
        return len(answers) == 1 and self.due[request] in {None, answers[0]}

    @property
    def finished(self) -> int:
        """Number of requests that were finished exactly once, with all their tokens."""
        return sum(self.is_served(request) for request in self.due)

    @property
    def tokens(self) -> int:
        """Number of tokens that reached their callers."""
        return sum(tokens for _, tokens in self.received)

    @property
    def complete(self) -> bool:
        """Whether all requests were served, and nothing was misdelivered or leaked."""
        return self.finished == len(self.due) and not (self.stray or self.leaked_blocks or self.parked)

    def describe(self) -> str:
        """Return a line with the number of completed items and the note; for requests also everything that is wrong."""
        done = f"{self.finished} of {len(self.due)}"
        if self.counted:
            return "; ".join(filter(None, [f"{done} {self.counted}", self.note]))
        parts = [f"{done} requests finished, {self.tokens} tokens"]
        if unserved := [request for request in self.due if not self.is_served(request)]:
            parts.append(f"not served: {', '.join(unserved)}")
        if self.stray:
            parts.append(f"{self.stray} completions went to a caller that had not asked for them")
        if self.leaked_blocks:
            parts.append(f"{self.leaked_blocks} KV cache blocks leaked")
        if self.parked:
            parts.append(f"{self.parked} sequences left parked as stopped")
        return "; ".join(filter(None, [*parts, self.note]))


@dataclass(frozen=True)
class Trigger:
    """One sequence of events that causes the failure.

    Args:
        name: Name in the option `--trigger`.
        run: Function that executes the events with the named mitigation or None; upstream's exceptions pass through.
        about: The events, in one line; read from the catalog entry.
        silent: Whether the failure raises nothing and only results show it.
        simulated: Simulated parts of the trigger's attempts; None for those of the repro.
        missing_requirement: Function that returns why the trigger cannot run here, or None, without importing upstream.
    """

    name: str
    run: Callable[[str | None], Tally]
    about: str = ""
    silent: bool = False
    simulated: tuple[str, ...] | None = None
    missing_requirement: Callable[[], str | None] = lambda: None


@dataclass(frozen=True)
class TriedMitigation:
    """A change that is tried against the failure.

    Args:
        name: Name in the known issue's entry and in the option `--mitigation`.
        about: The change, in one line.
        helps: Triggers against which the mitigation is recorded to help.
        fails: Triggers against which it is recorded not to help. With triggers in neither list it is not tried.
        recommended: Where users or maintainers recommend the mitigation; empty if no such place is known.
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
        code: Code of the known issue.
        title: Title of the known issue, one line.
        distributions: Distributions of which one must be installed; empty if Python is enough.
        triggers: Sequences of events that cause the failure.
        mitigations: Changes that are tried against the failure.
        inapplicable_reason: Function that returns why the failure cannot occur with the installed code, or None.
        modules: Modules that the attempts need; they are imported once, before the attempts.
        helpful_modules: Modules that are also imported then; a failure of their import is ignored.
        simulated: Simulated parts of an attempt, unless its trigger has its own.
        assertion: The statement that fails, as upstream wrote it; "" if nothing is raised, or any statement may fail.
        raises: Name of the exception that the statement raises.
        function: The statement's function; "" if the statement alone is unique.
        message: Part of the exception's text.
    """

    code: str
    title: str
    distributions: tuple[str, ...]
    triggers: tuple[Trigger, ...]
    mitigations: tuple[TriedMitigation, ...]
    inapplicable_reason: Callable[[], str | None]
    modules: tuple[str, ...] = ()
    helpful_modules: tuple[str, ...] = ()
    simulated: tuple[str, ...] = ()
    assertion: str = ""
    raises: str = "AssertionError"
    function: str = ""
    message: str = ""

    @property
    def failure(self) -> str:
        """The expected failure: the statement, or else the exception and a part of its text; empty if none is named."""
        return self.assertion or (f"{self.raises}: {self.message}" if self.message else "")

    def trigger(self, name: str) -> Trigger:
        """Return the trigger with a name."""
        return next(trigger for trigger in self.triggers if trigger.name == name)

    def simulates(self, trigger: str) -> tuple[str, ...]:
        """Return the simulated parts in the attempts of a trigger."""
        local = self.trigger(trigger).simulated
        return self.simulated if local is None else local

    def mitigation(self, name: str) -> TriedMitigation:
        """Return the mitigation with a name."""
        return next(mitigation for mitigation in self.mitigations if mitigation.name == name)


def read_entry(code: str) -> tuple[str, dict[str, str], list[TriedMitigation]]:
    """Return the title of a known issue, the descriptions of its triggers by name, and its mitigations, from its entry.

    Cells may run Python 3.10, which has no `tomllib`, so regular expressions read the entry.
    """
    text = (ISSUES / f"{code}.toml").read_text(encoding="utf-8")
    triggers, mitigations = {}, []
    for kind, name, table in _TABLE.findall(text):
        about = str(_value(table, "about", r"[\"'].*?$"))
        if kind == "triggers":
            triggers[name] = about
        else:
            helps, fails = (frozenset(_value(table, key, r"\[.*?\]") or ()) for key in ("helps", "fails"))
            recommended = _value(table, "recommended", r"[\"'].*?$") or ""
            mitigations.append(TriedMitigation(name, about, helps, fails, recommended))
    return str(_value(text, "title", r"[\"'].*?$")), triggers, mitigations


def _value(table: str, key: str, pattern: str) -> Any:
    """Return the value of a key in TOML text, if it is also a Python literal; None without the key."""
    result = re.search(rf"^{key} = ({pattern})", table, re.MULTILINE | re.DOTALL)
    return ast.literal_eval(result[1]) if result else None


REGISTRY: dict[str, Repro] = {}


def repro(code: str, *, triggers: Sequence[Trigger], **parts: Any) -> Repro:
    """Register the repro of a known issue and return it; title, descriptions and mitigations come from its entry.

    A trigger raises InapplicableError for a mitigation that does not list it in `helps` or `fails`.

    Args:
        code: Code of the known issue.
        triggers: Sequences of events that cause the failure.
        parts: Other arguments of `Repro`.

    Raises:
        ValueError: The entry lacks one of the triggers.
    """
    title, descriptions, mitigations = read_entry(code)
    missing = [item.name for item in triggers if item.name not in descriptions]
    if missing:
        raise ValueError(f"{code}: its entry in diagnostics/catalog/issues has no [triggers.{missing[0]}]")
    tried = {(name, item.name) for item in mitigations for name in item.helps | item.fails}

    def try_recorded(trigger: Trigger, mitigation: str | None) -> Tally:
        if mitigation is not None and (trigger.name, mitigation) not in tried:
            raise InapplicableError(NOT_RECORDED)
        return trigger.run(mitigation)

    REGISTRY[code] = Repro(
        code=code,
        title=title,
        triggers=tuple(
            replace(item, run=partial(try_recorded, item), about=descriptions[item.name]) for item in triggers
        ),
        mitigations=tuple(mitigations),
        **parts,
    )
    return REGISTRY[code]


@dataclass(frozen=True)
class Attempt:
    """A run of a trigger with one mitigation or none, and its outcome.

    Args:
        trigger: Name of the trigger.
        mitigation: Name of the mitigation; None for an attempt without one.
        outcome: Outcome of the attempt.
        assertion: The statement that failed; None if nothing was raised.
        where: `path:line` of the statement, below site-packages.
        function: Function of the statement.
        chain: `function (path:line)` for each frame from the trigger on, outermost first, including our frames.
        detail: Further observations, in one line.
        finished: Number of requests that were finished exactly once with all their tokens, or of checks that passed.
        expected: Number of requests or checks.
        tokens: Number of tokens that reached their callers.
        leaked_blocks: Number of KV cache blocks that were not given back.
        seconds: Duration.
        as_recorded: Whether the outcome is the one in the catalog entry; None for an error, a timeout or inapplicable.
    """

    trigger: str
    mitigation: str | None
    outcome: AttemptOutcome
    assertion: str | None = None
    where: str | None = None
    function: str | None = None
    chain: tuple[str, ...] = ()
    detail: str = ""
    finished: int = 0
    expected: int = 0
    tokens: int = 0
    leaked_blocks: int = 0
    seconds: float = 0.0
    as_recorded: bool | None = None


def overall_outcome(attempts: Sequence[Attempt]) -> AttemptOutcome:
    """Return the overall outcome of the attempts without a mitigation: the first of `AttemptOutcome` that occurs.

    It is `inapplicable` if there are none.
    """
    outcomes = [attempt.outcome for attempt in attempts if attempt.mitigation is None]
    return next((outcome for outcome in AttemptOutcome if outcome in outcomes), AttemptOutcome.INAPPLICABLE)
