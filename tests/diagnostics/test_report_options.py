"""`doctor`, `lint` and `triage` share output formats, `--select`, `--ignore`, `--baseline` and exit codes.

No format shows an unknown failure as success.
"""

import json

import pytest

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
CODES = {"doctor": "CMP001", "lint": "CFG101", "triage": "CFG109"}


@pytest.fixture(params=CODES)
def tool(request, tmp_path, environment, run_command):
    """Return a command's name, and a function that runs it on input that gives the finding in CODES."""
    if request.param == "doctor":
        environment.add("vllm", "0.7.3")
        inputs = ["--prefix", environment.prefix, "--fail-on", "warning"]
    else:
        path = tmp_path / ("run.sh" if request.param == "lint" else "run.log")
        path.write_text(SCRIPT if request.param == "lint" else LOG)
        inputs = [path]
    return request.param, lambda *options: run_command(request.param, *options, *inputs)


@pytest.mark.parametrize("form", FORMATS)
def test_each_format_has_the_finding(tool, form):
    """Each format of the three commands has the code; JSON is valid against the published schema."""
    name, run = tool
    code, out, err = run("--format", form)
    assert (code, err) == (1, "")
    assert CODES[name] in out
    assert name != "lint" or "run.sh" in out
    if form == "json":
        assert json.loads(out)["tool"] == name
        jsonschema = pytest.importorskip("jsonschema", reason="jsonschema comes with the group test")
        schema = json.loads((ROOT / "docs" / "report-v1.schema.json").read_text())
        jsonschema.Draft202012Validator(schema).validate(json.loads(out))


def test_select_ignore_and_baseline_work_alike(tool, tmp_path):
    """Remaining findings decide the exit code, and a baseline of another command is refused."""
    name, run = tool
    assert run("--select", CODES[name].lower()).code == 1
    families = [option for family in ("SCH", "CMP", "CFG", "ENV") for option in ("--ignore", family)]
    assert run(*families).code == CODE_WITHOUT_FINDINGS[name]
    baseline = tmp_path / "baseline.json"
    baseline.write_text(run("--format", "json").out)
    assert run("--baseline", baseline).code == CODE_WITHOUT_FINDINGS[name]
    assert "<failure" not in run("--baseline", baseline, "--format", "junit").out
    baseline.write_text(json.dumps({"tool": "nobody", "findings": []}))
    code, out, err = run("--baseline", baseline)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert f"a report of nobody, expected one of {name}" in err


def test_unknown_failure_is_no_success_in_any_format(tmp_path, run_command):
    log = tmp_path / "run.log"
    log.write_text(LOG.replace("OSError: [Errno 98] Address already in use", "KeyError: 'completion'"))
    signs = {
        "junit": "<error", "github": "::warning", "markdown": "Result: no known issue describes this failure",
        "sarif": '"level": "warning"', "terminal": "unknown", "json": '"unknown"', "jsonl": '"unknown"',
    }  # fmt: skip
    for form, sign in signs.items():
        code, out, _ = run_command("triage", "--format", form, log)
        assert (code, sign in out, "KeyError" in out, "Nothing found" in out) == (3, True, True, False), form


@pytest.mark.parametrize("option", ["--select", "--ignore"])
@pytest.mark.parametrize(
    ("value", "message"),
    [("SCHH2", r"did you mean SCH"), ("SCH002,nonsense9", "'NONSENSE9'"), (",", "families: ")],
)
def test_unknown_code_in_select_or_ignore_is_refused(option, value, message, run_command):
    """A typo would otherwise select nothing, and the command would succeed."""
    code, _, err = run_command("doctor", option, value)
    assert (code, message in err) == (2, True)
