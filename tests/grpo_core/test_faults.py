"""One fault of each kind between trainer and server; `python -m tests.grpo_core.faults` injects them all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.grpo_core.faults import judge
from tests.grpo_core.faults.__main__ import cases
from tests.grpo_core.faults.kinds import KINDS
from tests.grpo_core.faults.proxy import PHASES

ROOT = Path(__file__).resolve().parents[2]


def program(*arguments: str) -> list[dict]:
    """The program's results, each case's as a dictionary."""
    command = [sys.executable, "-m", "tests.grpo_core.faults", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    actual = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert actual, done.stdout + done.stderr[-3000:]
    return actual


@pytest.fixture(scope="module")
def quick() -> dict[str, dict]:
    """Run one case of each kind; return the results."""
    return {entry["kind"]: entry for entry in program("--quick", "--workers=1") if "kind" in entry}


@pytest.mark.long
@pytest.mark.parametrize("kind", [kind.name for kind in KINDS])
def test_a_fault_ends_in_a_retried_success_or_a_named_error(quick, kind):
    """And in nothing else; a run that ended by an error can be resumed to the very numbers."""
    assert quick[kind]["outcome"] in ("retried", "named error"), quick[kind]["why"]


def test_the_table_is_large_and_covers_every_phase():
    """At least 200 faults of at least 8 kinds, no two alike; every phase is met by many kinds."""
    names = [case.name for case in cases()]
    assert len(names) == len(set(names)) >= 200
    assert len(KINDS) >= 8
    for phase in PHASES:
        assert len({case.kind.name for case in cases() if case.phase == phase}) >= 4


def test_an_error_that_leaves_something_out_is_found():
    """The server's address, the call, or the remedy."""
    complete = "remote engine, http://127.0.0.1:7/generate: status 500; --resume goes on"
    assert judge.unnamed(complete, 7) == []
    assert len(judge.unnamed(complete, 8)) == 1
    assert len(judge.unnamed("it failed", 7)) == 3
