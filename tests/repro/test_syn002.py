"""SYN002 detects completions of two policies, and reproduces on the whole engine of a real cell.

SYN002: a request that is preempted during a pause continues under the new weights.
"""

import pytest

from repro.base import ElsewhereError, InapplicableError
from repro.issues import syn002 as repro
from tests.cells import attempts_in_cell


def report(second):
    """Return the engine process's report, with these policies for the tokens of the second completion."""
    return {"completions": {"first": ["old"] * 3, "second": second}, "at_pause": {"first": 3, "second": 1}}


def test_completion_of_two_policies_does_not_count():
    """A completion with tokens of two policies is not served; the description has the tokens of each policy."""
    done = repro.count_unmixed(report(["old", "new", "new"]))
    assert not done.is_served("second")
    assert "first: 3 by the old weights; second: 1 by the old weights, then 2 by the new" in done.describe()
    assert "tokens when the pause was over: 3 of first, 1 of second" in done.describe()


def test_incomplete_completion_does_not_count():
    assert not repro.count_unmixed(report(["old"] * 3)).complete
    completions = {"first": ["old"] * repro.TOKENS, "second": ["new"] * repro.TOKENS}
    assert repro.count_unmixed({"completions": completions, "at_pause": {}}).complete


@pytest.mark.parametrize(
    ("result", "error", "message"),
    [
        (report(["old", "?", "new"]), RuntimeError, "of neither weights"),
        ({"inapplicable": "no device"}, InapplicableError, "no device"),
        (
            {"failure": {"kind": "EngineDeadError", "text": "", "frames": []}},
            ElsewhereError,
            "EngineDeadError",
        ),
    ],
)
def test_other_results_are_errors(result, error, message):
    """Tokens of neither policy are a harness error, and an engine error keeps its name."""
    with pytest.raises(error, match=message):
        repro.count_unmixed(result)


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.heavy
def test_completion_continues_under_new_weights():
    """On AsyncLLM one completion continues under new weights after the pause; each mitigation prevents that."""
    attempts = attempts_in_cell("vllm-0.31.0+trl-1.16.0", "SYN002", "--timeout", "200")
    bare = attempts["preempted", None]
    assert (bare["outcome"], bare["finished"]) == ("reproduced", 1)
    assert "by the old weights, then" in bare["detail"]
    for name in ("abort", "await_requests", "enough_cache"):
        helped = attempts["preempted", name]
        assert (helped["outcome"], helped["finished"]) == ("mitigated", 2)
