"""`repro.judge` decides the outcome of an attempt; `repro.registry` describes tallies and decides a code's outcome."""

import importlib.util
from dataclasses import replace

import pytest

from repro import judge
from repro.registry import Attempt, AttemptOutcome, Tally, Trigger, UpstreamFailureError, overall_outcome

UPSTREAM = """
def fails(kind):
    if kind == "expected":
        assert len([1]) == 0, (
            "a message that "
            "is long")
    assert (kind
            == "never")
"""


@pytest.fixture
def upstream(tmp_path):
    """Return a module that fails, in a folder named site-packages."""
    path = tmp_path / "site-packages" / "pack" / "core.py"
    path.parent.mkdir(parents=True)
    path.write_text(UPSTREAM)
    spec = importlib.util.spec_from_file_location("pack_core", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def repro(toys, upstream):
    """Return a toy repro with two more triggers, which fail in upstream's code: as expected, and otherwise."""
    expected = Trigger("expected", lambda _: upstream.fails("expected"), "fails as expected")
    other_trigger = Trigger("other", lambda _: upstream.fails("other"), "fails otherwise")
    base = toys.REPROS["TOY001"]
    return replace(base, assertion="assert len([1]) == 0", triggers=(*base.triggers, expected, other_trigger))


def test_expected_assertion_is_reproduced_with_its_location(repro):
    """The attempt has the statement, the path in the wheel, the line, the function and the calls."""
    observed = judge.run_attempt(repro, "expected", None)
    assert (observed.outcome, observed.as_recorded) == (AttemptOutcome.REPRODUCED, True)
    assert observed.assertion == "assert len([1]) == 0"
    assert (observed.where, observed.function) == ("pack/core.py:4", "fails")
    assert observed.chain[-1] == "fails (pack/core.py:4)"


def test_other_upstream_assertion_does_not_count(repro):
    """Another upstream assertion counts as not reproduced; the detail names the expected one."""
    observed = judge.run_attempt(repro, "other", None)
    assert (observed.outcome, observed.as_recorded) == (AttemptOutcome.NOT_REPRODUCED, False)
    assert observed.assertion == "assert kind == 'never'"
    assert "than the expected one" in observed.detail


def judge_remote_failure(repro, upstream, kind, line, mitigation=None):
    """Judge a failure of another process, of type `kind` at a line of the upstream module."""
    error = UpstreamFailureError(
        kind, "what it said", [("/here/repro/x.py", 1, "main"), (upstream.__file__, line, "fails")], "a note"
    )
    return judge.judge_exception(Attempt("expected", mitigation, AttemptOutcome.ERROR), repro, error)


def test_failure_of_another_process_counts(repro, upstream):
    """A failure of another process is judged by its frames, and its note is reported."""
    observed = judge_remote_failure(repro, upstream, "AssertionError", 4)
    assert observed.outcome is AttemptOutcome.REPRODUCED
    assert (observed.where, observed.function) == ("pack/core.py:4", "fails")
    assert observed.chain == ("main (repro/x.py:1)", "fails (pack/core.py:4)")
    assert observed.detail == "a note"


def test_other_exception_of_another_process_is_reported(repro, upstream):
    """Another exception counts as not reproduced; under a mitigation it counts as not mitigated."""
    observed = judge_remote_failure(repro, upstream, "RuntimeError", 4)
    assert observed.outcome is AttemptOutcome.NOT_REPRODUCED
    assert "another failure than the expected one" in observed.detail
    assert "RuntimeError: what it said" in observed.detail
    observed = judge_remote_failure(repro, upstream, "RuntimeError", 4, "helps")
    assert observed.outcome is AttemptOutcome.NOT_MITIGATED
    assert observed.detail == "another failure in its place; RuntimeError: what it said; a note"


def test_own_failure_in_another_process_is_a_harness_error(repro):
    """A failure in another process without a frame in an installed package is an error of the harness."""
    error = UpstreamFailureError("ValueError", "ours", [("/here/repro/x.py", 1, "main")])
    observed = judge.judge_exception(Attempt("expected", None, AttemptOutcome.ERROR), repro, error)
    assert observed.outcome is AttemptOutcome.ERROR
    assert "the harness failed" in observed.detail


@pytest.mark.parametrize(
    ("expected", "outcome"),
    [
        ({"function": "fails"}, AttemptOutcome.REPRODUCED),
        ({"function": "other"}, AttemptOutcome.NOT_REPRODUCED),
        ({"assertion": "", "message": "it said"}, AttemptOutcome.REPRODUCED),
        ({"assertion": "", "message": "another text"}, AttemptOutcome.NOT_REPRODUCED),
        ({"assertion": ""}, AttemptOutcome.NOT_REPRODUCED),
    ],
)
def test_failure_is_matched_by_statement_function_or_text(repro, upstream, expected, outcome):
    """Statement, function and message that the repro names must match; without any, no exception is expected."""
    assert judge_remote_failure(replace(repro, **expected), upstream, "AssertionError", 4).outcome is outcome


def test_mitigation_with_another_assertion_does_not_help(repro):
    """The detail says whether the same or another assertion failed with the mitigation."""
    assert judge.run_attempt(repro, "expected", "helps").detail == "the same assertion"
    observed = judge.run_attempt(repro, "other", "helps")
    assert observed.outcome is AttemptOutcome.NOT_MITIGATED
    assert observed.detail == "another assertion in its place"


@pytest.mark.parametrize("trigger", ["own_assertion", "wrong_value"])
def test_harness_failure_is_an_error(repro, trigger):
    """An assertion or another exception in the harness is an error with its location."""
    observed = judge.run_attempt(repro, trigger, None)
    assert (observed.outcome, observed.as_recorded) == (AttemptOutcome.ERROR, None)
    assert "the harness failed at " in observed.detail
    assert "toys.py:" in observed.detail


@pytest.mark.parametrize(
    ("mitigation", "outcome", "as_recorded"),
    [
        (None, AttemptOutcome.REPRODUCED, True),
        ("helps", AttemptOutcome.MITIGATED, True),
        ("useless", AttemptOutcome.NOT_MITIGATED, False),
        ("senseless", AttemptOutcome.INAPPLICABLE, None),
    ],
)
def test_silent_failure_is_judged_by_its_counts(repro, mitigation, outcome, as_recorded):
    """A lost token reproduces a silent failure; a mitigation helps only if the tally is complete."""
    observed = judge.run_attempt(repro, "silent", mitigation)
    assert (observed.outcome, observed.as_recorded) == (outcome, as_recorded)
    if mitigation == "helps":
        assert (observed.finished, observed.expected, observed.tokens) == (2, 2, 5)


def test_expected_exception_that_does_not_occur_is_not_reproduced(repro):
    """A trigger that should raise is not reproduced if it returns a tally."""
    observed = judge.run_attempt(repro, "chatter", None)
    assert (observed.outcome, observed.as_recorded) == (AttemptOutcome.NOT_REPRODUCED, False)


@pytest.mark.parametrize(
    ("tally", "description"),
    [
        (Tally({"a": 3}, [("a", 2)]), "0 of 1 requests finished, 2 tokens; not served: a"),
        (Tally({"a": 3}, []), "not served: a"),
        (Tally({"a": 3}, [("a", 3), ("a", 3)]), "not served: a"),
        (Tally({"a": None}, []), "not served: a"),
        (
            Tally({"a": None, "b": 3, "c": 3}, [("a", 0), ("b", 3)]),
            "2 of 3 requests finished, 3 tokens; not served: c",
        ),
        (Tally({"a": 3}, [("a", 3)], stray=2), "2 completions went to a caller that had not asked for them"),
        (Tally({"a": 3}, [("a", 3)], leaked_blocks=5), "5 KV cache blocks leaked"),
        (Tally({"a": 3}, [("a", 3)], parked=1), "1 sequences left parked as stopped"),
        (Tally.of_checks({"a": True, "b": False}, "checks passed", "so far"), "1 of 2 checks passed; so far"),
    ],
)
def test_incomplete_tally_has_a_reason(tally, description):
    """Missing tokens, duplicate, misdelivered or missing completions, and leaked blocks or sequences are described."""
    assert not tally.complete
    assert description in tally.describe()


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
    """The most important outcome without a mitigation counts; errors and timeouts come before `not_reproduced`."""
    attempts = [Attempt("t", None, outcome) for outcome in outcomes]
    assert overall_outcome([*attempts, Attempt("t", "m", AttemptOutcome.NOT_MITIGATED)]) is expected
