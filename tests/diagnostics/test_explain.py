"""explain: codes, a line of a log, words, the list; and the help of every command."""

import json
import re

import pytest

from diagnostics import __main__ as program
from diagnostics import catalog
from diagnostics.doctor import target_env

KINDS = ("crash", "hang", "silent", "check")


@pytest.fixture
def explain(capsys, monkeypatch, rules):
    """Run the command; return exit code and what it printed."""
    monkeypatch.setattr("diagnostics.commands.code_search.Rules", lambda _issues: rules)

    def run(*words):
        code = program.main(["explain", *words])
        text_lines = capsys.readouterr()
        return code, text_lines.out, text_lines.err

    return run


def test_the_first_lines_are_what_it_is_and_what_to_do(explain):
    """Before why, where and what else."""
    code, out, _ = explain("SCH001")
    first = out.splitlines()[:4]
    assert (code, first[0][:6]) == (0, "SCH001")
    assert first[2].startswith("Fix: vLLM itself: del llm")


def test_several_codes_are_explained_in_their_order(explain):
    """Each once; as JSON a list of the documents that each has alone."""
    _, out, _ = explain("sch002", "CMP901", "SCH002")
    assert re.findall(r"^([A-Z]{3}\d{3})  ", out, flags=re.MULTILINE) == ["SCH002", "CMP901"]
    document = json.loads(explain("SCH002", "CMP901", "--format", "json")[1])
    alone = json.loads(explain("SCH002", "--format", "json")[1])
    assert document["explained"][0] == alone
    assert [item["code"] for item in document["explained"]] == ["SCH002", "CMP901"]


def test_a_line_of_a_log_is_known_by_what_it_says(explain):
    """`explain` with a log line uses triage's patterns: code, first fix, and where to read more."""
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
def test_words_find_what_is_near(explain, words, code):
    """Words may be one argument or several; the answer is marked as similar only."""
    for requested in ([words], words.split()):
        _, out, _ = explain(*requested)
        assert out.splitlines()[0] == f"{words}: no signature matches; similar issues by words"
        # Which of the near ones is first depends on what other entries there are.
        assert code in re.findall(r"^([A-Z]{3}\d{3})  ", out, flags=re.MULTILINE)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["qqqq", "zzzz"], "no known issue matches 'qqqq zzzz'; `explain --list` lists all codes"),
        (["my", "cat", "is", "hungry"], "no known issue matches 'my cat is hungry'"),
        (["kubernetes ingress certificate expired"], "no known issue matches"),
        (["今天天气怎么样"], "no known issue matches"),
        (["SCH01"], "unknown code 'SCH01' (did you mean SCH001"),
        (["SCH001", "SCH999"], "unknown code 'SCH999' (did you mean"),
    ],
)
def test_what_nobody_knows_is_refused_in_a_line(explain, words, said):
    """Exit code 2, with similar codes."""
    code, out, err = explain(*words)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert said in err


@pytest.mark.parametrize("kind", KINDS)
def test_the_list_is_of_one_kind(explain, kind):
    """Each code of it and no other, in the terminal and as JSON."""
    issues = [item.code for item in catalog.load().values() if item.kind == kind]
    expected = issues if kind != "check" else list(catalog.load_checks())
    _, out, _ = explain("--list", "--kind", kind)
    assert [line[:6] for line in out.splitlines()] == expected != []
    document = json.loads(explain("--list", "--kind", kind, "--format", "json")[1])
    assert [item["code"] for item in (*document["issues"], *document["checks"])] == expected


def test_others_than_the_own_environment_are_named(environment, tmp_path, monkeypatch):
    """The activated environment and one nearby; one without a trainer or an engine is none."""
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
    # The examined environment is no other one, and one that lies near is found by its usual name.
    assert target_env.nearby_environments(str(nearby), {}) == [str(tmp_path / "env")]
