"""SYN002: what counts as one policy's completion, and then the whole engine of a real cell."""

import json

import pytest

from repro.base import ElsewhereError, InapplicableError
from repro.issues import syn002 as repro
from tests.cells import run_in_cell


def report(second):
    """Return the other process's report, by the policies of the second completion."""
    return {"completions": {"first": ["old"] * 3, "second": second}, "at_pause": {"first": 3, "second": 1}}


def test_a_completion_of_two_policies_is_not_done():
    """The report has the tokens of each policy, and each request's tokens at the end of the pause."""
    done = repro.work(report(["old", "new", "new"]))
    assert not done.is_served("second")
    assert "first: 3 by the old weights; second: 1 by the old weights, then 2 by the new" in done.describe()
    assert "tokens when the pause was over: 3 of first, 1 of second" in done.describe()


def test_a_completion_that_is_short_is_not_done_either():
    """All its tokens have to be there; otherwise nothing was shown."""
    assert not repro.work(report(["old"] * 3)).complete
    expected = {"first": ["old"] * repro.TOKENS, "second": ["new"] * repro.TOKENS}
    assert repro.work({"completions": expected, "at_pause": {}}).complete


def test_what_is_neither_policys_is_the_harness_fault():
    """An engine whose numbers agree with no side proves nothing about the pause."""
    with pytest.raises(RuntimeError, match="of neither weights"):
        repro.work(report(["old", "?", "new"]))


def test_other_ends_are_told_apart():
    """No device is inapplicable; a failure of the engine's keeps its name."""
    with pytest.raises(InapplicableError, match="no device"):
        repro.work({"inapplicable": "no device"})
    with pytest.raises(ElsewhereError, match="EngineDeadError"):
        repro.work({"failure": {"kind": "EngineDeadError", "text": "", "frames": []}})


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.heavy
def test_new_weights_finish_what_the_old_ones_began():
    """On AsyncLLM one completion continues under new weights after the pause; each mitigation prevents that."""
    done = run_in_cell(
        "vllm-0.31.0+trl-1.16.0", "-m", "repro", "run", "SYN002", "--timeout", "200", "--json", timeout_s=850
    )
    assert done.returncode == 0, done.stderr[-3000:]
    attempts = {
        result["mitigation"]: result for result in json.loads(done.stdout)["codes"]["SYN002"]["attempts"]
    }
    assert attempts[None]["outcome"] == "reproduced"
    assert attempts[None]["finished"] == 1
    assert "by the old weights, then" in attempts[None]["detail"]
    for name in ("abort", "await_requests", "enough_cache"):
        assert (attempts[name]["outcome"], attempts[name]["finished"]) == ("mitigated", 2)
