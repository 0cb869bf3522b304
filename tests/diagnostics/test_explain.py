"""`explain` answers codes, log lines and search words, lists codes by kind, and refuses unknown input."""

import json
import re

import pytest

from diagnostics import __main__ as program
from diagnostics.doctor import target_env

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
    """The JSON contains the documents that each code has alone."""
    _, out, _ = explain("sch002", "CMP901", "SCH002")
    assert re.findall(r"^([A-Z]{3}\d{3})  ", out, flags=re.MULTILINE) == ["SCH002", "CMP901"]
    document = json.loads(explain("SCH002", "CMP901", "--format", "json")[1])
    alone = json.loads(explain("SCH002", "--format", "json")[1])
    assert document["explained"][0] == alone
    assert [item["code"] for item in document["explained"]] == ["SCH002", "CMP901"]


def test_log_line_is_explained_by_its_signature(explain):
    """`explain` uses triage's patterns, and prints the code and its first fix."""
    code, out, _ = explain("AssertionError: assert len(self._async_stopped) == 0")
    assert code == 0
    assert out.splitlines()[0].endswith(": printed by SCH002")
    assert "async_output_off: verified" in out
    assert "explain SCH002" in out
    assert (
        json.loads(explain("assert len(self._async_stopped) == 0", "--format", "json")[1])["found_by"]
        == "printed"
    )


@pytest.mark.parametrize(("words", "code"), [
    ("stale weights", "SYN024"), ("zero rollout workers", "RAY001"), ("weights not updated in vllm", "SYN024"),
    ("reward stays zero", "REW004"), ("completions always hit max length", "CFG127"),
    ("deadlock between ranks", "HNG001"), ("greedy", "CFG115"), ("temperature 0", "CFG115"),
    ("garbled output after weight update", "SYN025"), ("adapter ignored, output equals base model", "SYN026"),
    ("score drops after resume", "CFG126"), ("OOM", "MEM007"), ("奖励一直为 0", "REW004"), ("训推不一致", "NUM043"),
])  # fmt: skip
def test_search_words_find_similar_issues(explain, words, code):
    """The words may be one argument or several, and the answer says that it is only similar."""
    for requested in ([words], words.split()):
        _, out, _ = explain(*requested)
        assert out.splitlines()[0] == f"{words}: no signature matches; similar issues by words"
        # The order of similar issues depends on all other entries.
        assert code in re.findall(r"^([A-Z]{3}\d{3})  ", out, flags=re.MULTILINE)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["qqqq", "zzzz"], "no known issue matches 'qqqq zzzz'; `catalog` lists all codes"),
        (["my", "cat", "is", "hungry"], "no known issue matches 'my cat is hungry'"),
        (["kubernetes ingress certificate expired"], "no known issue matches"),
        (["今天天气怎么样"], "no known issue matches"),
        (["SCH01"], "unknown code 'SCH01' (did you mean SCH001"),
        (["SCH001", "SCH999"], "unknown code 'SCH999' (did you mean"),
    ],
)
def test_unknown_words_and_codes_are_refused_in_one_line(explain, words, message):
    code, out, err = explain(*words)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert message in err


def test_nearby_environments_with_a_trainer_or_engine_are_suggested(environment, tmp_path, monkeypatch):
    """The activated environment and one in the working directory count."""
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
