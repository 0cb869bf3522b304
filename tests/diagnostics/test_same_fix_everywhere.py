"""The commands recommend the same mitigation of an issue first.

Doctor, its fix plan, triage, lint and explain are compared for logs of known triggers and for environments; triage and
lint also for each framework. The JSON of hang and audit lists mitigations in the same order.
"""

from pathlib import Path

from packaging.version import Version

from diagnostics import catalog
from diagnostics.audit.results import FAULT, RECORDED, Audit, Result, make_document
from diagnostics.catalog import documents, mitigation_ranking
from diagnostics.catalog.mitigation_ranking import recommended_fix
from diagnostics.collect.python_environment import Environment, Package
from diagnostics.compat_table import Compat
from diagnostics.doctor.checks.known_issues import known_issues
from diagnostics.doctor.checks.registry import CheckInput
from diagnostics.doctor.fix_plan.setting_steps import setting_steps
from diagnostics.doctor.installers import find_installer
from diagnostics.findings import Severity
from diagnostics.fixes import mitigation_line
from diagnostics.frameworks import FRAMEWORKS, configuring_trainers
from diagnostics.lint.rules.finding_builder import to_finding
from diagnostics.lint.rules.registry import Problem
from diagnostics.lint.run_plan import RunPlan
from diagnostics.lint.values import Place, Settings, Value
from diagnostics.lint.versions import Versions
from diagnostics.triage.candidates import Candidate
from diagnostics.triage.command import triage
from diagnostics.triage.log_facts import Hit
from diagnostics.triage.report import report
from diagnostics.triage.sources import LogSource
from diagnostics.triage.verdict import Diagnosis
from diagnostics.versions import AFFECTED, affects, issue_package
from tests.violations import violations

ISSUES = catalog.load()
# Logs named CODE/CELL__TRIGGER.log; the name of the cell gives the vLLM release.
LOGS = sorted((Path(__file__).parent / "logs").glob("*/*__*.log"))
RELEASES = {"066": "0.6.6", "072": "0.7.2", "073": "0.7.3", "085": "0.8.5.post1", "0102": "0.10.2"}


def environment(releases):
    """Return the facts of an environment with these packages."""
    packages = {name: Package(name, version, f"/env/{name}", "pip", ()) for name, version in releases.items()}
    return Environment("/env", "3.11.7", packages, (), (), {}, None, None)


def doctor_finding(entry, releases):
    """Return doctor's finding of a known issue, or None."""
    return next(known_issues(CheckInput(environment(releases), {entry.code: entry}, Compat())), None)


def mitigation_in_plan(entry, releases):
    """Return the mitigation in doctor's plan; empty if it has no edit for the installed frameworks."""
    current = environment(releases)
    case = CheckInput(current, {entry.code: entry}, Compat())
    steps = setting_steps(list(known_issues(case)), case, find_installer(current))
    names = {item.description.lower(): item.name for item in entry.mitigations}
    return names[steps[0].title.lower().removeprefix(f'only for "{entry.title.lower()}": ')] if steps else ""


def lint_finding(entry, framework, releases, triggers=()):
    """Return the finding of a lint rule that has the entry's code."""
    place = Place("run.yaml", 1)
    known = Versions({name: Version(release) for name, release in releases.items()})
    plan = RunPlan(framework, Settings(framework, place), versions=known)
    value = Value(1, place, "key")
    return to_finding(plan, entry.code, Problem("", [value], severity=Severity.WARNING, triggers=triggers))


def triage_finding(entry, framework, releases, triggers=()):
    """Return triage's finding for a log with this framework, these releases and triggers."""
    hit = Hit("a.log", 1, "it died", "", None)
    candidate = Candidate(entry, "root", "supported", (hit,), 1, (), (), triggers)
    versions = {name: (release, "a.log:1") for name, release in releases.items()}
    frameworks = (framework,) if framework else ()
    verdict = Diagnosis("known", (candidate,), (), (), versions, frameworks, "", 1, ())
    return report(verdict, ["a.log"]).findings[0]


def first_mitigation(finding):
    """Return the mitigation that a finding offers first."""
    return finding.remedy.offers[0].mitigation


def check_log(rules, log):
    """Assert that all commands offer the same first fix for a log of a known trigger."""
    cell, _, trigger = log.stem.partition("__")
    entry = ISSUES[log.parent.name]
    releases = {"vllm": RELEASES[cell.removeprefix("scheduler")]}
    verdict = triage([LogSource(log.name, log)], rules)
    assert verdict.candidates[0].triggers == (trigger,)
    finding = report(verdict, [log.name]).findings[0]
    mitigations = {record.name: record for record in entry.mitigations}
    assert finding.remedy.offers[0].standing == "shown"
    for offer in finding.remedy.offers:
        assert trigger not in mitigations[offer.mitigation].fails
        line = mitigation_line(offer)
        ran = {
            name for _, bound in mitigations[offer.mitigation].known_edits() for name in bound.tested_triggers
        }
        assert ("(verified)" in line) == (trigger in ran & set(mitigations[offer.mitigation].helps)), line
    refuted = {record.name for record in entry.mitigations if trigger in record.fails}
    assert refuted <= {offer.mitigation for offer in finding.remedy.does_not_help}
    answers = {
        "triage": first_mitigation(finding),
        "lint": first_mitigation(lint_finding(entry, "vllm", releases, (trigger,))),
        "doctor": first_mitigation(doctor_finding(entry, releases)),
        "plan": mitigation_in_plan(entry, releases),
        "explain": documents.issue_document(entry, recommended_fix(entry))["offered"][0],
    }
    assert len(set(answers.values())) == 1, answers


