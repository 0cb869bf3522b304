"""The command line: clean standard output, clear refusals, exit codes."""

import json
import subprocess
import sys

import pytest

from repro.__main__ import exit_code
from repro.base import Attempt, Outcome
from repro.registry import REPROS


def repro(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "repro", *arguments], capture_output=True, text=True, timeout=240, check=False
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "SCH01"], "unknown code 'SCH01': did you mean SCH001"),
        (["run", "SCH001", "--trigger", "lost"], "unknown trigger of SCH001 'lost': did you mean lost_step"),
        (
            ["run", "SCH002", "--mitigation", "xyz"],
            "unknown mitigation of SCH002 'xyz': expected one of chunked_",
        ),
        (["run", "SCH001", "--timeout", "0"], "--timeout 0: expected seconds above zero"),
    ],
)
def test_what_does_not_exist_is_refused_in_one_line(arguments, message):
    """Exit code 2, the name, what is close to it, no traceback."""
    done = repro(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_without_vllm_everything_is_inapplicable_and_says_so():
    """This environment has no vLLM: no attempt reads as passed."""
    done = repro("run", "SCH001", "SCH002", "--json")
    document = json.loads(done.stdout)
    assert document["schema"] == "grpo-doctor.repro.v1"
    assert document["upstream"] is None
    attempts = [attempt for code in document["codes"].values() for attempt in code["attempts"]]
    assert len(attempts) == sum(len(r.triggers) * (1 + len(r.mitigations)) for r in REPROS.values())
    assert {attempt["outcome"] for attempt in attempts} == {"inapplicable"}
    assert {code["outcome"] for code in document["codes"].values()} == {"inapplicable"}


def test_imports_tell_a_missing_module_and_a_printing_one(tmp_path, monkeypatch):
    """A module that prints does not spoil the document; one that is missing makes the exit code 1."""
    (tmp_path / "chatty.py").write_text("print('hello'); __version__ = '1.2'")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = repro("imports", "chatty", "no_such_module", "--json")
    modules = json.loads(done.stdout)["modules"]
    assert done.returncode == 1
    assert (modules["chatty"]["ok"], modules["chatty"]["version"]) == (True, "1.2")
    assert not modules["no_such_module"]["ok"]
    assert "ModuleNotFoundError" in modules["no_such_module"]["error"]


def test_a_module_that_never_imports_is_incomplete(tmp_path, monkeypatch):
    """A time limit is not a failure of the module: exit code 3."""
    (tmp_path / "endless.py").write_text("import threading; threading.Event().wait()")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = repro("imports", "endless", "--timeout", "1")
    assert done.returncode == 3
    assert "not imported within 1 s" in done.stdout


def test_list_names_every_trigger_and_mitigation():
    """What can be run can be found."""
    text = repro("list").stdout
    for code, entry in REPROS.items():
        assert code in text
        assert all(item.name in text for item in (*entry.triggers, *entry.mitigations))


@pytest.mark.parametrize(
    ("attempts", "code"),
    [
        ([Attempt("t", None, Outcome.REPRODUCED)], 0),
        (
            [
                Attempt("t", "m", Outcome.NOT_MITIGATED, as_recorded=False),
                Attempt("t", None, Outcome.TIMEOUT),
            ],
            1,
        ),
        ([Attempt("t", None, Outcome.TIMEOUT)], 3),
        ([Attempt("t", None, Outcome.ERROR)], 3),
    ],
)
def test_exit_codes(attempts, code):
    """1 when a mitigation did otherwise than recorded, 3 when something gave no answer and nothing is worse."""
    assert exit_code(attempts) == code
