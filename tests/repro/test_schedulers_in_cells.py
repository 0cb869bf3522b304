"""SCH001 and SCH002 on the real schedulers of released vLLM wheels have the recorded outcomes in each cell."""

import json

import pytest

from repro.issues import REPROS
from tests.cells import run_in_cell

pytestmark = pytest.mark.vllm


# Lines of the assertions in the released wheels: SCH001 and SCH002 in vllm/core/scheduler.py, and the assertion in
# vllm/sequence.py that fails instead of SCH001's with chunked prefill.
LINES = {
    "vllm-0.6.6.post1+trl-0.14.0": (1119, 565, 318),
    "vllm-0.7.2+trl-0.15.2": (1124, 570, 319),
    "vllm-0.7.3+trl-0.16.1": (1278, 686, 319),
    "vllm-0.8.5.post1+trl-0.17.0": (1293, 701, 327),
    "vllm-0.10.2+trl-0.24.0": (1291, 692, 350),
}
# From 0.8.4 on, LLMEngine refuses an over-long prompt before the scheduler sees it.
REFUSING = {"vllm-0.8.5.post1+trl-0.17.0", "vllm-0.10.2+trl-0.24.0"}

# By trigger: mitigations that help, and mitigations that are inapplicable; all others do not help. The sets repeat the
# catalog on purpose, so that an error in the catalog fails a test.
SCH001 = {
    "lost_step": ({"abort_in_flight", "fresh_engine"}, {"server_mode"}),
    "cancelled_step": ({"abort_in_flight", "fresh_engine", "server_mode"}, set()),
    "two_owners": ({"one_owner", "lock_around_generate", "server_mode", "fresh_engine"}, set()),
}
_PROMPT = {"chunked_prefill_off", "async_output_off", "filter_overlong", "truncate_overlong"}
_LATE = {"abort_leftovers", "drain", "fresh_engine"}
_MINIMUM = ({"async_output_off", "cap_min_tokens"}, _LATE)
SCH002 = {
    "overlong_prompt": (_PROMPT, _LATE),
    "overlong_dropped": (_PROMPT, _LATE),
    "overlong_poisons_next": (_PROMPT | {"fresh_engine"}, set()),
    "min_tokens": _MINIMUM,
    "min_tokens_chunked": _MINIMUM,
}
# Mitigations that do not help with any of these triggers.
USELESS = {
    "SCH001": {"chunked_prefill_on", "lock_around_step", "async_output_off"},
    "SCH002": {"abort_leftovers", "drain"},
}
EXPECTED = {"SCH001": SCH001, "SCH002": SCH002}


@pytest.fixture(scope="module", params=LINES)
def cell_results(request):
    """Return the cell and the output of `run` for all triggers and mitigations."""
    done = run_in_cell(request.param, "-m", "repro", "run", "SCH001", "SCH002", "--json")
    assert done.returncode == 0, done.stderr[-3000:]
    return request.param, json.loads(done.stdout)


def attempts(cell_results, code, **wanted):
    """Return the attempts of a code with these values."""
    result = cell_results[1]["codes"][code]["attempts"]
    return [attempt for attempt in result if all(attempt[key] == value for key, value in wanted.items())]


def expected(cell, code, trigger, mitigation):
    """Return the expected outcome of an attempt."""
    if cell in REFUSING and trigger.startswith("overlong"):
        return "inapplicable"
    if mitigation is None:
        return "reproduced"
    helps, meaningless = EXPECTED[code][trigger]
    assert not helps & (meaningless | USELESS[code])
    if mitigation in helps:
        return "mitigated"
    return "inapplicable" if mitigation in meaningless else "not_mitigated"


def test_upstream_is_unmodified(cell_results):
    """The files that ran match the hashes of the wheel."""
    cell, document = cell_results
    assert document["upstream"]["distribution"] == "vllm"
    assert cell.startswith(f"vllm-{document['upstream']['version']}+")
    assert document["upstream"]["files_checked"] > 500
    assert document["upstream"]["modified"] == []


@pytest.mark.parametrize("code", EXPECTED)
def test_every_attempt_has_its_recorded_outcome(cell_results, code):
    cell, _ = cell_results
    assert {trigger.name for trigger in REPROS[code].triggers} == set(EXPECTED[code])
    outcomes = {(a["trigger"], a["mitigation"]): a["outcome"] for a in attempts(cell_results, code)}
    assert len(outcomes) == len(REPROS[code].triggers) * (1 + len(REPROS[code].mitigations))
    assert outcomes == {pair: expected(cell, code, *pair) for pair in outcomes}


@pytest.mark.parametrize("code", EXPECTED)
def test_reproductions_fail_at_the_released_assertion(cell_results, code):
    """The failed assertion is at its line in the wheel, and is reached through the scheduler's schedule()."""
    cell, _ = cell_results
    sch001, sch002, _ = LINES[cell]
    line, function = (sch001, "_schedule_default") if code == "SCH001" else (sch002, "_schedule_running")
    for attempt in attempts(cell_results, code, outcome="reproduced"):
        if REPROS[code].trigger(attempt["trigger"]).silent:
            assert attempt["where"] is None
            continue
        assert attempt["assertion"] == REPROS[code].assertion
        assert (attempt["where"], attempt["function"]) == (f"vllm/core/scheduler.py:{line}", function)
        assert any(link.startswith("schedule (vllm/core/scheduler.py:") for link in attempt["chain"])
        assert attempt["simulated"][0].startswith("the forward pass")


def test_silent_failure_loses_a_request_and_its_blocks(cell_results):
    """One request of two never returns, and the blocks of 80 tokens leak."""
    for attempt in attempts(cell_results, "SCH002", trigger="overlong_dropped", outcome="reproduced"):
        assert (attempt["finished"], attempt["expected"], attempt["leaked_blocks"]) == (1, 2, 5)
        assert attempt["assertion"] is None


def test_chunked_prefill_causes_another_failure(cell_results):
    """With chunked prefill, two callers fail another assertion; after a lost step a caller gets foreign completions."""
    cell, _ = cell_results
    [race] = attempts(cell_results, "SCH001", trigger="two_owners", mitigation="chunked_prefill_on")
    assert race["where"] == f"vllm/sequence.py:{LINES[cell][2]}"
    assert race["assertion"] == "assert self._num_computed_tokens <= self.get_len()"
    [lost] = attempts(cell_results, "SCH001", trigger="lost_step", mitigation="chunked_prefill_on")
    assert (lost["finished"], lost["expected"]) == (2, 2)
    assert "4 completions went to a caller that had not asked for them" in lost["detail"]


def test_lock_around_each_step_misdelivers_completions(cell_results):
    """With a lock around each step no assertion fails, but the training caller gets no completions."""
    [attempt] = attempts(cell_results, "SCH001", trigger="two_owners", mitigation="lock_around_step")
    assert attempt["assertion"] is None
    assert "not served: train-0, train-1, train-2, train-3" in attempt["detail"]


def test_repeated_attempts_have_one_outcome():
    """Twenty repetitions of each pair give the same outcome, location and counts."""
    done = run_in_cell("vllm-0.7.3+trl-0.16.1", "-m", "repro", "run", "SCH001", "SCH002", "--times", "20")
    assert done.returncode == 0, done.stderr[-3000:]
