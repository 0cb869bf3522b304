"""`explain` answers codes, log lines and search words, lists codes by kind, and refuses unknown input."""

import json
import re

import pytest

from diagnostics import __main__ as program
from diagnostics.doctor import target_env
from tests.case_files import each_case, read_cases

CASES = read_cases(__file__, "search_words.yaml")

KINDS = ("crash", "hang", "silent", "check")


@pytest.fixture
def explain(capsys, monkeypatch, rules):
    """Return a function that runs `explain` in-process and returns (exit code, stdout, stderr)."""
    monkeypatch.setattr("diagnostics.commands.code_search.Rules", lambda _issues: rules)

    def run(*words):
        code = program.main(["explain", *words])
        return code, *capsys.readouterr()

    return run


def test_several_codes_are_explained_once_in_order(explain):
    """Several codes are explained once each in order, and JSON has the document of each code."""
    _, out, _ = explain("sch002", "CMP901", "SCH002")
    assert re.findall(r"^([A-Z]{3}\d{3})  ", out, flags=re.MULTILINE) == ["SCH002", "CMP901"]
    document = json.loads(explain("SCH002", "CMP901", "--format", "json")[1])
    alone = json.loads(explain("SCH002", "--format", "json")[1])
    assert document["explained"][0] == alone
    assert [item["code"] for item in document["explained"]] == ["SCH002", "CMP901"]


def test_log_line_is_explained_by_its_signature(explain):
    """A log line is explained by triage's patterns, with the code and its first fix."""
    code, out, _ = explain("AssertionError: assert len(self._async_stopped) == 0")
    assert code == 0
    assert out.splitlines()[0].endswith(": printed by SCH002")
    assert "async_output_off: verified" in out
    assert "explain SCH002" in out
    assert (
        json.loads(explain("assert len(self._async_stopped) == 0", "--format", "json")[1])["found_by"]
        == "printed"
    )


@each_case(CASES["similar"])
def test_search_words_find_similar_issues(explain, words, code):
    """Search words, as one argument or several, find similar issues, and the answer says that they are only similar."""
    for requested in ([words], words.split()):
        _, out, _ = explain(*requested)
        assert out.splitlines()[0] == f"{words}: no signature matches; similar issues by words"
        # The order of similar issues depends on all other entries.
        assert code in re.findall(r"^([A-Z]{3}\d{3})  ", out, flags=re.MULTILINE)


@each_case(CASES["unknown"])
def test_unknown_words_and_codes_are_refused_in_one_line(explain, words, message):
    code, out, err = explain(*words)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert message in err


def test_nearby_environments_with_a_trainer_or_engine_are_suggested(environment, tmp_path, monkeypatch):
    """The activated environment and one in the working directory are suggested, if they have a trainer or engine."""
    environment.add("trl", "1.16.0")
    (tmp_path / "venv" / "lib" / "python3.11" / "site-packages").mkdir(parents=True)
    nearby = tmp_path / ".venv"
    (nearby / "lib" / "python3.11" / "site-packages" / "vllm-0.10.2.dist-info").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    active = {"VIRTUAL_ENV": str(environment.prefix)}
    assert target_env.nearby_environments(str(tmp_path / "own"), active) == [
        str(environment.prefix),
        str(nearby),
    ]
    # The examined environment is not suggested, and a nearby one is found by its usual name.
    assert target_env.nearby_environments(str(nearby), {}) == [str(tmp_path / "env")]
