"""Signatures of known issues in failed answers."""

from __future__ import annotations

from diagnostics import catalog
from diagnostics.matrix.match_issues import matching_codes
from diagnostics.matrix.verdicts import Answer, EvidenceLevel, Outcome


def test_signatures_match_in_a_failed_answer():
    """A positive sample of every tenth entry, as the log of a failed layer, gives its code; a pass gives none."""
    signed = [issue for issue in catalog.load().values() if issue.signature]
    for issue in signed[::10]:
        sample = next(sample.text for sample in issue.signature.samples if sample.matches)
        answers = [
            Answer(outcome, "exit code 1", EvidenceLevel.EXECUTED, excerpt=sample)
            for outcome in (Outcome.FAIL, Outcome.PASS)
        ]
        assert issue.code in matching_codes(answers[0]), sample
        assert matching_codes(answers[1]) == ()


def test_a_missing_name_has_the_code_of_its_import_error():
    """The layer `contract` reads; Python would raise."""
    signs = (
        "vllm.sampling_params.GuidedDecodingParams: no GuidedDecodingParams in vllm.sampling_params (a.py:1)",
        "vllm.worker.worker.Worker: no module vllm.worker.worker (trl/a.py:2, at import)",
        "vllm.LLM.collective_rpc: LLM has no collective_rpc (trl/a.py:3, when called)",
    )
    answers = [Answer(Outcome.FAIL, "missing", EvidenceLevel.STATIC, signs=(sign,)) for sign in signs]
    assert [matching_codes(answer) for answer in answers] == [("CMP002",), ("CMP002",), ()]
