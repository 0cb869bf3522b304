"""REW001 recognises the failures of math-verify releases, and reproduces them with real releases if installed.

REW001: math-verify fails in threads other than the main thread. Up to 0.7 rewards are silently zero; from 0.8 on an
error is raised.
"""

import os
from pathlib import Path

import pytest

from repro.base import InapplicableError
from repro.issues import REPROS
from repro.issues import rew001 as repro
from tests.cells import read_attempts, run_with

# Each release has an environment, made with repro/math.txt, for example GRPO_DOCTOR_MATH/0.7.0/bin/python.
SILENT, LOUD = ("0.4.0", "0.7.0"), ("0.8.0", "0.9.0")


def test_rewards_are_counted_by_answer():
    """A correct answer counts as finished only if its reward is exactly 1; the mean reward is reported."""
    work = repro.count_rewarded([1.0] * 6 + [0.0, 0.5])
    assert (work.finished, len(work.due), work.complete) == (6, 8, False)
    assert work.describe() == "6 of 8 right answers are rewarded; mean reward 0.812"
    assert repro.count_rewarded([1.0] * 8).complete


@pytest.mark.parametrize(
    ("trigger", "parser", "verl", "reason"),
    [
        ("false_in_thread", "it doesn't support threaded environment", None, "see raises_in_thread"),
        ("raises_in_thread", "return []", None, "see false_in_thread"),
        ("verl_reward", "", None, "no verl with such a reward"),
        # verl 0.8.0 and newer.
        ("verl_reward", "", "from concurrent.futures import ProcessPoolExecutor", "in processes of its own"),
    ],
)
def test_release_with_another_failure_is_inapplicable(monkeypatch, trigger, parser, verl, reason):
    """A trigger is inapplicable to a release without its failure, with and without a mitigation."""
    sources = {"math_verify/parser.py": parser, "verl/utils/reward_score/math_verify.py": verl}
    monkeypatch.setattr(repro.upstream, "source", lambda path, _: sources[path])
    monkeypatch.setattr(repro.metadata, "version", lambda _: "0.0.0")
    for mitigation in (None, "main_thread"):
        with pytest.raises(InapplicableError, match=reason):
            REPROS["REW001"].trigger(trigger).run(mitigation)


def attempts_with(version, trigger):
    """Run a trigger with a release of math-verify; return its attempts by mitigation."""
    python = Path(os.environ.get("GRPO_DOCTOR_MATH", "")) / version / "bin" / "python"
    if "GRPO_DOCTOR_MATH" not in os.environ or not python.exists():
        pytest.skip(f"no environment GRPO_DOCTOR_MATH/{version}: see repro/math.txt")
    done = run_with(python, "-m", "repro", "run", "REW001", "--trigger", trigger, "--json")
    return {name: attempt for (_, name), attempt in read_attempts(done, "REW001").items()}


@pytest.mark.slow
@pytest.mark.heavy
@pytest.mark.parametrize("version", SILENT)
def test_up_to_0_7_rewards_are_silently_zero(version):
    """Removing the time limit does not help; running in the main thread or in a process of its own does."""
    result = attempts_with(version, "false_in_thread")
    assert (result[None]["outcome"], result[None]["finished"]) == ("reproduced", 0)
    assert (result["no_timeout"]["outcome"], result["no_timeout"]["finished"]) == ("not_mitigated", 0)
    for name in ("main_thread", "own_process"):
        assert (result[name]["outcome"], result[name]["finished"]) == ("mitigated", 8)


@pytest.mark.slow
@pytest.mark.heavy
@pytest.mark.parametrize("version", LOUD)
def test_from_0_8_on_an_error_is_raised(version):
    """Without a time limit, in the main thread, or in a process of its own, all answers are rewarded."""
    result = attempts_with(version, "raises_in_thread")
    assert (result[None]["outcome"], result[None]["function"]) == ("reproduced", "parse")
    for name in ("no_timeout", "main_thread", "own_process"):
        assert (result[name]["outcome"], result[name]["finished"]) == ("mitigated", 8)
