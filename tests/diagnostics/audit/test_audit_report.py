"""The results of an audit decide its outcome and exit code; the JSON fits its schema, and wrong usage is refused.

Each format shows the fault and escapes control characters. Formats for sharing name no person. A fix is that of the
run's framework.
"""

from pathlib import Path

import pytest
from check_jsonschema.cli import main as check

from diagnostics.__main__ import main
from diagnostics.audit import report
from diagnostics.audit.results import (
    CLEAN,
    FAULT,
    MASKED,
    NOT_DECIDED,
    SKIPPED,
    Audit,
    Estimate,
    Note,
    Result,
    clean,
    note,
)

ROOT = Path(__file__).resolve().parents[3]
TEMPERATURE_FAULT = Result(
    "sampling/temperature", FAULT, "P5", "the engine samples at temperature 0.600; <script>alert(1)</script> \x1b[31m",
    values={"value": 0.6, "expected": 1.0}, estimates=(Estimate("temperature", 0.6, 0.59, 0.61, 1.0),), residual=0.002,
    floor=0.0019, count=384, tokens=500,
)  # fmt: skip
WEIGHTS_CLEAN = Result("weights", CLEAN, "P1", residual=0.001, floor=0.001, count=400, decisive=True)
CACHE_MASKED = Result("cache", MASKED, "P2", masked_by="weights/version")
REPLICAS_NOT_CHECKED = Result("replicas", SKIPPED, "P14")
EVERY_OUTCOME = (WEIGHTS_CLEAN, TEMPERATURE_FAULT, CACHE_MASKED, REPLICAS_NOT_CHECKED)


def audit(*results):
    """Return a live audit with these results."""
    return Audit("live", {"server": "http://127.0.0.1:8000"}, results, 500, 20, 1.5)


@pytest.mark.parametrize(
    ("results", "outcome", "code"),
    [
        ((WEIGHTS_CLEAN, TEMPERATURE_FAULT), FAULT, 1),
        ((WEIGHTS_CLEAN, REPLICAS_NOT_CHECKED), CLEAN, 0),
        ((WEIGHTS_CLEAN, CACHE_MASKED), NOT_DECIDED, 3),
        ((), NOT_DECIDED, 3),
        ((WEIGHTS_CLEAN, Result("ids", SKIPPED, "P10", decisive=True)), NOT_DECIDED, 3),
        ((WEIGHTS_CLEAN, Result("ids", NOT_DECIDED, "P10")), NOT_DECIDED, 3),
    ],
)
def test_outcome_and_exit_code_follow_from_the_results(results, outcome, code):
    """A fault decides. Otherwise a masked, undecided or decisive unchecked result, or no result, is undecided."""
    assert (audit(*results).outcome, report.exit_code(audit(*results))) == (outcome, code)


@pytest.mark.parametrize("verbose", [False, True])
@pytest.mark.parametrize("form", report.FORMATS)
def test_every_format_shows_the_fault_without_control_characters(capsys, tmp_path, form, verbose):
    """HTML is escaped in all formats but the terminal's and JSON. The JSON document fits its schema."""
    assert report.write_audit(audit(*EVERY_OUTCOME), form, verbose=verbose) == 1
    out = capsys.readouterr().out
    assert "temperature 0.6" in out
    assert "\x1b[31m" not in out
    assert "<script>alert" not in out or form in {"terminal", "json", "jsonl"}
    if form == "json":
        (tmp_path / "audit.json").write_text(out)
        words = ["--schemafile", f"{ROOT}/docs/audit-v1.schema.json", str(tmp_path / "audit.json")]
        assert check(words, standalone_mode=False) in (0, None)


SERVER = ("--server", "http://127.0.0.1:9")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "expected a RUN"),
        (("x", *SERVER, "--checkpoint", "y"), "give one of them"),
        (SERVER, "expected --checkpoint DIR"),
        (("x", "--idle", "1"), "only with --watch"),
        (("--watch", "x", *SERVER), "--watch and --server: give one of them"),
        (("x", "--checkpoint", "y"), "--checkpoint: only with --server"),
        ((*SERVER, "--checkpoint", "x", "--tokens", "100"), "100 is not in the range 2200<=x<=1000000"),
        (("/nowhere",), "no such file"),
    ],
)
def test_wrong_usage_is_refused(capsys, arguments, message):
    assert main(["audit", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("form", ["json", "jsonl", "markdown", "html"])
def test_evidence_names_no_person_in_shared_formats(capsys, form):
    """A user name and an address in a value that the server reports are not shown."""
    setting = Note("setting", "release: /home/alice/vllm on 10.1.2.3", {"value": "/home/alice/vllm"})
    report.write_audit(audit(clean("settings", evidence=(setting,))), form, verbose=True)
    printed = capsys.readouterr().out
    assert "release" in printed
    assert "alice" not in printed
    assert "10.1.2.3" not in printed


@pytest.mark.parametrize(
    ("framework", "shown", "missing"), [("verl", "verl >=0.3", "ms-swift: "), ("", "TRL: ", "(pin:")]
)
def test_fix_is_that_of_the_framework_of_the_run(capsys, framework, shown, missing):
    """For verl it has no ms-swift options; without a framework it has TRL's. The mitigation's name is not shown."""
    fault = Result("metrics/nan", FAULT, "metrics", "loss is NaN", "NUM027")
    report.write_audit(Audit("recorded", {}, (fault,), framework=framework), "terminal")
    fix = next(line for line in capsys.readouterr().out.splitlines() if "Fix: " in line)
    assert shown in fix
    assert missing not in fix
    assert "first_of_all" not in fix


def test_consequence_of_another_fault_has_no_fix_of_its_own(capsys):
    facts = (note("consequence_of", root="greedy sampling"),)
    symptom = Result("rewards/no_spread", FAULT, "samples", "no spread", code="REW004", evidence=facts)
    report.write_audit(audit(symptom), "terminal")
    printed = capsys.readouterr().out
    assert "probably a consequence" in printed
    assert "Fix:" not in printed
