"""The command line of diagnostics: refusals in one line, exit codes, machine output on stdout alone."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from diagnostics import catalog
from diagnostics.__main__ import main
from tests.violations import violations

CHECKS = catalog.load_checks()


@pytest.fixture
def run(capsys):
    """Run a command line in this process; return its exit code, standard output and standard error."""

    def run(*arguments):
        code = main(list(map(str, arguments)))
        return code, *capsys.readouterr()

    return run


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["explain", "SCH01"], "unknown code 'SCH01' (did you mean SCH001"),
        (["doctor", "--python", "/bin/ls"], "--python /bin/ls: not the name of a Python"),
    ],
)
def test_a_wrong_value_is_refused_in_one_line(run, arguments, message):
    """Exit code 2, no traceback, nothing on stdout."""
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1


def test_python_names_the_environment(environment, run):
    """--python PATH and --prefix DIR mean the same environment; the interpreter is not run."""
    environment.add("vllm", "0.7.3")
    python = environment.prefix / "bin" / "python"
    python.write_text("#!/bin/sh\nexit 1\n")
    _, by_python, _ = run("doctor", "--python", python, "--format", "json")
    _, by_prefix, _ = run("doctor", "--prefix", environment.prefix, "--format", "json")
    assert json.loads(by_python)["findings"] == json.loads(by_prefix)["findings"] != []


def test_json_has_no_home_folder(environment, run, monkeypatch):
    """Shareable JSON does not contain the user's name or paths."""
    environment.add("vllm", "0.7.3")
    monkeypatch.setenv("HOME", str(environment.prefix.parent))
    _, out, _ = run("doctor", "--prefix", environment.prefix, "--format", "json")
    assert str(environment.prefix.parent) not in out
    assert "~/env" in out


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


def test_a_closed_pipe_is_no_error():
    """`doctor | head -1` ends quietly."""
    done = subprocess.run(
        f"{sys.executable} -m diagnostics catalogue | head -1",
        shell=True,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
        cwd=Path(__file__).parent,
    )
    assert "Traceback" not in done.stderr


def test_an_older_python_is_told_which_it_takes(monkeypatch, capsys):
    """An installer heeds it; a checkout is started by any, and ended in a traceback."""
    monkeypatch.setattr("diagnostics.__main__._OLDEST", (9, 1))
    assert main(["triage", "run.log"]) == 2
    out, err = capsys.readouterr()

    assert out == ""
    assert "needs Python 3.11 or newer; this is 3." in err
