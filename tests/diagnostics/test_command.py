"""The command line of diagnostics: refusals in one line, exit codes, machine output on stdout alone."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from diagnostics import catalog
from diagnostics.__main__ import main
from tests.violations import violations

CHECKS = catalog.load_checks()


def diagnostics(*arguments, **environ):
    return subprocess.run(
        [sys.executable, "-m", "diagnostics", *map(str, arguments)],
        capture_output=True, text=True, timeout=500, check=False, env={**os.environ, **environ},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["explain", "SCH01"], "unknown code 'SCH01' (did you mean SCH001"),
        (["explain", "nonsense"], "no known issue matches 'nonsense'; `explain --list` lists all codes"),
        (["catalogue", "--check", "SCH01"], "unknown code 'SCH01' (did you mean SCH001"),
        (["doctor", "--prefix", "/no/such/folder"], "/no/such/folder: no such folder"),
        (["doctor", "--python", "/no/such/python"], "--python /no/such/python: no such file"),
        (["doctor", "--python", "/usr"], "--python /usr: a folder; expected an interpreter"),
        (["doctor", "--python", "/bin/ls"], "--python /bin/ls: not the name of a Python"),
    ],
)
def test_what_is_not_there_is_refused_in_one_line(arguments, message):
    """Exit code 2, no traceback, nothing on stdout."""
    done = diagnostics(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_folder_that_is_no_environment_is_refused(tmp_path):
    """It says what was expected there."""
    done = diagnostics("doctor", "--prefix", tmp_path)
    assert done.returncode == 2
    assert "expected a Python environment" in done.stderr


def test_doctor_looks_at_its_own_environment():
    """Without an option: the one it runs in."""
    done = diagnostics("doctor", "--format", "json", "--fail-on", "blocker")
    assert done.returncode in {0, 3}, done.stderr
    assert json.loads(done.stdout)["subject"]["prefix"]


def test_python_names_the_environment(environment):
    """--python PATH and --prefix DIR mean the same environment; the interpreter is not run."""
    environment.add("vllm", "0.7.3")
    python = environment.prefix / "bin" / "python"
    python.write_text("#!/bin/sh\nexit 1\n")
    by_python = diagnostics("doctor", "--python", python, "--format", "json")
    by_prefix = diagnostics("doctor", "--prefix", environment.prefix, "--format", "json")
    assert json.loads(by_python.stdout)["findings"] == json.loads(by_prefix.stdout)["findings"] != []


def test_select_and_ignore_go_by_code_or_family(environment):
    """And an ignored finding no longer decides the exit code."""
    environment.add("vllm", "0.7.3")
    codes = lambda done: {finding["code"] for finding in json.loads(done.stdout)["findings"]}  # noqa: E731
    common = ("doctor", "--prefix", environment.prefix, "--format", "json", "--fail-on", "warning")
    assert codes(diagnostics(*common, "--select", "SCH")) == {"SCH001", "SCH002"}
    ignoring = diagnostics(*common, "--ignore", "SCH", "--ignore", "CMP")
    assert (codes(ignoring), ignoring.returncode) == (set(), 0)


def test_json_has_no_home_folder(environment):
    """What may be shared does not say who and where."""
    environment.add("vllm", "0.7.3")
    done = diagnostics(
        "doctor", "--prefix", environment.prefix, "--format", "json", HOME=str(environment.prefix.parent)
    )
    assert str(environment.prefix.parent) not in done.stdout
    assert "~/env" in done.stdout


@pytest.mark.parametrize("code", ["SCH001", "SCH002", "RAY001", "CMP001", "CFG001"])
def test_explain_says_why_and_what_to_change(code):
    """In the terminal and as JSON."""
    text = diagnostics("explain", code).stdout
    assert code in text
    assert "Why" in text
    assert "Mitigations" in text
    assert json.loads(diagnostics("explain", code, "--format", "json").stdout)["code"] == code


def test_explain_says_which_advice_does_not_hold():
    """The advice most people find for SCH002, and what a run showed of it."""
    text = diagnostics("explain", "SCH002").stdout
    assert "chunked_prefill_off  verified for some triggers, does not help with others" in text
    assert "not tested (read in source)" in diagnostics("explain", "CFG001").stdout


def test_every_code_of_a_check_can_be_explained(capsys):
    """A finding's code always has an explanation, as text and as a document with the keys of an issue's."""
    assert violations(lambda check: check_explained(check, capsys), CHECKS.values()) == []


def check_explained(check, capsys):
    assert main(["explain", check.code]) == 0
    names = [("Symptoms", check.symptoms), ("Also called", check.aliases)]
    words = [f"{head} - {' - '.join(phrases)}" for head, phrases in names if phrases]
    assert " ".join(capsys.readouterr().out.split()) == " ".join(
        [check.code, check.title, check.about, *words]
    )
    assert main(["explain", check.code, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["code"], document["kind"], document["cause"]) == (check.code, "check", check.about)
    assert main(["explain", "SCH001", "--format", "json"]) == 0
    assert set(document) <= set(json.loads(capsys.readouterr().out))


def test_the_catalogue_checks_itself():
    """All entries and all their samples."""
    done = diagnostics("catalogue", "--check")
    assert done.returncode == 0, done.stderr
    assert "all samples match as they should" in done.stdout


def test_a_closed_pipe_is_no_error():
    """`doctor | head -1` ends quietly."""
    done = subprocess.run(
        f"{sys.executable} -m diagnostics catalogue | head -1",
        shell=True, capture_output=True, text=True, timeout=500, check=False, cwd=Path(__file__).parent,
    )  # fmt: skip
    assert "Traceback" not in done.stderr


def test_an_older_python_is_told_which_it_takes(monkeypatch, capsys):
    """An installer heeds it; a checkout is started by any, and ended in a traceback."""
    monkeypatch.setattr("diagnostics.__main__._OLDEST", (9, 1))
    assert main(["triage", "run.log"]) == 2
    out, err = capsys.readouterr()

    assert out == ""
    assert "needs Python 3.11 or newer; this is 3." in err
