"""Tests of the search for the source lines of behaviour rules."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from diagnostics.api_index.rules import SourceLine, project_rules
from evaluation.matrix.rule_releases import deciding_case, has_line, has_lines

CASES = [(rule, case) for rule in project_rules().rule for case in rule.cases]


def sources_of(files):
    """Return these files by name as the sources of a release."""
    return SimpleNamespace(names=lambda: frozenset(files), read=files.get)


def sources_with(lines):
    """Return sources that contain exactly these lines."""
    files: dict[str, str] = {}
    for line in lines:
        if not line.absent:
            files[line.files[0]] = files.get(line.files[0], "") + f"{line.text}\n"
    return sources_of(files)


@pytest.mark.parametrize(("rule", "case"), CASES)
def test_case_is_found_by_its_lines(rule, case):
    """A case is chosen if its lines exist in the engine; a release without any of a rule's lines has none."""
    assert rule.cases[deciding_case(rule, sources_with(case.vllm))] is case
    assert has_lines(rule.trl, sources_with(rule.trl))
    assert not has_lines(rule.trl, sources_of({}))
    assert deciding_case(rule, sources_of({})) is None


def test_wrapped_line_is_found():
    """A line is found although it is wrapped; an absent text must occur in none of the files."""
    sources = sources_of({"a.py": "x\nraise TypeError(\n    'no' )\n"})
    assert has_line(SourceLine(("b.py", "a.py"), "raise TypeError( 'no' )"), sources)
    assert not has_line(SourceLine(("a.py",), "raise", absent=True), sources)
    assert has_line(SourceLine(("b.py",), "raise", absent=True), sources)
    assert not has_line(SourceLine(("b.py",), "raise"), sources)
