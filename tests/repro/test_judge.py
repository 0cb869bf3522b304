"""What counts as reproduced: what came out of an installed package, or what the figures show."""

import importlib.util
from dataclasses import replace

import pytest

from repro import judge
from repro.base import Outcome, Trigger

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
    """A module that stands below a folder named site-packages."""
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
    sought = Trigger("sought", "fails as sought", lambda _: upstream.fails("sought"))
    other = Trigger("other", "fails otherwise", lambda _: upstream.fails("other"))
    base = toys.REPROS["TOY001"]
    return replace(base, assertion="assert len([1]) == 0", triggers=(*base.triggers, sought, other))


def test_the_assertion_sought_is_reproduced_with_its_place(repro):
    """Statement, path in the wheel, line, function, and the calls that led there."""
    seen = judge.attempt(repro, "sought", None)
    assert (seen.outcome, seen.as_recorded) == (Outcome.REPRODUCED, True)
    assert (seen.assertion, seen.where, seen.function) == ("assert len([1]) == 0", "pack/core.py:4", "fails")
    assert seen.chain[-1] == "fails (pack/core.py:4)"
    assert seen.simulated == ("everything",)


def test_another_assertion_of_upstream_is_not_the_one_sought(repro):
    """It's told, on one line, and doesn't count."""
    seen = judge.attempt(repro, "other", None)
    assert (seen.outcome, seen.as_recorded) == (Outcome.NOT_REPRODUCED, False)
    assert seen.assertion == "assert kind == 'never'"
    assert "sought" in seen.detail


def test_a_mitigation_that_trades_one_assertion_for_another_does_not_help(repro):
    """And the text says which of the two it was."""
    assert judge.attempt(repro, "sought", "helps").detail == "the same assertion"
    seen = judge.attempt(repro, "other", "helps")
    assert (seen.outcome, seen.detail) == (Outcome.NOT_MITIGATED, "another assertion in its place")


@pytest.mark.parametrize("trigger", ["own_assertion", "wrong_value"])
def test_a_failure_of_the_harness_proves_nothing(repro, trigger):
    """An assertion of ours, and any other exception, is an error that names its place."""
    seen = judge.attempt(repro, trigger, None)
    assert (seen.outcome, seen.as_recorded) == (Outcome.ERROR, None)
    assert "the harness failed at " in seen.detail
    assert "toys.py:" in seen.detail


@pytest.mark.parametrize(
    ("mitigation", "outcome", "as_recorded"),
    [
        (None, Outcome.REPRODUCED, True),
        ("helps", Outcome.MITIGATED, True),
        ("useless", Outcome.NOT_MITIGATED, False),
        ("senseless", Outcome.INAPPLICABLE, None),
    ],
)
def test_a_silent_failure_is_judged_by_its_figures(repro, mitigation, outcome, as_recorded):
    """A lost token reproduces it; a mitigation helped only if all the work was done."""
    seen = judge.attempt(repro, "silent", mitigation)
    assert (seen.outcome, seen.as_recorded) == (outcome, as_recorded)
    if mitigation == "helps":
        assert (seen.finished, seen.expected, seen.tokens) == (2, 2, 5)


def test_work_done_without_the_failure_is_not_reproduced(repro):
    """Where an exception was expected, coming to the end is not a reproduction."""
    seen = judge.attempt(repro, "chatter", None)
    assert (seen.outcome, seen.as_recorded) == (Outcome.NOT_REPRODUCED, False)
