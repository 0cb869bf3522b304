"""Commands refuse wrong values in one line, explain every check code, and keep paths and tracebacks out of output."""

import json
import subprocess
import sys

import pytest

from diagnostics import catalog
from diagnostics.__main__ import main
from tests.violations import violations

CHECKS = catalog.load_checks()


@pytest.fixture
def run(capsys):
    """Return a function that runs a command in this process and returns (exit code, stdout, stderr)."""

    def run(*arguments):
        code = main(list(map(str, arguments)))
        return code, *capsys.readouterr()

    return run


def test_python_option_must_name_a_python(run):
    code, out, err = run("doctor", "--python", "/bin/ls")
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert "--python /bin/ls: not the name of a Python" in err


def test_python_and_prefix_select_the_same_environment(environment, run):
    """`--python` and `--prefix` give the same findings, and the interpreter is not run."""
    environment.add("vllm", "0.7.3")
    python = environment.prefix / "bin" / "python"
    python.write_text("#!/bin/sh\nexit 1\n")
    _, by_python, _ = run("doctor", "--python", python, "--format", "json")
    _, by_prefix, _ = run("doctor", "--prefix", environment.prefix, "--format", "json")
    assert json.loads(by_python)["findings"] == json.loads(by_prefix)["findings"] != []


def test_json_replaces_the_home_folder(environment, run, monkeypatch):
    environment.add("vllm", "0.7.3")
    monkeypatch.setenv("HOME", str(environment.prefix.parent))
    _, out, _ = run("doctor", "--prefix", environment.prefix, "--format", "json")
    assert str(environment.prefix.parent) not in out
    assert "~/env" in out


def test_explain_knows_every_check_code(capsys):
    """`explain` prints text and a JSON document with the same keys as for an issue."""
    assert violations(lambda check: check_explained(check, capsys), CHECKS.values()) == []


def check_explained(check, capsys):
    """Assert that `explain` prints the whole entry of a check."""
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


def test_closed_pipe_ends_without_a_traceback():
    command = f"{sys.executable} -m diagnostics catalogue | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=500, check=False)
    assert "Traceback" not in done.stderr


def test_too_old_python_is_refused_with_the_needed_release(monkeypatch, capsys):
    """A too old Python is refused in one line; installers check it, but a checkout starts with any Python."""
    monkeypatch.setattr("diagnostics.__main__._OLDEST_PYTHON", (9, 1))
    assert main(["triage", "run.log"]) == 2
    out, err = capsys.readouterr()

    assert out == ""
    assert "needs Python 3.11 or newer; this is 3." in err
