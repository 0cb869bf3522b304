"""A repro's work is complete only if every request was served, and a code's outcome follows from its attempts."""

import pytest

from repro.base import Attempt, AttemptOutcome, Tally, overall


def test_work_is_complete_when_each_request_was_served_once_in_full():
    """Work is complete if each request finished once with all its tokens."""
    work = Tally({"a": 3, "b": None}, [("a", 3), ("b", 0)])
    assert work.complete
    assert (work.finished, work.tokens) == (2, 3)
    assert work.describe() == "2 of 2 requests finished, 3 tokens"


@pytest.mark.parametrize(
    ("work", "description"),
    [
        (Tally({"a": 3}, [("a", 2)]), "0 of 1 requests finished, 2 tokens; not served: a"),
        (Tally({"a": 3}, []), "not served: a"),
        (Tally({"a": 3}, [("a", 3), ("a", 3)]), "not served: a"),
        (Tally({"a": None}, []), "not served: a"),
        (Tally({"a": 3}, [("a", 3)], stray=2), "2 completions went to a caller that had not asked for them"),
        (Tally({"a": 3}, [("a", 3)], leaked_blocks=5), "5 KV cache blocks leaked"),
        (Tally({"a": 3}, [("a", 3)], parked=1), "1 sequences left parked as stopped"),
        (Tally.of_checks({"a": True, "b": False}, "checks passed", "so far"), "1 of 2 checks passed; so far"),
    ],
)
def test_incomplete_work_has_a_reason(work, description):
    """Missing tokens, duplicate, misdelivered or missing completions, and leaked blocks or sequences are described."""
    assert not work.complete
    assert description in work.describe()


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ([AttemptOutcome.NOT_REPRODUCED, AttemptOutcome.REPRODUCED], AttemptOutcome.REPRODUCED),
        ([AttemptOutcome.TIMEOUT, AttemptOutcome.REPRODUCED], AttemptOutcome.REPRODUCED),
        ([AttemptOutcome.NOT_REPRODUCED, AttemptOutcome.ERROR], AttemptOutcome.ERROR),
        ([AttemptOutcome.NOT_REPRODUCED, AttemptOutcome.TIMEOUT], AttemptOutcome.TIMEOUT),
        ([AttemptOutcome.INAPPLICABLE, AttemptOutcome.NOT_REPRODUCED], AttemptOutcome.NOT_REPRODUCED),
        ([AttemptOutcome.INAPPLICABLE], AttemptOutcome.INAPPLICABLE),
    ],
)
def test_outcome_of_a_code_comes_from_unmitigated_attempts(outcomes, expected):
    """An attempt without a result never counts as not reproduced, and mitigated attempts do not count."""
    attempts = [Attempt("t", None, outcome) for outcome in outcomes]
    assert overall([*attempts, Attempt("t", "m", AttemptOutcome.NOT_MITIGATED)]) is expected
