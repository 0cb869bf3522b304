"""Formats and filters are the same in doctor, lint and triage."""

import contextlib
import json
import sys

import pytest

from diagnostics import __main__ as command
from diagnostics.output.report_output import FORMATS
from tests.diagnostics.report_schema import SCHEMA, problems

SCRIPT = (
    "accelerate launch --num_processes 4 grpo.py --vllm_mode colocate --use_vllm true --num_generations 8 "
    "--per_device_train_batch_size 3\n"
)
LOG = 'Traceback (most recent call last):\n  File "/opt/run.py", line 3, in <module>\n    serve()\n'
LOG += "OSError: [Errno 98] Address already in use\n"
# Without a finding: lint's script is not there to be read, so that it is not judged.
LEFT = {"doctor": 0, "lint": 3, "triage": 0}
CODES = {"doctor": "SCH001", "lint": "CFG101", "triage": "CFG109"}


@pytest.fixture(params=CODES)
def tool(request, tmp_path, environment, capsys, monkeypatch):
    """One of the commands, on something in which it finds something: (its name, a function that runs it)."""
    if request.param == "doctor":
        environment.add("vllm", "0.7.3")
        inputs = ["--prefix", str(environment.prefix), "--fail-on", "warning"]
    else:
        path = tmp_path / ("run.sh" if request.param == "lint" else "run.log")
        path.write_text(SCRIPT if request.param == "lint" else LOG)
        inputs = [str(path)]

    def run(*options):
        arguments = [request.param, *options, *inputs]
        monkeypatch.setattr(sys, "argv", ["diagnostics", *arguments])
        code = command.main(arguments)
        return code, *capsys.readouterr()

    return request.param, run


@pytest.mark.parametrize("form", FORMATS)
def test_every_command_has_every_format(tool, form):
    """The finding on standard output, nothing on standard error, exit code 1."""
    name, run = tool
    code, out, err = run("--format", form)
    assert (code, err) == (1, "")
    assert CODES[name] in out
    assert name != "lint" or "run.sh" in out


def test_every_report_is_as_published(tool):
    """The JSON of each command, against the one schema."""
    name, run = tool
    document = json.loads(run("--format", "json")[1])
    assert document["tool"] == name
    assert problems(document) == []
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema comes with the group test")
    jsonschema.Draft202012Validator(SCHEMA).validate(document)


def test_select_ignore_and_baseline_mean_the_same(tool, tmp_path):
    """Findings that remain decide the exit code; a baseline hides its own; that of another command is refused."""
    name, run = tool
    code = CODES[name]
    assert run("--select", code.lower())[0] == 1
    family = [option for result in ("SCH", "CMP", "CFG", "ENV") for option in ("--ignore", result)]
    assert run(*family)[0] == LEFT[name]
    baseline = tmp_path / "baseline.json"
    baseline.write_text(run("--format", "json")[1])
    assert run("--baseline", str(baseline))[0] == LEFT[name]
    assert run("--baseline", str(baseline), "--format", "junit")[1].count("<failure") == 0
    baseline.write_text(json.dumps({"tool": "nobody", "findings": []}))
    refused, out, err = run("--baseline", str(baseline))
    assert (refused, out, len(err.splitlines())) == (2, "", 1)
    assert f"a report of nobody, expected one of {name}" in err


def test_a_failure_nobody_knows_is_no_success(tmp_path, capsys):
    """Exit code 3, and in each form something that does not look like fine."""
    log = tmp_path / "run.log"
    log.write_text(LOG.replace("OSError: [Errno 98] Address already in use", "KeyError: 'completion'"))
    signs = {
        "junit": "<error", "github": "::warning", "markdown": "Result: no known issue describes this failure",
        "sarif": '"level": "warning"', "terminal": "unknown", "json": '"unknown"', "jsonl": '"unknown"',
    }  # fmt: skip
    for form, sign in signs.items():
        assert command.main(["triage", "--format", form, str(log)]) == 3
        out = capsys.readouterr().out
        assert sign in out, form
        assert "KeyError" in out
        assert "Nothing found" not in out


def test_groups_are_for_eyes_and_programs_alone(tmp_path, capsys):
    """`triage --group` has no SARIF and refuses it in one line."""
    log = tmp_path / "run.log"
    log.write_text(LOG)
    assert command.main(["triage", "--group", "--format", "sarif", str(log)]) == 2
    assert capsys.readouterr().err.strip().endswith("expected terminal or json")


@pytest.mark.parametrize("option", ["--select", "--ignore"])
@pytest.mark.parametrize(
    ("asked", "told"), [("SCHH2", "similar: SCH"), ("SCH002,nonsense9", "'NONSENSE9'"), (",", "families: ")]
)
def test_a_code_that_nobody_has_is_refused(option, asked, told, capfd):
    """Else a typo would select nothing, and nothing found is no failure."""
    with contextlib.suppress(SystemExit):
        assert command.main(["doctor", option, asked]) == 2
    assert told in capfd.readouterr().err
