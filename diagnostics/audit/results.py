"""Define the results of an audit (`Audit`, `Result`, `Note`), and convert them to JSON and sentences.

Checks build their results with `fault`, `clean`, `undecided`, `skipped` and `masked`. `put_causes_first` orders faults,
and marks reward faults as probable consequences of the first. `make_document` returns the JSON document
`grpo-doctor.audit.v1`, with code and fixes of the known issue, if a fault has one. `AuditCallback` imports this module
in the trainer's process, so it may only import packages that are installed there.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from diagnostics import UserError, called_as, catalog
from diagnostics.catalog.mitigation_ranking import issue_summary
from diagnostics.catalog.model import CheckCode, Issue
from diagnostics.fixes import count_of, join_some

FAULT, CLEAN, NOT_DECIDED, MASKED, SKIPPED = "fault", "clean", "not_decided", "masked", "not_asked"
"""Outcomes of a check. MASKED: hidden by another fault. SKIPPED: an input is missing."""
LIVE, RECORDED, RUNNING = "live", "recorded", "running"

WORDS = {FAULT: "fault", CLEAN: "passed", NOT_DECIDED: "not decided", MASKED: "hidden", SKIPPED: "skipped"}
"""Printed words for the outcomes."""
SCHEMA = "grpo-doctor.audit.v1"
_MAX_REASONS, _MAX_MESSAGES = 3, 2


@dataclass(frozen=True)
class Topic:
    """A class of faults: its title, its check's number or name (probe), and the unit of `Result.count`."""

    title: str
    probe: str
    unit: str = "token"


class _Messages(msgspec.Struct):
    """The content of `messages.toml`."""

    symptoms: list[str]
    reward_symptoms: list[str]
    topics: dict[str, Topic]
    estimates: dict[str, str]
    faults: dict[str, str]
    notes: dict[str, str]


_MESSAGES = msgspec.toml.decode(Path(__file__).with_name("messages.toml").read_bytes(), type=_Messages)
TOPICS, ESTIMATES = _MESSAGES.topics, _MESSAGES.estimates
"""The topics by the part of `Result.family` before the slash; printed names of estimates."""


class AuditError(UserError):
    """Raised when an input cannot be used; the one-line message names the input and the problem."""


class NotAvailableError(AuditError):
    """Raised when an input cannot be checked now: a busy or sleeping server, a file without metrics, a time limit."""


@dataclass(frozen=True)
class Note:
    """An observed fact (evidence), or a missing input that would decide a check.

    Attributes:
        name: Stable name of the kind of fact.
        text: The fact or input, in one line.
        values: The numbers and names in the text.
        place: Source of the fact: an endpoint or file:line; empty if none.
    """

    name: str
    text: str
    values: dict[str, Any] = field(default_factory=dict)
    place: str = ""


def note(key: str, place: str = "", /, **values: Any) -> Note:
    """Build a note whose text `messages.toml` has under a key: its name, and a colon and a word if it has several.

    >>> note("away", count=64, name="base")
    Note(name='away', text='64 ids ruled out base', values={'count': 64, 'name': 'base'}, place='')
    """
    text = _MESSAGES.notes[key].format(program=called_as(), **values)
    return Note(key.partition(":")[0], text, values, place)


@dataclass(frozen=True)
class Estimate:
    """An estimated value: a number with its 95 % interval, a name, or several names."""

    name: str
    value: float | int | str | tuple[str, ...]
    low: float | None = None
    high: float | None = None
    expected: float | int | str | tuple[str, ...] | None = None


