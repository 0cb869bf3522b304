"""Each attempt in its own process: what hangs, crashes or fails in our own code never counts as reproduced."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from repro import runner
from repro.base import Attempt, Outcome, Work, overall

HERE = Path(__file__).parent
# The runner forks from a server that knows a repro by its code, so the toy one is registered there by a module of
# its own, on the path of a process of its own.
PROGRAM = """
import json, sys
from repro import registry, runner
from toy import TOY
registry.REPROS["TOY001"] = TOY
trigger, mitigation, limit = sys.argv[1], sys.argv[2] or None, float(sys.argv[3])
if __name__ == "__main__":
    attempts = runner.run(TOY, triggers=[trigger], mitigations=[mitigation], limit_s=limit, say=lambda line: None)
    print(json.dumps([attempt.to_json() for attempt in attempts]))
"""


def toy():
    spec = importlib.util.spec_from_file_location("toy", HERE / "toy.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.TOY


def attempt(tmp_path, trigger, mitigation="", limit_s=30.0):
    import json

    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, str(program), trigger, mitigation, str(limit_s)],
        env={"PYTHONPATH": f"{HERE}:{HERE.parent.parent}", "PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (result,) = json.loads(done.stdout)
    return result


def test_a_hanging_attempt_is_a_timeout(tmp_path):
    """It is ended at its limit, and the run goes on to its end."""
    result = attempt(tmp_path, "hang", limit_s=0.5)
    assert (result["outcome"], result["detail"]) == ("timeout", "no answer within 0.5 s")


def test_a_crashing_attempt_is_an_error_that_names_the_signal(tmp_path):
    """A segmentation fault in an attempt does not take the runner with it."""
    result = attempt(tmp_path, "crash")
    assert result["outcome"] == "error"
    assert "SIGSEGV" in result["detail"]


def test_an_assertion_of_our_own_is_an_error_of_the_harness(tmp_path):
    """Only what came out of an installed package counts as reproduced."""
    result = attempt(tmp_path, "own_assertion")
    assert result["outcome"] == "error"
    assert "the harness failed" in result["detail"]
    assert "the harness is wrong" in result["detail"]


@pytest.mark.parametrize(
    ("mitigation", "outcome", "as_recorded"),
    [
        (None, Outcome.REPRODUCED, None),
        ("helps", Outcome.MITIGATED, True),
        ("useless", Outcome.NOT_MITIGATED, False),
        ("senseless", Outcome.INAPPLICABLE, None),
    ],
)
def test_a_silent_failure_is_judged_by_its_figures(mitigation, outcome, as_recorded):
    """A lost token reproduces it; under a mitigation all the work must have been done."""
    seen = runner.judge(toy(), Attempt(trigger="silent", mitigation=mitigation, outcome=Outcome.ERROR))
    assert (seen.outcome, seen.as_recorded) == (outcome, as_recorded)


def test_work_counts_tokens_not_requests():
    """A request with a token too few, or a leaked block, is not done."""
    assert Work({"a": 3}, {"a": 3}).complete
    assert not Work({"a": 3}, {"a": 2}).complete
    assert not Work({"a": 3}, {"a": 3}, leaked_blocks=1).complete
    assert Work({"a": 3, "b": 1}, {"a": 2}).missing == ["a", "b"]


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ([Outcome.NOT_REPRODUCED, Outcome.REPRODUCED], Outcome.REPRODUCED),
        ([Outcome.NOT_REPRODUCED, Outcome.TIMEOUT], Outcome.TIMEOUT),
        ([Outcome.NOT_REPRODUCED], Outcome.NOT_REPRODUCED),
        ([Outcome.INAPPLICABLE], Outcome.INAPPLICABLE),
        ([], Outcome.INAPPLICABLE),
    ],
)
def test_the_outcome_of_a_code_is_that_of_its_bare_attempts(outcomes, expected):
    """Nothing that gave no answer is read as 'does not occur'."""
    assert overall([Attempt("t", None, outcome) for outcome in outcomes]) is expected
