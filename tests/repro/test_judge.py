"""Criteria for reproduced: an exception out of an installed package, or figures that show the failure."""

import importlib.util
from dataclasses import replace

import pytest

from repro import judge
from repro.base import Attempt, AttemptOutcome, ElsewhereError, Trigger

UPSTREAM = """
def fails(kind):
    if kind == "sought":
        assert len([1]) == 0, (
            "a message that "
            "is long")
    assert (kind
            == "never")
"""


@pytest.fixture
def upstream(tmp_path):
    """Make a module below a folder named site-packages."""
    path = tmp_path / "site-packages" / "pack" / "core.py"
    path.parent.mkdir(parents=True)
    path.write_text(UPSTREAM)
    spec = importlib.util.spec_from_file_location("pack_core", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def repro(toys, upstream):
    """A toy whose triggers fail upstream, with the assertion sought and with another."""
    targets = Trigger("sought", lambda _: upstream.fails("sought"), "fails as sought")
    second = Trigger("other", lambda _: upstream.fails("other"), "fails otherwise")
    base = toys.REPROS["TOY001"]
    return replace(base, assertion="assert len([1]) == 0", triggers=(*base.triggers, targets, second))


def test_the_assertion_sought_is_reproduced_with_its_place(repro):
    """Statement, path in the wheel, line, function, and the calls that led there."""
    observed = judge.attempt(repro, "sought", None)
    assert (observed.outcome, observed.as_recorded) == (AttemptOutcome.REPRODUCED, True)
    assert (observed.assertion, observed.where, observed.function) == (
        "assert len([1]) == 0",
        "pack/core.py:4",
        "fails",
    )
    assert observed.chain[-1] == "fails (pack/core.py:4)"
    assert observed.simulated == ("everything",)


def test_another_assertion_of_upstream_is_not_the_one_sought(repro):
    """It is reported in one line and doesn't count."""
    observed = judge.attempt(repro, "other", None)
    assert (observed.outcome, observed.as_recorded) == (AttemptOutcome.NOT_REPRODUCED, False)
    assert observed.assertion == "assert kind == 'never'"
    assert "sought" in observed.detail


def elsewhere(repro, upstream, kind, line, mitigation=None):
    """Judge a failure that ended another process, at a line of the module."""
    error = ElsewhereError(
        kind, "what it said", [("/here/repro/x.py", 1, "main"), (upstream.__file__, line, "fails")], "a note"
    )
    return judge.by_exception(Attempt("sought", mitigation, AttemptOutcome.ERROR), repro, error)


def test_a_failure_of_another_process_counts_as_one_here(repro, upstream):
    """Its frames are judged as in that process, and its notes are reported."""
    observed = elsewhere(repro, upstream, "AssertionError", 4)
    assert (observed.outcome, observed.where, observed.function) == (
        AttemptOutcome.REPRODUCED,
        "pack/core.py:4",
        "fails",
    )
    assert observed.chain == ("main (repro/x.py:1)", "fails (pack/core.py:4)")
    assert observed.detail == "a note"


def test_another_exception_of_upstream_in_another_process_is_told(repro, upstream):
    """It is not the one sought; under a mitigation it is one in its place."""
    observed = elsewhere(repro, upstream, "RuntimeError", 4)
    assert observed.outcome is AttemptOutcome.NOT_REPRODUCED
    assert "another failure than the one sought" in observed.detail
    assert "RuntimeError: what it said" in observed.detail
    observed = elsewhere(repro, upstream, "RuntimeError", 4, "helps")
    assert observed.outcome is AttemptOutcome.NOT_MITIGATED
    assert observed.detail == "another failure in its place; RuntimeError: what it said; a note"


def test_a_failure_of_our_own_in_another_process_is_the_harness(repro):
    """None of its frames is in an installed package."""
    error = ElsewhereError("ValueError", "ours", [("/here/repro/x.py", 1, "main")])
    observed = judge.by_exception(Attempt("sought", None, AttemptOutcome.ERROR), repro, error)
    assert observed.outcome is AttemptOutcome.ERROR
    assert "the harness failed" in observed.detail


@pytest.mark.parametrize(
    ("sought", "outcome"),
    [
        ({"function": "fails"}, AttemptOutcome.REPRODUCED),
        ({"function": "other"}, AttemptOutcome.NOT_REPRODUCED),
        ({"assertion": "", "message": "it said"}, AttemptOutcome.REPRODUCED),
        ({"assertion": "", "message": "another text"}, AttemptOutcome.NOT_REPRODUCED),
        ({"assertion": ""}, AttemptOutcome.NOT_REPRODUCED),
    ],
)
def test_a_failure_is_named_by_its_statement_function_or_text(repro, upstream, sought, outcome):
    """What the repro names must all be there; a repro that names nothing seeks no exception."""
    assert elsewhere(replace(repro, **sought), upstream, "AssertionError", 4).outcome is outcome


def test_a_mitigation_that_trades_one_assertion_for_another_does_not_help(repro):
    """The text names the assertion that failed."""
    assert judge.attempt(repro, "sought", "helps").detail == "the same assertion"
    observed = judge.attempt(repro, "other", "helps")
    assert (observed.outcome, observed.detail) == (
        AttemptOutcome.NOT_MITIGATED,
        "another assertion in its place",
    )


@pytest.mark.parametrize("trigger", ["own_assertion", "wrong_value"])
def test_a_failure_of_the_harness_proves_nothing(repro, trigger):
    """An assertion of ours, and any other exception, is an error that names its place."""
    observed = judge.attempt(repro, trigger, None)
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
def test_a_silent_failure_is_judged_by_its_figures(repro, mitigation, outcome, as_recorded):
    """A lost token reproduces it; a mitigation helped only if all the work was done."""
    observed = judge.attempt(repro, "silent", mitigation)
    assert (observed.outcome, observed.as_recorded) == (outcome, as_recorded)
    if mitigation == "helps":
        assert (observed.finished, observed.expected, observed.tokens) == (2, 2, 5)


def test_work_done_without_the_failure_is_not_reproduced(repro):
    """If an exception was expected, finishing is not a reproduction."""
    observed = judge.attempt(repro, "chatter", None)
    assert (observed.outcome, observed.as_recorded) == (AttemptOutcome.NOT_REPRODUCED, False)
