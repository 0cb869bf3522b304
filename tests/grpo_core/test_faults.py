"""One fault of each kind is injected between trainer and server; `python -m tests.grpo_core.faults` injects all.

The fault table and the check of error messages have tests, too.
"""

import json
import os

import pytest

from tests.cells import ROOT
from tests.grpo_core.faults import run_checks
from tests.grpo_core.faults.__main__ import cases
from tests.grpo_core.faults.kinds import KINDS
from tests.grpo_core.faults.proxy import PHASES
from tests.processes import run_python


@pytest.fixture(scope="module")
def quick_results() -> dict[str, dict]:
    """Run one case of each kind; return the results by kind."""
    options = {"cwd": ROOT, "env": {**os.environ, "PYTHONPATH": str(ROOT)}, "timeout": None}
    done = run_python("-m", "tests.grpo_core.faults", "--quick", "--workers=1", **options)
    actual = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert actual, done.stdout + done.stderr[-3000:]
    return {entry["kind"]: entry for entry in actual if "kind" in entry}


@pytest.mark.long
@pytest.mark.parametrize("kind", [kind.name for kind in KINDS])
def test_fault_ends_in_retry_or_named_error(quick_results, kind):
    """After a named error, `--resume` gives the numbers of the undisturbed run."""
    assert quick_results[kind]["outcome"] in ("retried", "named error"), quick_results[kind]["why"]


def test_fault_table_covers_every_phase():
    """The table has at least 200 different faults of at least 8 kinds, and at least 4 kinds for each phase."""
    names = [case.name for case in cases()]
    assert len(names) == len(set(names)) >= 200
    assert len(KINDS) >= 8
    for phase in PHASES:
        assert len({case.kind.name for case in cases() if case.phase == phase}) >= 4


def test_incomplete_error_message_is_detected():
    """An error must have the server's address, the call and the fix."""
    complete = "remote engine, http://127.0.0.1:7/generate: status 500; --resume goes on"
    assert run_checks.missing_parts(complete, 7) == []
    assert len(run_checks.missing_parts(complete, 8)) == 1
    assert len(run_checks.missing_parts("it failed", 7)) == 3
