"""REW001: right answers that are worth 0 in a thread; which way a release fails, and real math-verify where it is."""

import json
import os
from pathlib import Path

import pytest

from repro.base import InapplicableError
from repro.issues import REPROS
from repro.issues import rew001 as repro
from tests.cells import run_with

# Environments that have one release of math-verify each, made with repro/math.txt: GRPO_DOCTOR_MATH/0.7.0/bin/python.
SILENT, LOUD = ("0.4.0", "0.7.0"), ("0.8.0", "0.9.0")


@pytest.fixture
def release(monkeypatch):
    """Let the repro find a release by its sources, with none installed."""

    def set_sources(version, parser, verl=None):
        result = {"math_verify/parser.py": parser, "verl/utils/reward_score/math_verify.py": verl}
        monkeypatch.setattr(repro.upstream, "source", lambda path, _: result[path])
        monkeypatch.setattr(repro.metadata, "version", lambda _: version)

    return set_sources


def test_rewards_are_counted_by_answer():
    """A right answer counts as served if its reward is 1; the mean is reported."""
    work = repro.count_rewarded([1.0] * 6 + [0.0, 0.5])
    assert (work.finished, len(work.due), work.complete) == (6, 8, False)
    assert work.describe() == "6 of 8 right answers are rewarded; mean reward 0.812"
    assert repro.count_rewarded([1.0] * 8).complete


@pytest.mark.parametrize(
    ("trigger", "parser", "reason"),
    [
        ("false_in_thread", "it doesn't support threaded environment", "see raises_in_thread"),
        ("raises_in_thread", "return []", "see false_in_thread"),
        ("verl_reward", "", "no verl with such a reward"),
    ],
)
def test_a_release_that_fails_the_other_way_is_inapplicable(release, trigger, parser, reason):
    """Also under each mitigation: nothing was mitigated where nothing was to fail."""
    release("0.0.0", parser)
    for mitigation in (None, "main_thread"):
        with pytest.raises(InapplicableError, match=reason):
            REPROS["REW001"].trigger(trigger).run(mitigation)


def test_a_verl_that_compares_in_processes_is_inapplicable(release):
    """verl 0.8.0 and newer."""
    release("0.9.1", "", "from concurrent.futures import ProcessPoolExecutor")
    with pytest.raises(InapplicableError, match="in processes of its own"):
        REPROS["REW001"].trigger("verl_reward").run(None)


def _attempts(version, trigger):
    python = Path(os.environ.get("GRPO_DOCTOR_MATH", "")) / version / "bin" / "python"
    if "GRPO_DOCTOR_MATH" not in os.environ or not python.exists():
        pytest.skip(f"no environment GRPO_DOCTOR_MATH/{version}: see repro/math.txt")
    done = run_with(python, "-m", "repro", "run", "REW001", "--trigger", trigger, "--json")
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout)["codes"]["REW001"]["attempts"]
    return {attempt["mitigation"]: attempt for attempt in result}


@pytest.mark.slow
@pytest.mark.heavy
@pytest.mark.parametrize("version", SILENT)
def test_up_to_0_7_nothing_is_rewarded_and_nothing_is_raised(version):
    """No limit of time does not help there; a main thread does."""
    result = _attempts(version, "false_in_thread")
    assert (result[None]["outcome"], result[None]["finished"]) == ("reproduced", 0)
    assert (result["no_timeout"]["outcome"], result["no_timeout"]["finished"]) == ("not_mitigated", 0)
    for name in ("main_thread", "own_process"):
        assert (result[name]["outcome"], result[name]["finished"]) == ("mitigated", 8)


@pytest.mark.slow
@pytest.mark.heavy
@pytest.mark.parametrize("version", LOUD)
def test_from_0_8_on_it_is_raised(version):
    """And no limit of time helps."""
    result = _attempts(version, "raises_in_thread")
    assert (result[None]["outcome"], result[None]["function"]) == ("reproduced", "parse")
    for name in ("no_timeout", "main_thread", "own_process"):
        assert (result[name]["outcome"], result[name]["finished"]) == ("mitigated", 8)