@dataclass(frozen=True)
class Result:
    """The result of one check.

    Attributes:
        family: Topic (a key of TOPICS), and after a slash the kind of fault, as `sampling/temperature`.
        outcome: FAULT, CLEAN, NOT_DECIDED, MASKED or SKIPPED.
        probe: Number or name of the check, as P5.
        message: The fault in one sentence; empty for other outcomes.
        code: Code of a fault's known issue; empty if there is none.
        values: Numbers and names behind the result, such as those in the message.
        estimates: Estimated values.
        residual: Difference that remains with this explanation.
        floor: Difference that rounding alone causes.
        alarm: Fault threshold: a larger difference is a fault.
        count: Number of items behind the result; `Topic.unit` says what they are.
        tokens: Tokens that the check cost the engine.
        evidence: Observations, the most important first.
        needed: Inputs that would decide a check with the outcome NOT_DECIDED or SKIPPED.
        masked_by: For the outcome `masked`: the family of the fault that makes this check undecidable.
        decisive: Whether skipping this check makes the audit incomplete.
    """

    family: str
    outcome: str
    probe: str
    message: str = ""
    code: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    estimates: tuple[Estimate, ...] = ()
    residual: float | None = None
    floor: float | None = None
    alarm: float | None = None
    count: int = 0
    tokens: int = 0
    evidence: tuple[Note, ...] = ()
    needed: tuple[Note, ...] = ()
    masked_by: str = ""
    decisive: bool = False

    @property
    def topic(self) -> str:
        """The key in TOPICS: `sampling` for the family `sampling/temperature`."""
        return self.family.partition("/")[0]

    @property
    def title(self) -> str:
        """The title of the topic."""
        return TOPICS[self.topic].title

    @property
    def is_fault(self) -> bool:
        """Whether the check found a fault."""
        return self.outcome == FAULT

    @property
    def is_clean(self) -> bool:
        """Whether the check ran and found no fault."""
        return self.outcome == CLEAN


def _result(family: str, outcome: str, probe: str = "", **fields: Any) -> Result:
    return Result(family, outcome, probe or TOPICS[family.partition("/")[0]].probe, **fields)


def fault(key: str, values: dict[str, Any] | None = None, /, **fields: Any) -> Result:
    """Build a fault whose message `messages.toml` has under a key: its family, and a colon and a word for a variant.

    By default the probe is the topic's, and the code is `code_of` the family.

    >>> fault("masks/nothing", {"count": 8}).message
    'no token of 8 samples is in the loss'
    """
    values, family = values or {}, key.partition(":")[0]
    fields["code"] = fields.get("code") or code_of(family)
    return _result(family, FAULT, message=_MESSAGES.faults[key].format(**values), values=values, **fields)


def code_of(family: str) -> str:
    """Return the code of the known issue or check that a family of results is reported as; '' if there is none."""
    return _codes().get(family, "")


@cache
def _codes() -> dict[str, str]:
    entries: list[Issue | CheckCode] = [*catalog.load().values(), *catalog.load_checks().values()]
    return {family: entry.code for entry in entries for family in entry.audit}


def clean(family: str, /, **fields: Any) -> Result:
    """Build the result of a check that ran and found no fault; it may have notices among its evidence."""
    return _result(family, CLEAN, **fields)


def undecided(family: str, need: Note, /, **fields: Any) -> Result:
    """Build the result of a check that needs more input to decide."""
    return _result(family, NOT_DECIDED, needed=(need,), **fields)


def skipped(family: str, key: str, /, *, decisive: bool = False, **values: Any) -> Result:
    """Build the result of a skipped check; the note of this key and these values says what it needs."""
    return _result(family, SKIPPED, values=values, needed=(note(key, **values),), decisive=decisive)


def masked(family: str, by: str, /, **fields: Any) -> Result:
    """Build the result `masked`: the check is undecidable until the fault of family `by` is fixed."""
    return _result(family, MASKED, masked_by=by, **fields)


@dataclass(frozen=True)
class Audit:
    """All results of one audit.

    Attributes:
        source: LIVE, RECORDED or RUNNING.
        subject: Addresses and files, by role.
        results: Results in the order of the checks; a topic may have several, as one for each recording.
        tokens: Tokens that the audit cost the engine.
        requests: Number of requests to the server.
        seconds: Duration of the audit.
        framework: The trainer that made the audited files, whose fixes are printed; empty if unknown.
    """

    source: str
    subject: dict[str, str]
    results: tuple[Result, ...]
    tokens: int = 0
    requests: int = 0
    seconds: float = 0.0
    framework: str = ""

    @property
    def outcome(self) -> str:
        """`fault` if a check found a fault; `clean` if one passed and none is open (`is_open`); else `not_decided`."""
        if self.select(FAULT):
            return FAULT
        is_decided = self.select(CLEAN) and not any(map(is_open, self.results))
        return CLEAN if is_decided else NOT_DECIDED

    def select(self, outcome: str) -> tuple[Result, ...]:
        """Return the results with an outcome."""
        return tuple(result for result in self.results if result.outcome == outcome)


def name_options(results: Sequence[Result], framework: str) -> tuple[Result, ...]:
    """Return results whose missing inputs have this framework's option, if `messages.toml` has a note of its own."""

    def own(need: Note) -> Note:
        key = f"{need.name}:{framework}"
        return note(key, need.place) if key in _MESSAGES.notes else need

    return tuple(replace(result, needed=tuple(map(own, result.needed))) for result in results)


