"""SCH001 and SCH002 on the real schedulers of released vLLM wheels."""

import json

import pytest

from repro.registry import REPROS
from tests.cells import run_in_cell

pytestmark = pytest.mark.vllm

# Where each assertion stands in the released file vllm/core/scheduler.py: (SCH001, SCH002).
LINES = {
    "vllm-0.6.6.post1+trl-0.14.0": (1119, 565),
    "vllm-0.7.2+trl-0.15.2": (1124, 570),
    "vllm-0.7.3+trl-0.16.1": (1278, 686),
    "vllm-0.8.5.post1+trl-0.17.0": (1293, 701),
    "vllm-0.10.2+trl-0.24.0": (1291, 692),
}


@pytest.fixture(scope="module", params=LINES)
def seen(request):
    """The cell and what `run` said there, all triggers and mitigations."""
    done = run_in_cell(request.param, "-m", "repro", "run", "SCH001", "SCH002", "--json")
    assert done.returncode == 0, done.stderr[-3000:]
    return request.param, json.loads(done.stdout)


def test_upstream_is_unmodified(seen):
    """The files that ran are those of the wheel."""
    assert seen[1]["upstream"]["files_checked"] > 400
    assert seen[1]["upstream"]["modified"] == []


@pytest.mark.parametrize("code", REPROS)
def test_every_trigger_reproduces_it(seen, code):
    """With the assertion at the released line, or, for a silent one, with what was lost."""
    cell, document = seen
    line = dict(zip(REPROS, LINES[cell], strict=True))[code]
    bare = [attempt for attempt in document["codes"][code]["attempts"] if attempt["mitigation"] is None]
    assert [attempt["outcome"] for attempt in bare] == ["reproduced"] * len(REPROS[code].triggers)
    for attempt in bare:
        if REPROS[code].trigger(attempt["trigger"]).silent:
            assert "leaked" in attempt["detail"]
        else:
            assert attempt["where"] == f"vllm/core/scheduler.py:{line}"
            assert attempt["assertion"] == REPROS[code].assertion


@pytest.mark.parametrize("code", REPROS)
def test_every_mitigation_does_as_recorded(seen, code):
    """It helps against the triggers it is recorded to help against, with all the work done, and no others."""
    for attempt in seen[1]["codes"][code]["attempts"]:
        if attempt["mitigation"] is None or attempt["outcome"] == "inapplicable":
            continue
        helps = attempt["trigger"] in REPROS[code].mitigation(attempt["mitigation"]).helps
        assert attempt["outcome"] == ("mitigated" if helps else "not_mitigated"), attempt
        if helps:
            assert attempt["finished"] == attempt["expected"] > 0


def test_a_recommended_mitigation_that_does_not_help_in_every_case(seen):
    """Turning chunked prefill off is the advice people find for SCH002: it does nothing about min_tokens."""
    outcomes = {
        attempt["trigger"]: attempt["outcome"]
        for attempt in seen[1]["codes"]["SCH002"]["attempts"]
        if attempt["mitigation"] == "chunked_prefill_off"
    }
    assert outcomes["overlong_prompt"] == "mitigated"
    assert outcomes["min_tokens"] == "not_mitigated"


def test_the_outcome_is_the_same_every_time():
    """Twenty runs of one race: no sleeping, no chance."""
    program = (
        "from repro import registry, runner, base;"
        "print({runner.judge(r, base.Attempt(t.name, None, base.Outcome.ERROR)).outcome.value"
        " for r in registry.REPROS.values() for t in r.triggers for _ in range(20)})"
    )
    done = run_in_cell("vllm-0.7.3+trl-0.16.1", "-c", program)
    assert done.stdout.strip().splitlines()[-1] == "{'reproduced'}", done.stderr[-2000:]
