"""A failure's known issues, from the catalogue's signatures."""

from __future__ import annotations

from diagnostics import catalog
from diagnostics.matrix.verdicts import Answer, EvidenceLevel, Expectation, Outcome, judge
from diagnostics.matrix.run.triaged import codes


def test_every_signature_is_found_in_what_a_failure_showed():
    """Each entry's own positive samples, as the log of a failed layer, bear its code; the same log of a pass none."""
    seen = 0
    for code, issue in catalog.load().items():
        for sample in issue.signature.samples if issue.signature else ():
            if not sample.matches:
                continue
            seen += 1
            failed = Answer(Outcome.FAIL, "exit code 1", EvidenceLevel.EXECUTED, excerpt=sample.text)
            assert code in codes(failed), (code, sample.about)
            passed = Answer(Outcome.PASS, "exit code 0", EvidenceLevel.EXECUTED, excerpt=sample.text)
            assert codes(passed) == ()
    assert seen


def test_what_is_triaged_does_not_judge():
    """Expectations name what a layer observed; a signature found beside it changes no verdict."""
    sample = next(
        sample.text
        for issue in catalog.load().values()
        if issue.signature
        for sample in issue.signature.samples
        if sample.matches
    )
    answer = Answer(Outcome.FAIL, "x", EvidenceLevel.EXECUTED, excerpt=sample)
    assert codes(answer)
    assert judge(answer, Expectation(Outcome.FAIL, "known")).expected


def test_a_missing_name_that_was_read_bears_the_code_of_its_import():
    """What `contract` found missing is known by what its import would raise; another name by nothing."""
    signs = (
        "vllm.sampling_params.GuidedDecodingParams: no GuidedDecodingParams in vllm.sampling_params (a.py:1)",
        "vllm.worker.worker.Worker: no module vllm.worker.worker (trl/a.py:2, at import)",
        "vllm.LLM.collective_rpc: LLM has no collective_rpc (trl/a.py:3, when called)",
    )
    read = [
        Answer(Outcome.FAIL, "1 name is not there", EvidenceLevel.STATIC, signs=(sign,)) for sign in signs
    ]
    assert [codes(answer) for answer in read] == [("CMP002",), ("CMP002",), ()]
    assert codes(Answer(Outcome.PASS, "", EvidenceLevel.STATIC, signs=signs)) == ()
