"""Reports are rendered as SARIF, JUnit, GitHub annotations, Markdown, JSON and text, and a baseline hides findings.

What was not checked is shown, too; JUnit and GitHub leave out some values that do not decide the exit code.
"""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diagnostics import UserError
from diagnostics.findings import CheckResult, Evidence, Finding, NotChecked, Report, Severity
from diagnostics.fixes import Explain, Fix
from diagnostics.output import github, json_output, junit, markdown, sarif, terminal
from diagnostics.output.finding_filters import fingerprint, without_baseline_findings


def finding(
    code="CFG101", severity=Severity.ERROR, text="num_generations = 7", place="run.sh:12", detail="It is 7."
):
    """Return a finding with one piece of evidence and a fix."""
    evidence, remedy = (Evidence(text, place),), Fix.of("Make it 8.\nOr 4.", Explain("CFG101"))
    return Finding(code, "Groups", severity, "established", "static", detail, evidence, remedy)


def report(*findings, outcome="findings", reason="", subject=None):
    """Return a report of lint, or of triage if the subject has a verdict."""
    checks = (CheckResult("groups", outcome, reason, findings), CheckResult("other", "ok"))
    subject = {"files": [], "packages": {"trl": "1.9.0"}} | (subject or {})
    unresolved = "no known issue describes it" if "verdict" in subject else ""
    return Report("triage" if unresolved else "lint", subject, checks, ("a note",), unresolved=unresolved)


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
FINDINGS = st.builds(
    finding,
    code=st.sampled_from(["CFG101", "NUM002"]),
    severity=st.sampled_from(list(Severity)),
    text=TEXTS,
    place=st.one_of(TEXTS, st.builds("{}:{}".format, TEXTS, st.integers(1, 10**30))),
    detail=TEXTS,
)


@settings(max_examples=40, deadline=None)
@given(st.lists(FINDINGS, max_size=4))
def test_formats_can_be_parsed_again(reported_findings):
    """SARIF, JUnit and JSON lines can be parsed for any text in a finding.

    GitHub's output has one line for each finding, and Markdown one heading.
    """
    full, number = report(*reported_findings), len(reported_findings)
    assert len(json.loads(sarif.render(full))["runs"][0]["results"]) == number
    assert ET.fromstring(junit.render(full, Severity.ERROR).partition("?>")[2]).get("tests") == "2"
    assert len([json.loads(line) for line in json_output.render_lines(full).split("\n")]) == 3 + number
    assert len([line for line in github.render(full).split("\n") if line]) == number
    assert markdown.render(full).count("\n#### ") == number


def test_sarif_has_level_rule_location_and_failed_invocation():
    """SARIF has levels, a rule, and a location if a file is named; a crashed check is no successful execution."""
    findings = finding(), finding("NUM002", Severity.INFO, place="defaults")
    run = json.loads(sarif.render(report(*findings, outcome="crashed", reason="bug")))["runs"][0]
    first, second = run["results"]
    assert (first["ruleId"], first["level"], second["level"]) == ("CFG101", "error", "note")
    assert run["tool"]["driver"]["rules"][first["ruleIndex"]]["id"] == "CFG101"
    artifact = {"uri": "run.sh", "uriBaseId": "%SRCROOT%"}
    location = {"artifactLocation": artifact, "region": {"startLine": 12}}
    assert first["locations"][0]["physicalLocation"] == location
    assert "locations" not in second
    assert run["invocations"][0]["executionSuccessful"] is False


def test_sarif_and_markdown_have_no_live_link_or_formula():
    r"""A backslash before an escaped bracket is escaped, too; GitHub reads `$a$` as a formula."""
    full = report(replace(finding(), title=r"[a](https://github.com/x) [b\](https://github.com/x) $a$"))
    rule = json.loads(sarif.render(full))["runs"][0]["tool"]["driver"]["rules"][0]
    assert r"[a\](https://github.com/x) [b\\\](https://github.com/x)" in rule["shortDescription"]["text"]
    assert r"\$a\$" in markdown.render(full)


SARIF, JUNIT = (os.environ.get(f"GRPO_DOCTOR_{name}_SCHEMA", "") for name in ("SARIF", "JUNIT"))
SUBJECTS = st.sampled_from(
    [{}, {"verdict": "unknown", "anchors": [{"text": "KeyError: <&>", "place": "a:1"}]}]
)
OUTCOMES = st.sampled_from(["ok", "findings", "ignored", "skipped", "crashed"])


@pytest.mark.skipif(not SARIF, reason="GRPO_DOCTOR_SARIF_SCHEMA: a SARIF 2.1.0 schema; nox brings one")
@settings(max_examples=60, deadline=None)
@given(st.lists(FINDINGS, max_size=3), SUBJECTS, OUTCOMES)
def test_sarif_is_valid_against_its_schema(reported_findings, subject, outcome):
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(Path(SARIF).read_text(encoding="utf-8"))
    kind = jsonschema.validators.validator_for(schema)
    validator = kind(schema, format_checker=jsonschema.FormatChecker())
    document = json.loads(sarif.render(report(*reported_findings, outcome=outcome, subject=subject)))
    assert [error.message for error in validator.iter_errors(document)] == []