def put_causes_first(*results: Result) -> tuple[Result, ...]:
    """Return the results; faults that are often symptoms (two lists in `messages.toml`) come last.

    A fault of the second list that is not the first fault names the first as probable cause instead of its own, unless
    the first began later.
    """
    symptoms = ["", *_MESSAGES.symptoms, *_MESSAGES.reward_symptoms]
    ranks = {family: rank for rank, family in enumerate(symptoms)}
    ordered = sorted(results, key=lambda result: ranks.get(result.family, 0) if result.is_fault else 0)
    root = next((result for result in ordered if result.is_fault), None)
    for index, result in enumerate(ordered):
        is_symptom = result.is_fault and result.family in _MESSAGES.reward_symptoms and result is not root
        if root and is_symptom and root.values.get("start", 0) <= result.values.get("start", math.inf):
            facts = (fact for fact in result.evidence if fact.name != "cause")
            evidence = (note("consequence_of", root=root.message), *facts)
            ordered[index] = replace(result, evidence=evidence)
    return tuple(ordered)


def is_open(result: Result) -> bool:
    """Return whether a result makes the audit incomplete: not decided, masked, or skipped although decisive."""
    return result.outcome in {NOT_DECIDED, MASKED} or (result.outcome == SKIPPED and result.decisive)


def make_document(audit: Audit) -> dict[str, Any]:
    """Return the audit as its JSON document."""
    return {
        "schema": SCHEMA,
        "source": audit.source,
        "subject": dict(audit.subject),
        "outcome": audit.outcome,
        "sentence": headline(audit),
        "answers": [_result_json(result) for result in audit.results],
        "not_asked": [result.family for result in audit.select(SKIPPED)],
        "tokens": audit.tokens,
        "requests": audit.requests,
        "seconds": round(audit.seconds, 2),
        "pictures": {},
    }


def _result_json(result: Result) -> dict[str, Any]:
    """Return a result under the keys of the JSON document, with its sentence and the known issue's fixes.

    `runner_up` is always null: readers expect the key.
    """
    fields = asdict(result) | {"runner_up": None}
    del fields["message"]
    fields |= {"facts": fields.pop("evidence"), "wanted": fields.pop("needed"), "by": fields.pop("masked_by")}
    fields["sentence"] = sentence(result)
    issue = catalog.load().get(result.code)
    fields["helps"] = {} if issue is None else issue_summary(issue)
    return fields


def sentence(result: Result) -> str:
    """Return a result in one sentence: a fault's message, or the check's title with its outcome and measurement."""
    if result.is_fault:
        return result.message
    if result.outcome == MASKED:
        cause = TOPICS[result.masked_by.partition("/")[0]].title
        return f"{result.title}: hidden by another fault ({cause}); fix that first"
    measured = ""
    if result.residual is not None and result.floor is not None:
        count = count_of(result.count, TOPICS[result.topic].unit)
        measured = f" (off by {result.residual:.2g} on average in {count}; rounding makes {result.floor:.2g})"
    return f"{result.title}: {WORDS[result.outcome]}{measured}"


def headline(audit: Audit) -> str:
    """Return the audit in one sentence: its faults or undecided checks, and the counts."""
    faults, counts = audit.select(FAULT), count_line(audit)
    if faults:
        messages = join_some([result.message for result in faults], _MAX_MESSAGES, "; ")
        return f"{count_of(len(faults), 'fault')}: {messages} ({counts})"
    if audit.outcome == CLEAN:
        return f"no fault found; {counts}"
    incomplete = list(dict.fromkeys(result.title for result in audit.results if is_open(result)))
    return f"incomplete, not checked: {', '.join(incomplete) or 'everything'}; {counts}"


def count_line(audit: Audit) -> str:
    """Return "N checks passed, M skipped (they need: …)", with three reasons at most."""
    passed, missing = len(audit.select(CLEAN)), audit.select(SKIPPED)
    # Print the text up to the colon; the rest says how to provide the input, and is printed with --verbose.
    needs = (note.text.partition(": ")[0] for result in missing for note in result.needed[:1])
    reasons = list(dict.fromkeys(needs))
    explanation = f" (they need: {join_some(reasons, _MAX_REASONS, '; ')})" if reasons else ""
    return f"{count_of(passed, 'check')} passed, {len(missing)} skipped{explanation}"
