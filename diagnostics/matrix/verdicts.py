"""Compute verdicts: the observed outcome of a layer, compared with the expectation in `matrix.toml`.

The store keeps the outcomes only. A verdict is computed whenever it is shown, so correcting an expectation needs no new
run.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Literal

from msgspec import Meta, Struct

# The forms are checked when a store is read: an event of another store is untrusted text.
NAME = r"[A-Za-z0-9_][A-Za-z0-9_.+:-]{0,200}"
Code = Annotated[str, Meta(pattern=r"\A[A-Z]{1,8}[0-9]{0,6}\Z")]
Fact = tuple[Literal["package", "missing", "undecided"], str, str]
"""As ("package", "torch", "2.8.0"), or the subject of a missing or undecided use and its remark."""
LogPath = Annotated[str, Meta(pattern=rf"\A(logs/{NAME}/{NAME})?\Z")]


class Outcome(StrEnum):
    """Outcome of a layer."""

    PASS = "pass"  # noqa: S105 - a verdict
    FAIL = "fail"
    UNRESOLVABLE = "unresolvable"
    NOT_RUN = "not_run"
    NOT_CHECKED = "not_judged"
    TIMEOUT = "timeout"
    INFRA_ERROR = "infra_error"


class Verdict(StrEnum):
    """An observed outcome compared with the expected one."""

    PASS = "pass"  # noqa: S105 - a verdict
    FAIL = "fail"
    EXPECTED_FAIL = "expected_fail"
    UNEXPECTED_PASS = "unexpected_pass"  # noqa: S105 - a verdict
    UNRESOLVABLE = "unresolvable"
    NOT_RUN = "not_run"
    NOT_CHECKED = "not_judged"
    TIMEOUT = "timeout"
    INFRA_ERROR = "infra_error"
    FLAKY = "flaky"


class EvidenceLevel(StrEnum):
    """The kind of evidence behind a claim, weakest first."""

    DECLARED = "declared"
    STATIC = "static"
    EXECUTED = "executed"


# They say nothing about the cell: the next run tries again.
UNFINISHED = frozenset({Outcome.TIMEOUT, Outcome.INFRA_ERROR})


class Expectation(Struct, frozen=True, forbid_unknown_fields=True):
    """An expected outcome other than a pass, from `matrix.toml`."""

    outcome: Outcome
    """`fail`, `unresolvable` or `not_run`."""
    reason: Annotated[str, Meta(pattern=r"\S")]
    """One or two sentences for the reader of the table."""
    codes: tuple[str, ...] = ()
    """Known issues that must be observed, exactly these."""
    shows: tuple[str, ...] = ()
    """Strings that must occur in the signs of the observation (a missing name, a file:line)."""
    link: str = ""
    of_machine: bool = False
    """The failure comes from the CPU substitute of the pair and says nothing about the pair itself."""


class Answer(Struct, frozen=True):
    """What one layer observed in one cell."""

    outcome: Outcome
    summary: str
    """One line."""
    evidence: EvidenceLevel
    codes: tuple[Code, ...] = ()
    """Known issues observed."""
    signs: tuple[str, ...] = ()
    """The observation in short lines that expectations can name."""
    facts: tuple[Fact, ...] = ()
    """The observation for programs."""
    details: tuple[str, ...] = ()
    """Further lines for the page."""
    ran_with: tuple[tuple[str, str], ...] = ()
    """What ran, where it differs from what the cell declares: (package, version or remark)."""
    excerpt: str = ""
    """The tail of the log, or the resolver's explanation."""
    log: LogPath = ""
    """The log's path, below the store's folder."""

    @property
    def packages(self) -> dict[str, str]:
        """The versions of a solution, or of what was installed."""
        return {name: version for kind, name, version in self.facts if kind == "package"}


class Judgement(Struct, frozen=True):
    """A verdict, and whether it is as expected."""

    verdict: Verdict
    expected: bool
    """Nobody needs to look at it."""
    incomplete: bool = False
    """Not decided, for a reason outside the cell."""
    remark: str = ""
    """Why it is unexpected, or the reason of the expectation."""


def judge(answer: Answer, expectation: Expectation | None, *, flaky: bool = False) -> Judgement:
    """Compare an observation with its expectation."""
    if answer.outcome in UNFINISHED:
        return Judgement(Verdict(answer.outcome), expected=False, incomplete=True)
    if flaky:
        return Judgement(Verdict.FLAKY, expected=False, remark="the same inputs gave different outcomes")
    if answer.outcome is Outcome.NOT_CHECKED:
        # Whatever was expected: the deciding input was not read, so nothing is confirmed or contradicted.
        return Judgement(
            Verdict.NOT_CHECKED, expected=False, incomplete=True, remark="the deciding input was not read"
        )
    if expectation is not None:
        return _compare(answer, expectation)
    if answer.outcome is Outcome.PASS:
        return Judgement(Verdict.PASS, expected=True)
    incomplete = answer.outcome is Outcome.NOT_RUN
    return Judgement(Verdict(answer.outcome), expected=False, incomplete=incomplete, remark="expected: pass")


def _compare(answer: Answer, expectation: Expectation) -> Judgement:
    verdict = Verdict(answer.outcome)
    if answer.outcome is not expectation.outcome:
        if answer.outcome is Outcome.PASS:
            verdict = Verdict.UNEXPECTED_PASS
        return Judgement(verdict, expected=False, remark=f"expected: {expectation.outcome}")
    if set(answer.codes) != set(expectation.codes):
        remark = f"expected the codes {_listed(expectation.codes)}, observed {_listed(answer.codes)}"
        return Judgement(verdict, expected=False, remark=remark)
    missing = [text for text in expectation.shows if not any(text in sign for sign in answer.signs)]
    if missing:
        return Judgement(verdict, expected=False, remark=f"not observed: {_listed(missing)}")
    if verdict is Verdict.FAIL:
        verdict = Verdict.EXPECTED_FAIL
    return Judgement(verdict, expected=True, remark=expectation.reason)


def blocked_by(layer: str, judgement: Judgement) -> Judgement:
    """Return the verdict of a layer that was not run because the layer it needs did not pass."""
    return Judgement(
        Verdict.NOT_RUN,
        expected=judgement.expected,
        incomplete=judgement.incomplete,
        remark=f"{layer}: {judgement.verdict.value}",
    )


def exit_code(judgements: Iterable[Judgement]) -> int:
    """Return 0 if everything is as expected, 1 if something is not, 3 if the worst is an undecided verdict."""
    judgements = list(judgements)
    if any(not item.expected and not item.incomplete for item in judgements):
        return 1
    return 3 if any(item.incomplete for item in judgements) else 0


def _listed(items: Iterable[str]) -> str:
    return ", ".join(items) or "none"