@pytest.mark.skipif(not JUNIT, reason="GRPO_DOCTOR_JUNIT_SCHEMA: Jenkins' junit.xsd; nox brings one")
@settings(max_examples=60, deadline=None)
@given(st.lists(FINDINGS, max_size=3), SUBJECTS, OUTCOMES)
def test_junit_is_valid_against_jenkins_schema(reported_findings, subject, outcome):
    etree = pytest.importorskip("lxml.etree")
    schema = etree.XMLSchema(etree.parse(JUNIT))
    text = junit.render(report(*reported_findings, outcome=outcome, subject=subject), Severity.ERROR)
    schema.validate(etree.fromstring(text.encode()))
    assert [error.message for error in schema.error_log] == []


def test_junit_failures_follow_fail_on():
    """Findings below `--fail-on` are no JUnit failures, and skipped and crashed checks are marked."""
    cases = {}
    for outcome in ("findings", "skipped", "crashed"):
        findings = [finding(severity=Severity.WARNING)] if outcome == "findings" else []
        for fail_on in (Severity.WARNING, Severity.ERROR):
            tree = ET.fromstring(junit.render(report(*findings, outcome=outcome), fail_on).partition("?>")[2])
            cases[outcome, fail_on.word] = [child.tag for child in tree.find(".//testcase")]
    assert cases == {
        ("findings", "warning"): ["failure"],
        ("findings", "error"): ["system-out"],
        ("skipped", "warning"): ["skipped"],
        ("skipped", "error"): ["skipped"],
        ("crashed", "warning"): ["error"],
        ("crashed", "error"): ["error"],
    }


def test_github_annotation_is_escaped():
    """Percent signs and line ends are escaped, and in the file's name colons and commas; the detail is one line."""
    [line] = github.render(report(finding(detail="50%\n::error::x", place="a,b:c.sh:3"))).split("\n")
    head, _, message = line.removeprefix("::error ").partition("::")
    assert head == "title=CFG101 Groups,file=a%2Cb%3Ac.sh,line=3"
    assert message.startswith("50%25 ::error::x%0Anum_generations")


def test_baseline_hides_known_findings_even_if_they_moved(tmp_path):
    """A baseline hides known findings, also on other lines; only new ones are shown and decide the exit code."""
    old, new = finding(), finding(text="num_generations = 9")
    path = tmp_path / "baseline.json"
    path.write_text(json_output.render(report(old)))
    moved = finding(place="run.sh:99")
    assert without_baseline_findings(report(moved), path).exit_code(Severity.ERROR) == 0
    assert without_baseline_findings(report(moved), path).checks[0].outcome == "ignored"
    assert without_baseline_findings(report(moved, new), path).findings == [new]
    assert fingerprint(old.to_json()) == fingerprint(moved.to_json()) != fingerprint(new.to_json())


@pytest.mark.parametrize("text", ["", "[]", '{"findings": [1]}', "not json", "[" * 100_000])
def test_invalid_baseline_is_refused(tmp_path, text):
    path = tmp_path / "baseline.json"
    path.write_text(text)
    with pytest.raises(UserError, match="expected a report, as --format json writes it"):
        without_baseline_findings(report(finding()), path)


@pytest.mark.parametrize("decides", [True, False])
@pytest.mark.parametrize("reported_findings", [(), (finding(severity=Severity.WARNING),)])
def test_unchecked_values_are_shown_and_prevent_success_if_they_decide(reported_findings, decides, capsys):
    """The output of each format has a value that decides the exit code; JUnit counts it as an error.

    A value that does not decide may be missing from GitHub's output, and from JUnit's if there are findings. Markdown
    and the terminal report no success in either case.
    """
    unread = NotChecked("trainer.nnodez", "no source knows it", "write trainer.nnodes", "run.sh:7", decides)
    check = CheckResult.of("groups", reported_findings, [unread])
    full = Report("lint", {"files": [], "packages": {}}, (check,))
    assert full.exit_code(Severity.ERROR) == (3 if decides else 0)
    assert full.incomplete_summary == "1 of 1 checks incomplete: trainer.nnodez: no source knows it"
    assert ("1 of 1 checks incomplete" in terminal.summary(full)) == decides
    terminal.render(full, sys.stdout)
    printed = {
        "terminal": " ".join(capsys.readouterr().out.split()),
        "json": json_output.render(full),
        "jsonl": json_output.render_lines(full),
        "markdown": markdown.render(full).replace("\\", ""),
        "sarif": sarif.render(full),
    }
    if not (reported_findings and not decides):
        printed["junit"] = junit.render(full, Severity.ERROR)
    if decides:
        printed["github"] = github.render(full)
    for form, text in printed.items():
        for word in (unread.what, unread.why, unread.remedy, unread.place):
            assert word in text, (form, word)
    suite = ET.fromstring(junit.render(full, Severity.ERROR).partition("?>")[2])
    assert suite.get("errors") == ("1" if decides else "0")
    assert "No problems found.\n" not in printed["markdown"]
    assert not printed["terminal"].endswith("no problems found")


@pytest.mark.parametrize(
    ("length", "more"), [(1000, ""), (2007, " … 7 more characters, --verbose shows all")]
)
def test_evidence_is_printed_in_full_up_to_two_thousand_characters(length, more, capsys):
    """The first screen prints evidence in full; beyond 2,000 characters it says how many more there are."""
    terminal.render(report(finding(text="x" * length)), sys.stdout)
    assert f"{'x' * min(length, 2000)}{more} [run.sh:12]" in capsys.readouterr().out


def test_evidence_that_repeats_the_title_is_printed_once(capsys):
    terminal.render(report(finding(text="Groups")), sys.stdout)
    printed = capsys.readouterr().out
    assert printed.count("Groups") == 1
    assert "[run.sh:12]" in printed
