"""`explain` answers codes, log lines and search words, and refuses unknown codes and words that match nothing."""

import re

import pytest

from diagnostics import catalog
from diagnostics.catalog.search import CatalogSearch
from evaluation.search.phrases import PHRASES
from tests.case_files import each_case, read_cases
from tests.violations import violations

CASES = read_cases(__file__, "search_words.yaml")


@pytest.fixture
def explain(run_command, monkeypatch, rules):
    """Return a function that runs `explain` in this process with the precompiled signatures."""
    monkeypatch.setattr("diagnostics.commands.code_search.Rules", lambda _issues: rules)
    return lambda *words: run_command("explain", *words)


def test_several_codes_are_explained_once_in_order(explain):
    """Several codes are explained once each in order, and JSON has the document of each code."""
    out = explain("sch002", "CMP901", "SCH002").out
    assert re.findall(r"^([A-Z]{3}\d{3})  ", out, flags=re.MULTILINE) == ["SCH002", "CMP901"]
    explained = explain("SCH002", "CMP901", "--format", "json").document["explained"]
    assert explained[0] == explain("SCH002", "--format", "json").document
    assert [item["code"] for item in explained] == ["SCH002", "CMP901"]


def test_every_check_code_is_explained(explain):
    """`explain` prints the whole entry of a check, and a JSON document whose keys an issue has too."""
    issue = explain("SCH001", "--format", "json")
    assert issue.code == 0

    def check_explained(check):
        names = [("Symptoms", check.symptoms), ("Also called", check.aliases)]
        words = [f"{head} - {' - '.join(phrases)}" for head, phrases in names if phrases]
        code, out, _ = explain(check.code)
        printed = " ".join(out.split())
        assert code == 0
        assert printed.startswith(f"{check.code} {check.title} {check.about}")
        assert printed.endswith(" ".join(words))
        assert check.causes or printed == " ".join([check.code, check.title, check.about, *words])
        options = [text for item in check.causes for text in (item.cause, *item.option.values())]
        assert [text for text in options if text not in printed] == []
        result = explain(check.code, "--format", "json")
        document = result.document
        assert (result.code, document["code"], document["kind"]) == (0, check.code, "check")
        assert document["cause"] == check.about
        assert set(document) <= set(issue.document)

    assert violations(check_explained, catalog.load_checks().values()) == []


def test_log_line_is_explained_by_its_signature(explain):
    """A log line is explained by triage's patterns, with the code and its first fix."""
    code, out, _ = explain("AssertionError: assert len(self._async_stopped) == 0")
    assert code == 0
    assert out.splitlines()[0].endswith(": printed by SCH002")
    assert "(verified)" in out
    assert "explain SCH002" in out
    result = explain("assert len(self._async_stopped) == 0", "--format", "json")
    assert result.document["found_by"] == "printed"


@each_case(CASES["similar"])
def test_search_words_find_similar_issues(explain, words, code):
    """Search words, each an argument, find similar issues, and the answer says that they are only similar."""
    out = explain(*words.split()).out
    assert out.splitlines()[0] == f"{words}: no exact match; nearest by words"
    # The order of similar issues depends on all other entries.
    assert code in re.findall(r"^([A-Z]{3}\d{3})  ", out, flags=re.MULTILINE)


def test_symptoms_find_their_entry_among_the_first_three():
    """At least 85 % of the phrases do; people who knew only the symptom wrote them."""
    search = CatalogSearch({**catalog.load(), **catalog.load_checks()})
    rows = (line.split("\t") for line in PHRASES.read_text(encoding="utf-8").splitlines())
    found = [
        bool({*codes.split(",")} & {*search.search(text)[:3]}) for text, codes in rows if codes != "none"
    ]
    assert len(found) >= 120
    assert sum(found) >= 0.85 * len(found)


def test_catalog_search_lists_what_explain_finds(explain, run_command):
    listed = run_command("catalog", "search", "stale", "weights").out
    assert listed.startswith(explain("stale weights").out.splitlines()[2][:7])


@each_case(CASES["unknown"])
def test_unknown_words_and_codes_are_refused_in_one_line(explain, words, message):
    code, out, err = explain(*words)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert message in err
