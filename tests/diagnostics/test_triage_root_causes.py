"""`triage` decides between several possible causes in one log, by their order and by how specific their lines are.

A broad line is one that several causes print; its signature alone gives only a hypothesis. A failure without a known
cause lists the issue with the most similar words.
"""

import pytest

from diagnostics.fixes import first_lines
from diagnostics.triage.command import exit_code
from diagnostics.triage.report import report
from tests.case_files import read_cases

BROAD_LINE = "ERROR 01-31 10:00:00 client.py:9] httpx.ConnectError: [Errno 111] Connection refused"


def test_broad_line_alone_is_a_hypothesis(triage_lines):
    """A broad line alone is a hypothesis that names the evidence that would decide."""
    verdict = triage_lines(BROAD_LINE)
    assert (verdict.state, exit_code(verdict)) == ("hypothesis", 3)
    assert [lead.issue.code for lead in verdict.leads] == ["NET012"]
    assert "what failed before" in verdict.leads[0].settles


def test_broad_line_beside_a_root_cause_stays_a_hypothesis(triage_lines):
    """The detail does not call the release "not known", because the line is broad in every release."""
    root_cause = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"
    verdict = triage_lines(root_cause, "PicklingError: x")
    findings = report(verdict, ["a.log"]).findings
    assert [finding.certainty for finding in findings] == ["supported", "hypothesis"]
    assert "Not known to occur" not in findings[1].detail


@pytest.mark.parametrize(
    "case", read_cases(__file__, "log_verdicts.yaml")["verdicts"], ids=lambda case: case["id"]
)
def test_log_has_its_verdict(triage_lines, case):
    """Wrappers, retried failures, conflicts, printed samples, prompts and incomplete tracebacks get their verdict.

    Of several fixes, the one whose condition the message shows comes first.
    """
    verdict = triage_lines(*case["log"].splitlines())
    result = report(verdict, ["a.log"])
    first = next(iter(result.findings), None)
    observed = {
        "state": verdict.state,
        "exit": exit_code(verdict),
        "causes": [candidate.issue.code for candidate in verdict.candidates],
        "certainty": [candidate.certainty for candidate in verdict.candidates],
        "followed": [candidate.issue.code for candidate in verdict.consequences],
        "leads": [lead.issue.code for lead in verdict.leads],
        "similar": [issue.code for issue in verdict.similar][:1],
        "fix": [offer.mitigation for offer in first.remedy.offers[:1]] if first and first.remedy else [],
        "note": next(iter(result.notes), ""),
        "text": next(iter(first_lines(first.remedy if first else None)), ""),
        "anchor": [anchor.text for anchor in verdict.anchors][:1],
    }
    assert {name: observed[name] for name in case["has"]} == case["has"]
