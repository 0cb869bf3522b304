"""What an audit says: outcome, document, schema, sentences."""

import json
from pathlib import Path

import pytest
from check_jsonschema.cli import main as check

from diagnostics.__main__ import main
from diagnostics.audit import command, document
from diagnostics.audit.model import (
    CLEAN,
    FAULT,
    MASKED,
    NOT_ASKED,
    NOT_DECIDED,
    Audit,
    Estimate,
    ProbeAnswer,
    RunnerUp,
    overall,
)

ROOT = Path(__file__).resolve().parents[3]
HOT = ProbeAnswer(
    "sampling/temperature",
    FAULT,
    "P5",
    values={"value": 0.6, "expected": 1.0},
    estimates=(Estimate("temperature", 0.6, 0.59, 0.61, 1.0),),
    residual=0.002,
    floor=0.0019,
    runner_up=RunnerUp("top_p", 0.3),
    count=384,
    tokens=500,
)
RIGHT = ProbeAnswer("weights", CLEAN, "P1", residual=0.001, floor=0.001, count=400, decisive=True)
LATER = ProbeAnswer("cache", MASKED, "P2", by="weights/version")
ALONE = ProbeAnswer("replicas", NOT_ASKED, "P14")


def audit(*answers):
    return Audit("live", {"server": "http://127.0.0.1:8000"}, answers, 500, 20, 1.5)


@pytest.mark.parametrize(
    ("answers", "outcome", "code"),
    [
        ((RIGHT, HOT), FAULT, 1),
        ((RIGHT, ALONE), CLEAN, 0),
        ((RIGHT, LATER), NOT_DECIDED, 3),
        ((), NOT_DECIDED, 3),
        ((ALONE,), NOT_DECIDED, 3),
        ((RIGHT, ProbeAnswer("ids", NOT_ASKED, "P10", decisive=True)), NOT_DECIDED, 3),
        ((RIGHT, ProbeAnswer("ids", NOT_DECIDED, "P10")), NOT_DECIDED, 3),
    ],
)
def test_what_was_not_asked_is_never_clean(answers, outcome, code):
    """A fault is one whatever else was asked; clean needs every decisive answer."""
    assert (overall(answers), document.exit_code(overall(answers))) == (outcome, code)


def test_the_document_keeps_its_schema(tmp_path):
    """With every outcome in it."""
    made = document.document(audit(RIGHT, HOT, LATER, ALONE))
    path = tmp_path / "audit.json"
    path.write_text(json.dumps(made))
    with pytest.raises(SystemExit) as end:
        check(["--schemafile", str(ROOT / "docs/audit-v1.schema.json"), str(path)])
    assert end.value.code == 0
    assert made["sentence"] == "the engine samples at temperature 0.600; the trainer computes with 1"
    assert made["not_asked"] == ["replicas"]


@pytest.mark.parametrize("form", command.FORMATS)
def test_every_format_says_the_fault(form, capsys):
    """Its sentence, its value with the interval, and the answers that are none."""
    assert command.write(audit(RIGHT, HOT, LATER, ALONE), form) == 1
    said = capsys.readouterr().out
    assert "temperature 0.6" in said
    assert "hidden by another fault" in said
    assert "0.59" in said


def test_a_clean_audit_says_what_it_did_not_ask(capsys):
    """Else it would read as more than it is."""
    assert command.write(audit(RIGHT, ALONE), "terminal") == 0
    assert "clean as far as asked; not asked: replicas" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "expected a RUN, or --server"),
        (["--server", "http://127.0.0.1:1"], "--checkpoint DIR"),
        (["run", "--server", "http://127.0.0.1:1"], "one thing at a time"),
        (["run", "--replica", "http://127.0.0.1:1"], "of a server alone"),
    ],
)
def test_wrong_usage_is_one_line(words, said, capsys):
    """And exit code 2."""
    assert main(["audit", *words]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1
