"""`triage` decides between several possible causes in one log, by their order and by how specific their lines are.

A broad line is one that several causes print; its signature alone gives only a hypothesis.
"""

import pytest

from diagnostics.triage.command import exit_code
from diagnostics.triage.report import report

UNKNOWN = [
    "Traceback (most recent call last):",
    '  File "/opt/run/cache.py", line 7, in specs',
    "    raise ValueError(text)",
    "ValueError: 78 main and 21 indexer specs are required",
]
BROAD_LINE = "ERROR 01-31 10:00:00 client.py:9] httpx.ConnectError: [Errno 111] Connection refused"


@pytest.mark.parametrize(
    "wrapper",
    [
        "srun: error: node-17: task 0: Exited with exit code 1",
        "Worker proc VllmWorker-2 died unexpectedly (exit code: None), shutting down executor.",
    ],
)
def test_wrapper_after_another_exception_is_a_consequence(triage_lines, wrapper):
    """A wrapper line after another exception is a consequence, not the root cause."""
    verdict = triage_lines(*UNKNOWN, wrapper)
    assert verdict.state == "unknown"
    assert "78 main" in verdict.anchors[0].text
    assert [candidate.issue.signature.role for candidate in verdict.followed] == ["cascade"]


def test_broad_line_alone_is_a_hypothesis(triage_lines):
    """A broad line alone is a hypothesis that names the evidence that would decide."""
    verdict = triage_lines(BROAD_LINE)
    assert (verdict.state, exit_code(verdict)) == ("hypothesis", 3)
    assert [lead.issue.code for lead in verdict.leads] == ["NET012"]
    assert "what failed before" in verdict.leads[0].settles


def test_broad_line_with_a_specific_one_is_a_verdict(triage_lines):
    specific = "ConnectionError: The vLLM server can't be reached at http://0.0.0.0:8000 after 240.0 seconds."
    verdict = triage_lines(BROAD_LINE, specific)
    assert (verdict.state, verdict.candidates[0].certainty) == ("known", "supported")


def test_broad_line_beside_a_root_cause_stays_a_hypothesis(triage_lines):
    root_cause = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"
    verdict = triage_lines(root_cause, "PicklingError: x")
    findings = report(verdict, ["a.log"]).findings
    assert [finding.certainty for finding in findings] == ["supported", "hypothesis"]
    assert "Not known to happen" not in findings[1].detail


def test_broad_line_after_an_unknown_failure_is_only_similar(triage_lines):
    """After a failure without an entry, a broad line makes its issue only similar."""
    verdict = triage_lines(*UNKNOWN, BROAD_LINE)
    assert (verdict.state, verdict.similar[0].code) == ("unknown", "NET012")


def test_source_lines_in_an_ipython_traceback_are_no_message(triage_lines):
    """Source lines that IPython prints with numbers are not read as messages."""
    verdict = triage_lines(
        "RuntimeError                              Traceback (most recent call last)",
        "File /opt/run/cells.py:7, in load(path)",
        "      5     return read(path)",
        '      6 raise RuntimeError("Cannot re-initialize CUDA in forked subprocess.")',
        "----> 7 check(path)",
        "",
        "RuntimeError: 78 main and 21 indexer specs are required",
    )
    assert (verdict.state, verdict.candidates, verdict.leads) == ("unknown", (), ())


@pytest.mark.parametrize("retry", ["Backing off triage_lines(...) for 0.8s", "retrying in 2 seconds"])
def test_retried_failure_is_no_root_cause(triage_lines, retry):
    """A failure that was retried is not the root cause of a later failure without an entry."""
    rate_limited = f"{retry} (openai.RateLimitError: Error code: 429)"
    verdict = triage_lines(rate_limited, *UNKNOWN)
    assert verdict.state in {"unknown", "hypothesis"}


def test_exception_beside_a_wrapper_is_the_failure(triage_lines):
    """An exception beside a wrapper is the failure, even if a logger or Ray removed its traceback."""
    wrapper = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
    logged = "ERROR 01-31 10:00:00 [core.py:7] AssertionError: 78 main specs are required"
    assert triage_lines(logged, wrapper).state == "unknown"
    assert triage_lines(wrapper).state == "wrapper"


@pytest.mark.parametrize(
    "sample",
    [
        "(TaskRunner pid=7) [prompt] user: what does CUDA out of memory. Tried to allocate 20.00 MiB mean?",
        "Completion: it says ImportError: cannot import name 'x' from 'transformers'",
        "So ModuleNotFoundError: No module named 'numpy' is raised.</think> Install it.",
    ],
)
def test_error_text_in_a_printed_sample_is_no_failure(triage_lines, sample):
    """Error text in a printed sample counts neither in a clean run nor beside another failure."""
    verdict = triage_lines(sample, "{'train_runtime': 77.0, 'train_loss': 0.07, 'epoch': 1.0}")
    assert (verdict.candidates, verdict.leads) == ((), ())
    verdict = triage_lines(sample, *UNKNOWN)
    assert (verdict.state, verdict.leads) == ("unknown", ())


def test_multi_line_sample_ends_at_its_reward(triage_lines):
    """A printed sample ends at its reward; failures of other processes within it and after it count."""
    sample = [
        "[prompt] user: fix this",
        "ImportError: cannot import name 'x' from 'transformers'",
        "[score] 0.0",
    ]
    failed = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    runner, worker = "(TaskRunner pid=7) ", "(WorkerDict pid=8) "
    assert not triage_lines(*(runner + line for line in sample)).candidates
    between = triage_lines(runner + sample[0], worker + failed, runner + sample[1])
    after = triage_lines(*(runner + line for line in sample), runner + failed)
    assert [verdict.candidates[0].issue.code for verdict in (between, after)] == ["MEM007", "MEM007"]
