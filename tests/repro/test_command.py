"""The repro command refuses wrong usage in one line, escapes and masks texts, and has the documented exit codes.

Its results are on stdout: verdicts on mitigations, and outcomes of imports. A failed search of the fuzzer is an error.
"""

import io
import json
import re
import sys
from dataclasses import replace

import pytest

from diagnostics.output.sanitize import SanitizedStream
from grpo_core.console_text import escape
from repro import __main__ as command
from repro import render
from repro.issues import REPROS
from repro.registry import Attempt, AttemptOutcome
from repro.upstream import WheelComparison
from tests.case_files import each_case, read_cases
from tests.processes import run_python

CASES = read_cases(__file__, "wrong_usage.yaml")

REPRODUCED = Attempt(
    "t", None, AttemptOutcome.REPRODUCED, where="vllm/a.py:3", function="f", as_recorded=True
)
UNMODIFIED = WheelComparison("vllm", "1", 1, ())


@each_case(CASES["commands"])
def test_wrong_usage_is_refused_in_one_line(run_command, arguments, message):
    """The command exits with 2, prints one line on what is wrong, and leaves stdout empty."""
    done = run_command(*arguments.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


HOSTILE = "##[error]a\x1b[2J\x9b\n  ::add-mask::b##vso[task.setvariable]\u202e"
ACTIVE = re.compile(r"##\w*\[|^\s*::|[\x1b\x9b\u202e]", re.MULTILINE)


@pytest.mark.parametrize(
    "arguments", [["run", HOSTILE], ["run", "SCH001", "--trigger", HOSTILE], ["imports", HOSTILE], [HOSTILE]]
)
def test_arguments_are_escaped_for_terminals_and_ci_runners(run_command, arguments):
    """Hostile arguments are escaped in refusals and in results."""
    done = run_command(*arguments)
    for text in (done.stdout, done.stderr):
        assert not ACTIVE.search(text)
    assert "#\\u0023[error]a" in done.stdout + done.stderr


def test_escaped_document_parses_equal():
    """Control characters of a JSON document are escaped as JSON escapes, so the document stays equal."""
    document = {"a": HOSTILE, "b": ["x\n::error::y"]}
    assert json.loads(escape(json.dumps(document, indent=1))) == document
    assert json.loads(escape(json.dumps(document, ensure_ascii=False))) == document


def test_texts_are_escaped_as_in_diagnostics():
    """repro and grpo_core escape the same characters and CI commands as the output sanitizer."""
    text = "\n".join(
        [*(f"a{chr(code)}" for code in range(sys.maxunicode + 1)), " ::a", "\x85::a", " \x0b::a", HOSTILE]
    )
    stream = SanitizedStream(io.StringIO())
    stream.write(text)
    assert escape(text) == stream.inner.getvalue()


def test_traceback_is_escaped(run_command, monkeypatch):
    """With GRPO_DOCTOR_DEBUG=1, a fault's traceback has no active characters."""

    def raise_hostile(_):
        raise ValueError(HOSTILE)

    monkeypatch.setenv("GRPO_DOCTOR_DEBUG", "1")
    monkeypatch.setattr(render, "list_document", raise_hostile)
    done = run_command("list", "--json")
    assert done.returncode == 2
    assert "Traceback" in done.stderr
    assert not ACTIVE.search(done.stderr)


def test_message_of_a_fault_is_masked_before_it_is_cut(run_command, monkeypatch):
    def raise_long(_):
        raise ValueError("x" * 375 + " hf_" + "aB3dE5gH7j" * 3)

    monkeypatch.setattr(render, "list_document", raise_long)
    done = run_command("list", "--json")
    assert "ValueError: xxx" in done.stderr
    assert "hf_" not in done.stderr


def test_missing_hypothesis_is_explained(run_command, monkeypatch):
    """`fuzz` exits with 2 and prints how to install Hypothesis."""
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    done = run_command("fuzz", "--engine", "v1")
    assert (done.returncode, done.stdout) == (2, "")
    assert "uv pip install --no-config --target DIR hypothesis" in done.stderr


def test_killed_search_is_reported():
    """A search of the fuzzer that fails or is killed raises an error with its seed, and leaves no process."""
    program = (
        "import os, signal\n"
        "from repro.fuzz import search\n"
        "def die(seed, cpu_s): os.kill(os.getpid(), signal.SIGKILL) if seed else 1 / 0\n"
        "search.run_search = die\n"
        "for seed in (0, 1):\n"
        "    try: search.search_isolated(seed, 1.0)\n"
        "    except search.SearchError as error: print(error)\n"
        "try: os.wait()\n"
        "except ChildProcessError: print('gone')\n"
    )
    done = run_python("-c", program)
    first, second, last = done.stdout.splitlines()
    assert "seed 0: the harness failed at" in first
    assert "ZeroDivisionError" in first
    assert second == "seed 1: its process ended with signal SIGKILL, without an answer"
    assert last == "gone"


def test_missing_package_is_an_error_not_a_pass(run_toys):
    done = run_toys("run", "TOY007", "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert "no-such-distribution is needed for TOY007" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_stdout_is_one_document(run_toys):
    """Text that an attempt prints, also to the file descriptor, goes to stderr; stdout has one JSON document."""
    done = run_toys("run", "TOY001", "--trigger", "chatter", "--json")
    document = json.loads(done.stdout)
    assert document["schema"] == "grpo-doctor.repro.v1"
    assert document["upstream"]["distribution"] == "pluggy"
    assert document["upstream"]["files_checked"] > 3
    attempts = document["codes"]["TOY001"]["attempts"]
    assert [attempt["mitigation"] for attempt in attempts] == [None, "helps", "useless", "senseless"]
    assert all(attempt["simulated"] == ["everything"] for attempt in attempts)
    assert "more chatter" in done.stderr


def test_verdict_on_each_mitigation(run_toys):
    """The JSON has a verdict on each mitigation, the text on one that was tried; a wrong result exits with 1."""
    done = run_toys("run", "TOY006", "--json")
    code = json.loads(done.stdout)["codes"]["TOY006"]
    assert (done.returncode, code["outcome"]) == (1, "reproduced")
    assert {name: result["verdict"] for name, result in code["mitigations"].items()} == {
        "helps": "helps",
        "useless": "does not help",
        "senseless": "not shown",
    }
    text = run_toys("run", "TOY006", "--verbose").stdout
    assert "simulated: everything" in text
    assert "with useless" in text
    assert "<< not what is on record" in text
    assert "does not help: not with silent" in text


def test_inapplicable_code_has_its_reason_once(run_toys):
    done = run_toys("run", "toy005")  # codes are case-insensitive
    assert done.returncode == 0
    assert done.stdout.count("the code is not there") == 1
    assert "inapplicable" in done.stdout


def test_mitigation_is_compared_with_the_unmitigated_trigger(run_toys):
    """With --mitigation, the command also runs the trigger without it."""
    done = run_toys("run", "TOY006", "--mitigation", "helps", "--json")
    attempts = json.loads(done.stdout)["codes"]["TOY006"]["attempts"]
    assert [attempt["outcome"] for attempt in attempts] == ["reproduced", "mitigated"]
    assert done.returncode == 0


def test_list_names_every_code_and_its_json_every_trigger_and_mitigation(run_command):
    """The text has a line for each code, and the JSON has each code's triggers and mitigations."""
    assert [line.split()[0] for line in run_command("list").stdout.splitlines()] == list(REPROS)
    document = json.loads(run_command("list", "--json").stdout)
    for code, entry in REPROS.items():
        triggers = {trigger.name for trigger in entry.triggers}
        assert set(document["codes"][code]["triggers"]) == triggers
        assert set(document["codes"][code]["mitigations"]) == {item.name for item in entry.mitigations}
        assert all(mitigation.helps <= triggers for mitigation in entry.mitigations)


@pytest.mark.parametrize(
    ("attempts", "comparison", "code"),
    [
        ([REPRODUCED, REPRODUCED], UNMODIFIED, 0),
        ([Attempt("t", None, AttemptOutcome.INAPPLICABLE)], UNMODIFIED, 0),
        ([REPRODUCED], WheelComparison("vllm", "1", 1, ("vllm/a.py",)), 1),
        ([replace(REPRODUCED, as_recorded=False)] * 2, UNMODIFIED, 1),
        ([replace(REPRODUCED, as_recorded=False), Attempt("t", "m", AttemptOutcome.TIMEOUT)], UNMODIFIED, 1),
        ([REPRODUCED, replace(REPRODUCED, where="vllm/a.py:4")], UNMODIFIED, 1),
        ([REPRODUCED, replace(REPRODUCED, tokens=7)], UNMODIFIED, 1),
        ([REPRODUCED, replace(REPRODUCED, seconds=9.0, detail="another port")], UNMODIFIED, 0),
        ([REPRODUCED, replace(REPRODUCED, mitigation="m", tokens=7)], UNMODIFIED, 0),
        ([REPRODUCED, replace(REPRODUCED, outcome=AttemptOutcome.TIMEOUT, as_recorded=None)], UNMODIFIED, 1),
        ([Attempt("t", None, AttemptOutcome.TIMEOUT)], UNMODIFIED, 3),
        ([replace(REPRODUCED, outcome=AttemptOutcome.ERROR, as_recorded=None)] * 2, UNMODIFIED, 3),
    ],
)
def test_exit_codes(attempts, comparison, code):
    """The exit code is 1 for modified files, and for outcomes that vary or differ from the record.

    Otherwise it is 3 for an error or timeout, and else 0. Repeated attempts vary by outcome, location or counts, but
    not by seconds or messages.
    """
    assert command.exit_code({"X": attempts}, comparison) == code


def test_attempts_can_be_repeated(run_toys):
    """With --times 2 a mitigation is run twice, and has one verdict."""
    done = run_toys("run", "TOY001", "--trigger", "silent", "--times", "2", "--json")
    code = json.loads(done.stdout)["codes"]["TOY001"]
    assert done.returncode == 1  # the mitigation `useless` is recorded as helping, and does not help
    assert [attempt["mitigation"] for attempt in code["attempts"]].count("helps") == 2
    assert code["mitigations"]["helps"]["helped"] == ["silent"]


def test_imports_run_in_separate_processes(run_command, tmp_path, monkeypatch):
    """Modules that print, are missing, crash, or import a missing module are reported differently."""
    (tmp_path / "chatty.py").write_text("import os; os.write(1, b'hello'); __version__ = '1.2'")
    (tmp_path / "deadly.py").write_text("import os; os.kill(os.getpid(), 11)")
    (tmp_path / "outer.py").write_text("\nimport no_such_module\n")
    monkeypatch.syspath_prepend(tmp_path)
    done = run_command("imports", "chatty", "no_such_module", "deadly", "outer", "--json")
    document = json.loads(done.stdout)
    assert (done.returncode, document["schema"]) == (1, "grpo-doctor.imports.v1")
    chatty, missing, deadly, outer = document["modules"].values()
    error = "ModuleNotFoundError: No module named 'no_such_module'"
    assert (chatty["ok"], chatty["version"], chatty["error"], chatty["where"]) == (True, "1.2", None, None)
    assert (missing["ok"], missing["error"], missing["where"]) == (False, error, None)
    assert deadly["error"] == "its process ended with signal SIGSEGV, without an answer"
    assert outer["where"].endswith("/outer.py:2")


def test_secrets_are_masked_and_the_json_has_no_user_names(run_command, tmp_path, monkeypatch):
    token = "hf_" + "aB3dE5gH7j" * 3
    (tmp_path / "leaking.py").write_text(f"raise OSError('{token} /home/qzadaq/x')")
    monkeypatch.syspath_prepend(tmp_path)
    assert "<secret>" in run_command("run", token).stderr
    document, text = (run_command("imports", "leaking", *options).stdout for options in (("--json",), ()))
    assert "<secret> /home/<user>/x" in json.loads(document)["modules"]["leaking"]["error"]
    assert "<secret>" in text
    assert token not in text


def test_hanging_import_is_incomplete(run_command, tmp_path, monkeypatch):
    """An import that exceeds its time limit is no result, so the exit code is 3."""
    (tmp_path / "endless.py").write_text("import threading; threading.Event().wait()")
    monkeypatch.syspath_prepend(tmp_path)
    done = run_command("imports", "endless", "json", "--timeout", "2")
    assert done.returncode == 3
    assert "endless: FAILED: not imported within 2 s" in done.stdout
