"""What a layer observed, what was expected of it, and the verdict that follows. Pure.

The store keeps what was *observed*. The verdict is made from it and from today's expectations each time it is
shown, so correcting an expectation needs no new run.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """What a layer observed."""

    PASS = "pass"  # noqa: S105 - a verdict
    FAIL = "fail"
    UNRESOLVABLE = "unresolvable"
    NOT_RUN = "not_run"
    NOT_JUDGED = "not_judged"
    TIMEOUT = "timeout"
    INFRA_ERROR = "infra_error"


class Verdict(StrEnum):
    """An outcome held against the expectation."""

    PASS = "pass"  # noqa: S105 - a verdict
    FAIL = "fail"
    EXPECTED_FAIL = "expected_fail"
    UNEXPECTED_PASS = "unexpected_pass"  # noqa: S105 - a verdict
    UNRESOLVABLE = "unresolvable"
    NOT_RUN = "not_run"
    NOT_JUDGED = "not_judged"
    TIMEOUT = "timeout"
    INFRA_ERROR = "infra_error"
    FLAKY = "flaky"


class EvidenceLevel(StrEnum):
    """How a claim is known, weakest first."""

    DECLARED = "declared"
    STATIC = "static"
    EXECUTED = "executed"


# These say nothing about the cell: they are tried again by the next run.
UNFINISHED = frozenset({Outcome.TIMEOUT, Outcome.INFRA_ERROR})


@dataclass(frozen=True)
class Expectation:
    """What `matrix.toml` says a layer will observe, if not a pass."""

    outcome: Outcome
    """`fail`, `unresolvable` or `not_run`."""
    reason: str
    """Why: one or two sentences for the reader of the table."""
    codes: tuple[str, ...] = ()
    """Known issues that must be observed, exactly these."""
    shows: tuple[str, ...] = ()
    """Strings that the observation must show, each in one of its signs (a missing name, a file:line)."""
    link: str = ""
    of_machine: bool = False
    """It is of what runs in place of the pair on a machine without a GPU, and says nothing about the pair."""


@dataclass(frozen=True)
class Grid:
    """A small table of evidence."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Answer:
    """What a layer found out about a cell."""

    outcome: Outcome
    summary: str
    """One line."""
    evidence: EvidenceLevel
    codes: tuple[str, ...] = ()
    """Known issues observed."""
    signs: tuple[str, ...] = ()
    """The observation in short lines that expectations can name."""
    facts: tuple[tuple[str, ...], ...] = ()
    """The observation for programs: what each is comes first, as ("package", "torch", "2.8.0")."""
    details: tuple[str, ...] = ()
    """Further lines for the page."""
    grids: tuple[Grid, ...] = ()
    """Evidence that is read best as a table."""
    curve: tuple[float, ...] = ()
    """Reward by step, thinned, where something was trained."""
    ran_with: tuple[tuple[str, str], ...] = ()
    """What ran, where it isn't what the cell declares: (package, version or remark)."""
    excerpt: str = ""
    """The tail of the log, or the resolver's explanation."""
    log: str = ""
    """The log's path, below the store's folder."""

    def told(self, what: str) -> list[tuple[str, ...]]:
        """Returns the facts of one kind, without its name."""
        return [fact[1:] for fact in self.facts if fact[0] == what]

    @property
    def packages(self) -> dict[str, str]:
        """The versions of a solution, or of what was installed."""
        return {fact[0]: fact[1] for fact in self.told("package")}


@dataclass(frozen=True)
class Judged:
    """A verdict and what it means for the run as a whole."""

    verdict: Verdict
    expected: bool
    """Nobody need look at it."""
    incomplete: bool = False
    """The question stayed open for a reason that is not the cell's."""
    remark: str = ""
    """Why it isn't as expected, or the reason of the expectation."""


def judge(answer: Answer, expectation: Expectation | None, *, flaky: bool = False) -> Judged:
    """Holds what was observed against what was expected."""
    if answer.outcome in UNFINISHED:
        return Judged(Verdict(answer.outcome), expected=False, incomplete=True)
    if flaky:
        return Judged(Verdict.FLAKY, expected=False, remark="the same inputs gave different outcomes")
    if answer.outcome is Outcome.NOT_JUDGED:
        # Whatever was expected: what decides was not read, so nothing is confirmed and nothing contradicted.
        return Judged(Verdict.NOT_JUDGED, expected=False, incomplete=True, remark="what decides was not read")
    if expectation is None:
        passed = answer.outcome is Outcome.PASS
        return Judged(
            Verdict(answer.outcome),
            expected=passed,
            incomplete=answer.outcome is Outcome.NOT_RUN,
            remark="" if passed else "expected: pass",
        )
    return _against(answer, expectation)


def _against(answer: Answer, expectation: Expectation) -> Judged:
    if answer.outcome is Outcome.PASS:
        return Judged(Verdict.UNEXPECTED_PASS, expected=False, remark=f"expected: {expectation.outcome}")
    if answer.outcome is not expectation.outcome:
        return Judged(Verdict(answer.outcome), expected=False, remark=f"expected: {expectation.outcome}")
    missing = [text for text in expectation.shows if not any(text in sign for sign in answer.signs)]
    if set(answer.codes) != set(expectation.codes):
        remark = f"expected the codes {_words(expectation.codes)}, observed {_words(answer.codes)}"
        return Judged(Verdict(answer.outcome), expected=False, remark=remark)
    if missing:
        return Judged(Verdict(answer.outcome), expected=False, remark=f"not observed: {_words(missing)}")
    verdict = Verdict.EXPECTED_FAIL if answer.outcome is Outcome.FAIL else Verdict(answer.outcome)
    return Judged(verdict, expected=True, remark=expectation.reason)


def blocked(needed: str, by: Judged) -> Judged:
    """Returns the verdict of a layer that was not asked because `needed` did not pass."""
    return Judged(
        Verdict.NOT_RUN,
        expected=by.expected,
        incomplete=by.incomplete,
        remark=f"{needed}: {by.verdict.value}",
    )


def exit_code(judged: list[Judged]) -> int:
    """Returns 0 if all is as expected, 1 if something isn't, 3 if something is open and nothing is worse."""
    if any(not item.expected and not item.incomplete for item in judged):
        return 1
    return 3 if any(item.incomplete for item in judged) else 0


def _words(items: tuple[str, ...] | list[str]) -> str:
    return ", ".join(items) or "none"
