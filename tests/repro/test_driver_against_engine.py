"""The driver of vLLM's V0 scheduler has the same outcomes as vLLM's whole unmodified `LLM` on random requests."""

import json
from pathlib import Path

import pytest

from tests.cells import run_in_cell

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

PROGRAM = Path(__file__).parent / "cell_programs" / "driver_against_engine.py"
CELLS = [
    "vllm-0.6.6.post1+trl-0.14.0", "vllm-0.7.2+trl-0.15.2", "vllm-0.7.3+trl-0.16.1",
    "vllm-0.8.5.post1+trl-0.17.0", "vllm-0.10.2+trl-0.24.0",
]  # fmt: skip


@pytest.fixture(scope="module", params=CELLS)
def cell_results(request):
    """Return the results of each workload in the driver and in the engine of one cell."""
    done = run_in_cell(request.param, str(PROGRAM))
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout)
    if "missing" in result:
        pytest.skip(f"the scheduler's recipe is not enough for this release's LLM: {result['missing']}")
    return result


def test_driver_outcomes_match_the_engine(cell_results):
    """Completions by call, forward passes, leaked blocks and assertions of driver and engine are equal."""
    different = [result for result in cell_results if result["whole"] != result["driven"]]
    assert different == []


def test_workloads_cover_assertions_failures_and_success(cell_results):
    """Among the workloads are failed assertions and forward passes; over a third have no failed assertion or leak."""
    expected = [result["whole"] for result in cell_results]
    assert any(result["asserted"] for result in expected)
    assert any("failed" in result["completions"] for result in expected)
    assert sum(not result["asserted"] and not result["leaked"] for result in expected) > len(expected) // 3
