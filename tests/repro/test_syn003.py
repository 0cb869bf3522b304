"""SYN003 attributes log-probs to the policy or the base model, and reproduces with a TRL that reloads weights.

SYN003: TRL reloads the base model's weights from disk after a sleep, and discards the synced weights.
"""

import json

import pytest

from repro.issues import syn003 as repro
from tests.cells import cell_python, read_attempts, repro_beside_trl, run_in_cell

CELL = "vllm-0.31.0+trl-1.16.0"


def test_logprobs_are_attributed_to_policy_or_base_model():
    """A log-prob of the policy counts as finished; the description counts those of the base model."""
    work = repro.count_policy_logprobs(
        [-1.0, -2.0, -3.0], policy=[-1.05, -4.0, -3.0], base=[-9.0, -2.1, -9.0]
    )
    assert [name for name, _ in work.received] == ["token 0", "token 2"]
    note = "mean difference 0.68; 1 of 3 are the base model's"
    assert work.describe() == f"2 of 3 log-probs are the policy's; {note}"
    assert repro.count_policy_logprobs([-1.0], [-1.0], [-9.0]).complete


def test_sampled_logprob_is_read_from_both_formats():
    """The log-prob is a number in TRL 0.29, and a list with one number in newer releases."""
    assert (repro.sampled_logprob(-1.5), repro.sampled_logprob([-1.5])) == (-1.5, -1.5)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "TRL 0.28 and newer have it"),
        ("self.sync_weights()", "does not reload weights"),
        (f"self.llm.{repro.RELOADS}", None),
    ],
)
def test_release_is_identified_by_its_reload_call(monkeypatch, text, reason):
    """The repro applies to a TRL source with the call that reloads weights."""
    monkeypatch.setattr(repro.upstream, "source", lambda *_: text)
    monkeypatch.setattr(
        repro.upstream, "first_installed", lambda _: type("Distribution", (), {"version": "0"})
    )
    monkeypatch.setattr(repro.whole_engine, "inapplicable", lambda: None)
    result = repro.inapplicable()
    assert result is None if reason is None else reason in result


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.heavy
def test_newest_trl_does_not_reload():
    """In the cell with TRL 1.16.0, the repro is inapplicable."""
    done = run_in_cell(CELL, "-m", "repro", "run", "SYN003", "--json")
    code = json.loads(done.stdout)["codes"]["SYN003"]
    assert (done.returncode, code["outcome"]) == (0, "inapplicable")
    assert "does not reload weights" in code["attempts"][0]["detail"]


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.heavy
def test_rollouts_come_from_the_base_model():
    """With TRL 1.9.2 all log-probs are those of the base model, and two mitigations help.

    The wheel of TRL 1.9.2 is in the folder GRPO_DOCTOR_TRL_1_9_2, which precedes the cell's own TRL on the path.
    """
    program = repro_beside_trl("1.9.2", "run", "SYN003", "--timeout", "280", "--json")
    assert cell_python(CELL).exists()
    attempts = read_attempts(run_in_cell(CELL, "-c", program, timeout_s=900), "SYN003")
    bare = attempts["asleep", None]
    assert bare["outcome"] == "reproduced"
    assert "72 of 72 are the base model's" in bare["detail"]
    for name in ("sleep_off", "checkpoint_on_disk"):
        helped = attempts["asleep", name]
        assert (helped["outcome"], helped["finished"]) == ("mitigated", 72)
