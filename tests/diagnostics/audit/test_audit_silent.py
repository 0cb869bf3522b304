"""Every failure that says nothing has a question that finds it, or a reason why none does."""

import json

from diagnostics.audit import silent
from diagnostics.catalogue import loader
from diagnostics.report.audits import wording


def test_every_silent_failure_has_a_probe_or_a_reason():
    """And nothing else stands there."""
    silent_ones = {code: issue for code, issue in loader.load().items() if issue.kind == "silent"}
    named = {code for code, issue in silent_ones.items() if issue.audit}
    assert silent_ones.keys() - named == (silent.PROBES.keys() | silent.WHY_NOT.keys()) - named
    assert silent_ones.keys() >= silent.PROBES.keys() | silent.WHY_NOT.keys()
    assert not silent.PROBES.keys() & silent.WHY_NOT.keys()
    assert all(silent.PROBES.values())
    assert all(silent.WHY_NOT.values())


def test_every_family_is_called_something():
    """A fault's class has a name for when nothing is wrong with it."""
    assert [family for family in wording.FAULTS if not wording.about(family)] == []
    assert json.dumps(wording.FACTS)
