"""Each silent failure in the catalog has a result family or a reason; a fault has its family's code by default."""

from collections import Counter

from diagnostics import catalog
from diagnostics.audit.results import CLEAN, LIVE, TOPICS, Audit, Result, fault, make_document

# Issues that are reported in the family of another issue: the family, and when or why not a result has their code.
ISSUES_IN_ANOTHER_FAMILY = {
    "SYN003": "weights/version, if that is the base",
    "SYN032": "weights/partial: a result does not say why the experts are wrong",
    "SYN034": "weights/unknown: a result does not say why no checkpoint has these weights",
    "NUM064": "metrics/nan: a result does not say why the gradient is NaN",
    "SYN015": "cache/stale: a result does not say why the cache was not reset",
}
# Silent failures that no audit check can show, and why.
REASON_WITHOUT_CHECK = {
    "CFG107": "options that a run does not use leave no trace in what it samples; lint reads them",
    "CFG114": "options that the command never sees leave no trace in what it samples; lint reads them",
    "MEM013": "the device reports memory, and an audit does not query it; the log shows the failure",
    "NUM004": "a loss divided by too much: only a replay of the step shows it, no engine's answer and no dump",
    "SYN033": "an audit sends no images; lint reads whether the vision encoder is trained",
    "SYN035": "an audit asks vLLM servers; SGLang's own log has the failed flush",
    "SYN002": "weights that change within a completion: no sample of an audit lies across an update",
}


ISSUES = catalog.load()


def test_every_silent_failure_has_a_check_or_a_reason():
    silent = {code for code, issue in ISSUES.items() if issue.kind == "silent" and not issue.audit}
    assert silent == REASON_WITHOUT_CHECK.keys() | ISSUES_IN_ANOTHER_FAMILY.keys()


def test_every_result_family_belongs_to_one_issue_and_one_topic():
    families = Counter(family for issue in ISSUES.values() for family in issue.audit)
    assert [family for family, times in families.items() if times > 1] == []
    assert [family for family in families if family.partition("/")[0] not in TOPICS] == []


def test_fault_has_the_code_of_its_family_unless_the_check_sets_one():
    """A clean result has no code, and a fault has the mitigations of its issue."""
    results = (
        fault("weights/partial", {"tensors": "layer 1", "name": "base"}),
        fault("weights/version", {"name": "base"}, code="SYN003"),
        Result("weights/version", CLEAN, "P3"),
    )
    answers = make_document(Audit(LIVE, {}, results))["answers"]
    assert [answer["code"] for answer in answers] == ["SYN025", "SYN003", ""]
    assert [record["name"] for record in answers[0]["helps"]["mitigations"]] == ["all_names"]
