"""Define answers (what a check of a cell observed), and compute verdicts from answers and expectations.

A cell is checked in several layers, each of which gives an answer. A verdict is the answer compared with the
expectation in `matrix.toml`. The store keeps only answers. Verdicts are computed (`judge`) whenever they are shown, so
a corrected expectation needs no run. `exit_code` computes the exit code of a run from its verdicts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

# The patterns below are checked when a store is read, because an event of another store is untrusted.
NAME = r"[A-Za-z0-9_][A-Za-z0-9_.+:-]{0,200}"
Code = Annotated[str, Meta(pattern=r"\A[A-Z]{1,8}[0-9]{0,6}\Z")]
Fact = tuple[Literal["package", "missing", "undecided"], str, str]
"""("package", name, version), or "missing" or "undecided" with a name that the trainer uses and a remark."""
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


# Outcomes that say nothing about the cell; the next run tries again.
OPEN_OUTCOMES = frozenset({Outcome.TIMEOUT, Outcome.INFRA_ERROR})
EXPECTED_OUTCOMES = (Outcome.FAIL, Outcome.NOT_RUN, Outcome.UNRESOLVABLE)


class Expectation(Struct, frozen=True, forbid_unknown_fields=True):
    """An expected outcome other than a pass, from `matrix.toml`."""

    outcome: Outcome
    """One of EXPECTED_OUTCOMES."""
    reason: Annotated[str, Meta(pattern=r"\S")]
    """Reason for readers of the table, one or two sentences."""
    codes: tuple[str, ...] = ()
    """Codes of the known issues that must be observed, and no others."""
    shows: tuple[str, ...] = ()
    """Strings that must occur in the signs of the observation (a missing name, a file:line)."""
    of_machine: bool = False
    """Whether the failure comes from the CPU substitute of the pair and says nothing about the pair itself.

    Then a pass is as expected, because it depends on the processor.
    """

    def __post_init__(self) -> None:
        """Refuse other outcomes than EXPECTED_OUTCOMES."""
        if self.outcome not in EXPECTED_OUTCOMES:
            raise ValueError(
                f"outcome: expected one of {', '.join(EXPECTED_OUTCOMES)}; a pass needs no entry"
            )


class Answer(Struct, frozen=True):
    """What a layer observed in a cell."""

    outcome: Outcome
    summary: str
    """The observation in one line."""
    evidence: EvidenceLevel = EvidenceLevel.DECLARED
    """The layer's evidence level, which `Layer.run` fills in."""
    codes: tuple[Code, ...] = ()
    """Codes of the known issues that were observed."""
    signs: tuple[str, ...] = ()
    """The observation in short lines that expectations can name."""
    facts: tuple[Fact, ...] = ()
    """Packages and missing or undecided names, for programs."""
    details: tuple[str, ...] = ()
    """Further lines for the HTML page."""
    ran_with: tuple[tuple[str, str], ...] = ()
    """(package, version or remark) for the versions that ran and the differences from the declared environment."""
    excerpt: str = ""
    """The tail of the log, or the resolver's explanation."""
    log: LogPath = ""
    """The log's path, below the store's folder."""

    @property
    def packages(self) -> dict[str, str]:
        """The versions of the packages that were resolved or installed."""
        return {name: version for kind, name, version in self.facts if kind == "package"}

    def change_texts(self, change: Callable[[str], str]) -> Answer:
        """Return the answer with a function applied to its texts, except codes."""
        return msgspec.structs.replace(
            self,
            summary=change(self.summary),
            signs=tuple(map(change, self.signs)),
            facts=tuple((kind, change(name), change(text)) for kind, name, text in self.facts),
            details=tuple(map(change, self.details)),
            ran_with=tuple((change(name), change(text)) for name, text in self.ran_with),
            excerpt=change(self.excerpt),
            log=change(self.log),
        )


class Judgement(Struct, frozen=True):
    """A verdict, and whether it is as expected."""

    verdict: Verdict
    expected: bool
    """Whether the observation is as expected, so that nobody needs to look at it."""
    incomplete: bool = False
    """Whether the verdict is open, because the deciding layer or input was not run, not read or not finished."""
    remark: str = ""
    """Reason why the outcome is unexpected, or the reason of the expectation."""

    @property
    def unexpected(self) -> bool:
        """Whether the verdict is final and not the expected one."""
        return not self.expected and not self.incomplete


def judge(answer: Answer, expectation: Expectation | None, *, flaky: bool = False) -> Judgement:
    """Compare an answer with its expectation; an answer without a result may give an open verdict.

    It is open for TIMEOUT and INFRA_ERROR. If `flaky` is False, it is also open for NOT_CHECKED, and for NOT_RUN
    without an expectation.

    Args:
        answer: The newest answer.
        expectation: The expectation; None expects a pass.
        flaky: Whether the same inputs gave different answers.
    """
    if answer.outcome in OPEN_OUTCOMES:
        return Judgement(Verdict(answer.outcome), expected=False, incomplete=True)
    if flaky:
        return Judgement(Verdict.FLAKY, expected=False, remark="the same inputs gave different outcomes")
    if answer.outcome is Outcome.NOT_CHECKED:
        # The deciding input was not read, so an expectation is neither confirmed nor contradicted.
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
    """Compare an answer with an explicit expectation: outcome, codes, and strings in the signs."""
    verdict = Verdict(answer.outcome)
    if answer.outcome is Outcome.PASS and expectation.of_machine:
        return Judgement(verdict, expected=True, remark=f"on other machines: {expectation.reason}")
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
    """Return the verdict of a layer that did not run because a needed one did not pass; expected if that one was."""
    return Judgement(
        Verdict.NOT_RUN,
        expected=judgement.expected,
        incomplete=judgement.incomplete,
        remark=f"{layer}: {judgement.verdict.value}",
    )


def exit_code(judgements: Iterable[Judgement]) -> int:
    """Return 1 if a final verdict is unexpected, else 3 if a verdict is open, else 0."""
    judgements = list(judgements)
    if any(item.unexpected for item in judgements):
        return 1
    return 3 if any(item.incomplete for item in judgements) else 0


def _listed(items: Iterable[str]) -> str:
    return ", ".join(items) or "none"