def test_fix_is_the_same_for_a_log_that_shows_its_trigger(rules):
    """For logs of SCH001 and SCH002 the commands agree; triage offers none that failed against the trigger."""
    assert violations(check_log, [(rules, log) for log in LOGS]) == []
    assert len(LOGS) > 20
    assert {log.parent.name for log in LOGS} == {"SCH001", "SCH002"}


def check_triage_and_lint(code):
    """Assert for one issue that triage and lint offer the ranking's first fix."""
    entry = ISSUES[code]
    mitigations = {record.name: record for record in entry.mitigations}
    for framework in FRAMEWORKS:
        for triggers in ((), *((name,) for name in entry.trigger_names())):
            expected = recommended_fix(entry, triggers=triggers, frameworks=[framework]).offers[0].mitigation
            findings = [find(entry, framework, {}, triggers) for find in (triage_finding, lint_finding)]
            offered = [first_mitigation(finding) for finding in findings]
            assert offered == [expected, expected], (framework, triggers)
            for offer in (offer for finding in findings for offer in finding.remedy.offers):
                assert not set(triggers) & set(mitigations[offer.mitigation].fails)


def test_triage_and_lint_recommend_the_same():
    """Triage and lint recommend the same for each framework, with each recorded trigger and with none."""
    assert violations(check_triage_and_lint, ISSUES) == []


def affected_release(entry):
    """Return the releases, by package, of an environment that the issue affects; None if none was found."""
    needed = {claim.package: claim.versions.lstrip(">=") for claim in entry.affected if claim.needed}
    for claim in entry.affected:
        starts = [part.strip("><=~ ") for part in claim.versions.split(",")]
        for release in (*claim.releases, *starts, "0"):
            releases = {**needed, issue_package(entry): release}
            if release and affects(entry, releases).answer == AFFECTED:
                return releases
    return None


REPORTED_BY_DOCTOR = [
    code
    for code, entry in ISSUES.items()
    if entry.status == "active" and (releases := affected_release(entry)) and doctor_finding(entry, releases)
]


def check_environment(code, trainer):
    """Assert that the commands offer the same first fix in an environment with this trainer.

    Triage and lint are compared if one framework configures the run.
    """
    entry = ISSUES[code]
    releases = ({trainer: "1.0"} if trainer else {}) | affected_release(entry)
    installed_frameworks = configuring_trainers(releases) or ["vllm"]
    finding = doctor_finding(entry, releases)
    expected = first_mitigation(finding)
    # A plan has no options of vLLM itself for an issue that may occur with a trainer.
    planned = {expected if finding.remedy.offers[0].edits else "", "" if trainer else expected}
    assert mitigation_in_plan(entry, releases) in planned
    if len(installed_frameworks) == 1:
        assert first_mitigation(triage_finding(entry, *installed_frameworks, releases)) == expected
        assert first_mitigation(lint_finding(entry, *installed_frameworks, releases)) == expected
    fix = recommended_fix(entry, frameworks=installed_frameworks, releases=releases)
    document = documents.issue_document(entry, fix)
    assert document["offered"][0] == expected


def test_fix_is_the_same_for_an_environment():
    """The commands recommend the same for each issue that doctor reports, with each of four trainers and with none."""
    trainers = ("", "trl", "ms-swift", "verl", "openrlhf")
    pairs = [(code, trainer) for code in REPORTED_BY_DOCTOR for trainer in trainers]
    assert violations(check_environment, pairs) == []
    assert {"SCH001", "SCH002", "CMP001", "RAY001", "CFG001"} <= set(REPORTED_BY_DOCTOR)
    assert any(not ISSUES[code].trigger_names() for code in REPORTED_BY_DOCTOR)


def check_documents(code):
    """Assert that the JSON of hang and audit lists the ranking's mitigations."""
    expected = [offer.mitigation for offer in recommended_fix(ISSUES[code]).offers]
    fault = Audit(RECORDED, {}, (Result("rewards/constant", FAULT, "samples", code=code),))
    of_audit = make_document(fault)["answers"][0]["helps"]
    of_catalog = {"code": code, **mitigation_ranking.issue_summary(ISSUES[code])}
    for document in (of_catalog, of_audit):
        assert [record["name"] for record in document["mitigations"]] == expected


def test_json_of_hang_and_audit_lists_the_ranked_mitigations():
    """The JSON of hang and audit lists the ranked mitigations without those that failed."""
    assert violations(check_documents, sorted(ISSUES)) == []
