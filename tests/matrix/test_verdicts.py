"""Outcomes against expectations, and what a run comes to."""

from __future__ import annotations

import pytest

from diagnostics.matrix.plan.verdicts import (
    Answer,
    EvidenceLevel,
    Expectation,
    Judged,
    Outcome,
    Verdict,
    blocked,
    exit_code,
    judge,
)


def answer(outcome, codes=(), signs=()):
    """What a layer observed."""
    return Answer(Outcome(outcome), "seen", EvidenceLevel.EXECUTED, codes=codes, signs=signs)


def expect(outcome, codes=(), shows=()):
    """What was expected of it."""
    return Expectation(Outcome(outcome), "because", codes, shows)


@pytest.mark.parametrize(
    ("seen", "expected", "verdict", "as_expected"),
    [
        (answer("pass"), None, Verdict.PASS, True),
        (answer("fail"), None, Verdict.FAIL, False),
        (answer("unresolvable"), None, Verdict.UNRESOLVABLE, False),
        (answer("fail", ("A",)), expect("fail", ("A",)), Verdict.EXPECTED_FAIL, True),
        (answer("fail", ("A", "B")), expect("fail", ("A",)), Verdict.FAIL, False),
        (answer("fail", ()), expect("fail", ("A",)), Verdict.FAIL, False),
        (answer("fail", (), ("x at a.py:7",)), expect("fail", (), ("a.py:7",)), Verdict.EXPECTED_FAIL, True),
        (answer("fail", (), ("x at a.py:8",)), expect("fail", (), ("a.py:7",)), Verdict.FAIL, False),
        (answer("pass"), expect("fail"), Verdict.UNEXPECTED_PASS, False),
        (answer("pass"), expect("unresolvable"), Verdict.UNEXPECTED_PASS, False),
        (answer("pass"), expect("not_run"), Verdict.UNEXPECTED_PASS, False),
        (answer("unresolvable"), expect("unresolvable"), Verdict.UNRESOLVABLE, True),
        (answer("fail"), expect("not_run"), Verdict.FAIL, False),
        (answer("not_run"), expect("not_run"), Verdict.NOT_RUN, True),
        (answer("not_run"), None, Verdict.NOT_RUN, False),
    ],
)
def test_an_outcome_is_held_against_its_expectation(seen, expected, verdict, as_expected):
    """Only what was expected, with its codes and its signs, counts as expected; an unexpected pass does not."""
    judged = judge(seen, expected)
    assert (judged.verdict, judged.expected) == (verdict, as_expected)


@pytest.mark.parametrize("outcome", ["timeout", "infra_error"])
@pytest.mark.parametrize("expected", [None, expect("fail")])
def test_what_stayed_open_is_never_as_expected(outcome, expected):
    """A timeout and an infrastructure fault say nothing about the cell, whatever was expected."""
    judged = judge(answer(outcome), expected)
    assert (judged.verdict.value, judged.expected, judged.incomplete) == (outcome, False, True)


def test_disagreeing_answers_are_flaky():
    """Same inputs, different outcomes: flaky, whatever the last one was."""
    assert judge(answer("pass"), None, flaky=True).verdict is Verdict.FLAKY


def test_a_blocked_layer_takes_over_what_its_obstacle_means():
    """Not run behind an expected failure is expected; behind an infrastructure fault it stays open."""
    behind = blocked("resolve", judge(answer("unresolvable"), expect("unresolvable")))
    assert (behind.verdict, behind.expected, behind.remark) == (
        Verdict.NOT_RUN,
        True,
        "resolve: unresolvable",
    )
    behind = blocked("install", judge(answer("infra_error"), None))
    assert (behind.expected, behind.incomplete) == (False, True)


@pytest.mark.parametrize(
    ("judged", "code"),
    [
        ([Judged(Verdict.PASS, True), Judged(Verdict.EXPECTED_FAIL, True)], 0),
        ([Judged(Verdict.PASS, True), Judged(Verdict.TIMEOUT, False, True)], 3),
        ([Judged(Verdict.FAIL, False), Judged(Verdict.TIMEOUT, False, True)], 1),
        ([Judged(Verdict.UNEXPECTED_PASS, False)], 1),
        ([Judged(Verdict.FLAKY, False)], 1),
    ],
)
def test_exit_codes(judged, code):
    """0 as expected, 1 something is not, 3 something is open and nothing is worse."""
    assert exit_code(judged) == code
