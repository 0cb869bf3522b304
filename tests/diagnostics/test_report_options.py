"""`doctor`, `lint` and `triage` share output formats, `--select`, `--ignore`, `--baseline` and exit codes."""

import contextlib
import json
import sys

import pytest

from diagnostics import __main__ as command
from diagnostics.output.report_output import FORMATS
from tests.documents import ROOT

SCRIPT = (
    "accelerate launch --num_processes 4 grpo.py --vllm_mode colocate --use_vllm true --num_generations 8 "
    "--per_device_train_batch_size 3\n"
)
LOG = 'Traceback (most recent call last):\n  File "/opt/run.py", line 3, in <module>\n    serve()\n'
LOG += "OSError: [Errno 98] Address already in use\n"
# Exit codes without a finding; lint's script names a file that does not exist, so lint stays incomplete.
CODE_WITHOUT_FINDINGS = {"doctor": 0, "lint": 3, "triage": 0}
CODES = {"doctor": "SCH001", "lint": "CFG101", "triage": "CFG109"}


@pytest.fixture(params=CODES)
def tool(request, tmp_path, environment, capsys, monkeypatch):
    """Return each command's name, and a function that runs it on input with one known finding."""
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
def test_every_format_of_every_command_has_the_finding(tool, form):
    name, run = tool
    code, out, err = run("--format", form)
    assert (code, err) == (1, "")
    assert CODES[name] in out
    assert name != "lint" or "run.sh" in out


def test_json_report_is_valid_against_the_published_schema(tool):
    name, run = tool
    document = json.loads(run("--format", "json")[1])
    assert document["tool"] == name
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema comes with the group test")
    schema = json.loads((ROOT / "docs" / "report-v1.schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(document)


def test_select_ignore_and_baseline_work_alike_in_every_command(tool, tmp_path):
    """Remaining findings decide the exit code, and a baseline of another command is refused."""
    name, run = tool
    code = CODES[name]
    assert run("--select", code.lower())[0] == 1
    family = [option for result in ("SCH", "CMP", "CFG", "ENV") for option in ("--ignore", result)]
    assert run(*family)[0] == CODE_WITHOUT_FINDINGS[name]
    baseline = tmp_path / "baseline.json"
    baseline.write_text(run("--format", "json")[1])
    assert run("--baseline", str(baseline))[0] == CODE_WITHOUT_FINDINGS[name]
    assert run("--baseline", str(baseline), "--format", "junit")[1].count("<failure") == 0
    baseline.write_text(json.dumps({"tool": "nobody", "findings": []}))
    refused, out, err = run("--baseline", str(baseline))
    assert (refused, out, len(err.splitlines())) == (2, "", 1)
    assert f"a report of nobody, expected one of {name}" in err


def test_unknown_failure_is_no_success_in_any_format(tmp_path, capsys):
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


def test_triage_group_refuses_sarif(tmp_path, capsys):
    log = tmp_path / "run.log"
    log.write_text(LOG)
    assert command.main(["triage", "--group", "--format", "sarif", str(log)]) == 2
    assert capsys.readouterr().err.strip().endswith("expected terminal or json")


@pytest.mark.parametrize("option", ["--select", "--ignore"])
@pytest.mark.parametrize(
    ("value", "message"),
    [("SCHH2", "similar: SCH"), ("SCH002,nonsense9", "'NONSENSE9'"), (",", "families: ")],
)
def test_unknown_code_in_select_or_ignore_is_refused(option, value, message, capfd):
    """A typo would otherwise select nothing, and the command would succeed."""
    with contextlib.suppress(SystemExit):
        assert command.main(["doctor", option, value]) == 2
    assert message in capfd.readouterr().err
