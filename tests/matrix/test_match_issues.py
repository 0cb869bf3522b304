"""Known issues are recognised in the logs and the missing names of failed matrix layers.

A failure of many lines is searched in seconds.
"""

import time

from diagnostics import catalog
from diagnostics.matrix.results import matching_codes
from diagnostics.matrix.verdicts import Answer, EvidenceLevel, Outcome


def test_every_signature_matches_in_a_failed_layer():
    """Each entry's first positive sample gives its code in a failed layer's log, and none in a pass."""
    missed = []
    signatures = {code: issue.signature for code, issue in catalog.load().items() if issue.signature}
    for code, signature in signatures.items():
        text = next(sample.text for sample in signature.samples if sample.matches)
        failed, passed = (
            Answer(outcome, "exit code 1", EvidenceLevel.EXECUTED, excerpt=text)
            for outcome in (Outcome.FAIL, Outcome.PASS)
        )
        if code not in matching_codes(failed) or matching_codes(passed):
            missed.append((code, text))
    assert (missed, len(signatures) > 100) == ([], True)


def test_name_missing_at_import_has_the_code_of_its_import_error():
    """A name missing at import has the code of Python's import error; one missing when called has none."""
    signs = (
        "vllm.sampling_params.GuidedDecodingParams: no GuidedDecodingParams in vllm.sampling_params (a.py:1)",
        "vllm.worker.worker.Worker: no module vllm.worker.worker (trl/a.py:2, at import)",
        "vllm.LLM.collective_rpc: LLM has no collective_rpc (trl/a.py:3, when called)",
    )
    answers = [Answer(Outcome.FAIL, "missing", EvidenceLevel.STATIC, signs=(sign,)) for sign in signs]
    assert [matching_codes(answer) for answer in answers] == [("CMP002",), ("CMP002",), ()]


def test_a_failure_of_many_lines_is_searched_in_seconds():
    """A stored excerpt of 4,000 lines takes seconds, not 4 ms a line."""
    failed = Answer(Outcome.FAIL, "exit code 1", EvidenceLevel.EXECUTED, excerpt="ImportError: x\n" * 4000)
    start = time.process_time()
    assert matching_codes(failed) == ()
    assert time.process_time() - start < 5
