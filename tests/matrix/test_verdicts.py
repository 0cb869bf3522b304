"""A layer's verdict follows from its outcome and its expectation, and a run's exit code from its verdicts."""

import pytest
from msgspec.structs import replace

from diagnostics.matrix.verdicts import (
    Answer,
    EvidenceLevel,
    Expectation,
    Judgement,
    Outcome,
    Verdict,
    blocked_by,
    exit_code,
    judge,
)


def make_answer(outcome, codes=(), signs=()):
    """Return a layer's answer."""
    return Answer(Outcome(outcome), "seen", EvidenceLevel.EXECUTED, codes=codes, signs=signs)


def expect(outcome, codes=(), shows=()):
    """Return an expectation."""
    return Expectation(Outcome(outcome), "because", codes, shows)


@pytest.mark.parametrize(
    ("observed", "expected", "verdict", "as_expected"),
    [
        (make_answer("pass"), None, Verdict.PASS, True),
        (make_answer("fail"), None, Verdict.FAIL, False),
        (make_answer("unresolvable"), None, Verdict.UNRESOLVABLE, False),
        (make_answer("fail", ("A",)), expect("fail", ("A",)), Verdict.EXPECTED_FAIL, True),
        (make_answer("fail", ("A", "B")), expect("fail", ("A",)), Verdict.FAIL, False),
        (
            make_answer("fail", (), ("x at a.py:7",)),
            expect("fail", (), ("a.py:7",)),
            Verdict.EXPECTED_FAIL,
            True,
        ),
        (make_answer("fail", (), ("x at a.py:8",)), expect("fail", (), ("a.py:7",)), Verdict.FAIL, False),
        (make_answer("pass"), expect("fail"), Verdict.UNEXPECTED_PASS, False),
        (make_answer("pass"), replace(expect("fail"), of_machine=True), Verdict.PASS, True),
        (make_answer("unresolvable"), expect("unresolvable"), Verdict.UNRESOLVABLE, True),
        (make_answer("fail"), expect("not_run"), Verdict.FAIL, False),
        (make_answer("not_run"), expect("not_run"), Verdict.NOT_RUN, True),
        (make_answer("not_run"), None, Verdict.NOT_RUN, False),
    ],
)
def test_verdict_of_an_outcome(observed, expected, verdict, as_expected):
    """A result is as expected if outcome, codes and signs match the expectation; without one, only a pass is."""
    judgement = judge(observed, expected)
    assert (judgement.verdict, judgement.expected) == (verdict, as_expected)


@pytest.mark.parametrize("outcome", ["timeout", "infra_error"])
@pytest.mark.parametrize("expected", [None, expect("fail")])
def test_open_outcomes_are_never_as_expected(outcome, expected):
    """A timeout or an infrastructure error is incomplete, whatever the expectation."""
    judgement = judge(make_answer(outcome), expected)
    assert (judgement.verdict.value, judgement.expected, judgement.incomplete) == (outcome, False, True)


def test_disagreeing_answers_are_flaky():
    """Different outcomes for the same inputs give the verdict flaky, even if the last one is a pass."""
    assert judge(make_answer("pass"), None, flaky=True).verdict is Verdict.FLAKY


def test_blocked_layer_follows_its_obstacle():
    """A layer blocked by an expected failure is as expected; one blocked by an infrastructure error is incomplete."""
    blocked = blocked_by("resolve", judge(make_answer("unresolvable"), expect("unresolvable")))
    assert (blocked.verdict, blocked.expected) == (Verdict.NOT_RUN, True)
    assert blocked.remark == "resolve: unresolvable"
    blocked = blocked_by("install", judge(make_answer("infra_error"), None))
    assert (blocked.expected, blocked.incomplete) == (False, True)


@pytest.mark.parametrize(
    ("judgements", "code"),
    [
        ([Judgement(Verdict.PASS, True), Judgement(Verdict.EXPECTED_FAIL, True)], 0),
        ([Judgement(Verdict.PASS, True), Judgement(Verdict.TIMEOUT, False, True)], 3),
        ([Judgement(Verdict.FAIL, False), Judgement(Verdict.TIMEOUT, False, True)], 1),
        ([Judgement(Verdict.UNEXPECTED_PASS, False)], 1),
        ([Judgement(Verdict.FLAKY, False)], 1),
    ],
)
def test_exit_codes(judgements, code):
    """The exit code is 0 if all is as expected, 1 if a result is not, and 3 if results are only incomplete."""
    assert exit_code(judgements) == code
