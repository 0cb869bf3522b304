"""What every ms-swift release said of its arguments, held against the catalogue; and how it is asked and kept."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from diagnostics import catalog
from diagnostics.matrix.ask.in_cell import Reply
from diagnostics.matrix.build.paths import ROOT
from diagnostics.matrix.plan.verdicts import Answer, EvidenceLevel, Outcome
from diagnostics.matrix.records.events import Event, from_line, to_line
from diagnostics.matrix.sweep import swift
from repro.questions.swift_arguments import CASES

DOCUMENT = json.loads(swift.PUBLISHED.read_text())
SAID = {version: group["cases"] for group in DOCUMENT["groups"] for version in group["releases"]}


def test_every_release_was_asked_everything():
    """All cases, each with one of the known answers, for the newest release of every minor at least."""
    assert DOCUMENT["schema"] == swift.SCHEMA
    assert DOCUMENT["unanswered"] == {}
    assert len(SAID) >= 19
    for cases in SAID.values():
        assert set(cases) == set(CASES)
        assert {case["said"] for case in cases.values()} <= {"accepts", "warns", "refuses", "no option"}
    assert DOCUMENT["about"] == {name: case.about for name, case in CASES.items()}


def test_the_table_in_the_docs_is_the_published_one():
    """Made from the document, not written beside it."""
    assert swift.TABLE.read_text() == swift.markdown(DOCUMENT)


@pytest.mark.parametrize(
    ("case", "words", "which"),
    [
        ("workers_do_not_add_up", "Async mode requires", 0),
        ("workers_fewer_ranks", "Colocate mode requires", 0),
        ("workers_colocate_async", "async_generate requires async mode", 0),
        ("mode_colocate_async", "async generate require vllm_mode == server", 1),
    ],
)
def test_the_catalogue_claims_what_was_run(case, words, which):
    """A release refuses the case in these words if and only if CFG001 says that it is affected so."""
    claim = catalog.load()["CFG001"].affected[which]
    refusing = {version for version, cases in SAID.items() if words in cases[case]["text"]}
    assert refusing == set(claim.releases)
    assert claim.evidence == "executed"


def test_two_settings_are_turned_into_colocate_with_no_more_than_a_warning():
    """3.5: training and rollout devices that add up, and server mode without an address: both became colocate."""
    cases = SAID["3.5.3"]
    for name in ("workers_separate", "mode_server_no_host"):
        assert cases[name]["said"] == "warns"
        assert cases[name]["chosen"]["vllm_mode"] == "colocate"


def test_neighbours_that_say_the_same_stand_together():
    """And others apart; what gave no answer is named as such."""

    def report(text):
        cases = {"one": {"said": "refuses", "text": text}}
        return {"beside": "b", "packages": {}, "simulated": [], "about": {"one": "o"}, "cases": cases}

    found = {version: report(text) for version, text in (("3.10.0", "y"), ("3.9.0", "x"), ("3.8.0", "x"))}
    document = swift.published({**found, "3.11.0": {"failed": "no memory"}})
    assert [group["releases"] for group in document["groups"]] == [["3.8.0", "3.9.0"], ["3.10.0"]]
    assert document["unanswered"] == {"3.11.0": "no memory"}
    text = swift.markdown(document)
    assert "| `one` | o | ✘ refuses (1) | ✘ refuses (2) |" in text
    assert "Not answered: 3.11.0: no memory" in text


def test_the_newest_of_each_minor():
    """Post releases count, whatever the order."""
    releases = ["3.4.1.post1", "3.10.0", "3.4.0", "3.4.1", "3.9.1"]
    assert swift.newest_of_minors(releases) == ["3.4.1.post1", "3.9.1", "3.10.0"]


def test_an_unknown_case_is_refused_by_name():
    """Before anything is imported."""
    command = [sys.executable, "-m", "repro.questions.swift_arguments", "no_such"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, "no case no_such; there are: no_engine, workers_colocate" in done.stderr) == (
        1,
        True,
    )


def test_an_answer_is_kept_whole_and_a_fault_says_why(tmp_path):
    """What a release said comes out of the store as it was printed; what failed is named, never left out."""
    document = {
        "schema": swift.ANSWERS,
        "packages": {"torch": "2"},
        "cases": {"one": {"said": "refuses", "text": "x"}},
    }
    answer = swift.read(Reply(document, "", "", tmp_path), ())
    assert (answer.outcome, answer.summary) == (Outcome.PASS, "1 refuses")
    event = from_line(to_line(Event("i", "ms-swift-3.5.3", "sweep:swift-3", answer, (), "", "", 1.0, "r")))
    assert swift.report(event, swift.beside("3.5.3")) == {**document, "beside": "swift-3"}
    late = Answer(Outcome.TIMEOUT, "no answer within 1200 s", EvidenceLevel.EXECUTED)
    event = Event("i", "ms-swift-3.5.3", "sweep:swift-3", late, (), "", "", 1.0, "r")
    assert swift.report(event, swift.beside("3.5.3")) == {"failed": "no answer within 1200 s"}
