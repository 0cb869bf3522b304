"""Recorded samples with NaN rewards, one prompt or little spread are faults; a reward function is called again.

Calling it again is probe P12. Advantages of functions with unknown weights are skipped, and those of a large step are
computed in limited time.
"""

import math
import time
from dataclasses import replace

import pytest

from diagnostics.audit.recorded.advantages import Formula, check_advantages
from diagnostics.audit.recorded.run_audit import audit_run
from diagnostics.audit.recorded.run_data import Recording, Sample
from diagnostics.audit.results import CLEAN, FAULT, NOT_DECIDED, SKIPPED, AuditError
from tests.diagnostics.audit_recorded import runs
from tests.diagnostics.audit_recorded.runs import fault_families
from tests.diagnostics.audit_recorded.test_damaged_runs import some_rows


@pytest.mark.parametrize(
    ("family", "change"),
    [
        ("rewards/no_number", lambda place, row: {"reward": math.nan if place % 16 == 3 else row.reward}),
        ("rewards/no_number", lambda place, row: {"reward": math.nan}),
        ("data/one_prompt", lambda place, row: {"prompt": "the same prompt"}),
        ("rewards/little_spread", lambda place, row: {"reward": row.reward if place < 4 else 0.0}),
    ],
    ids=["one NaN reward in each batch", "only NaN rewards", "one prompt", "23 of 24 groups at reward 0"],
)
def test_samples_with_bad_rewards_or_one_prompt_are_a_fault(tmp_path, family, change):
    rows = [replace(row, **change(place, row)) for place, row in enumerate(some_rows(6))]
    assert family in fault_families(audit_run(runs.write_verl(rows, tmp_path)))


REWARDS = """
import threading
def right(completions, **_): return [int(text[-1]) % 2 for text in completions]
def thread(completions, **_):
    main = threading.current_thread() is threading.main_thread()
    return [int(text[-1]) % 2 if main else 0 for text in completions]
def raises(completions, **_): raise ValueError('no column')
def other(completions, **_): return [1.0 for _ in completions]
def needs_answer(completions, answer): return [0.0 for _ in completions]
"""


@pytest.mark.parametrize(
    ("function", "result"),
    [
        ("right", ("rewards_again", CLEAN, "")),
        ("thread", ("rewards_again/thread", FAULT, "REW001")),
        ("raises", ("rewards_again/raises", FAULT, "REW002")),
        ("other", ("rewards_again/unlike", FAULT, "REW005")),
        ("needs_answer", ("rewards_again", SKIPPED, "")),
    ],
)
def test_reward_function_is_rerun_in_main_and_worker_thread(tmp_path, function, result):
    """The re-run gives the code of each fault; if the recording lacks a required column, it is not checked."""
    (tmp_path / "mine.py").write_text(REWARDS)
    folder = runs.write_verl(some_rows(), tmp_path / "run")
    audit = audit_run(folder, reward=f"{tmp_path / 'mine.py'}:{function}")
    (answer,) = (item for item in audit.results if item.probe == "P12")
    assert (answer.family, answer.outcome, answer.code) == result
    if function == "needs_answer":
        assert "a column 'answer'" in answer.needed[0].text
        assert audit.outcome == NOT_DECIDED


def test_unknown_reward_function_is_refused(tmp_path):
    (tmp_path / "mine.py").write_text(REWARDS)
    with pytest.raises(AuditError, match="absent"):
        audit_run(runs.write_verl(some_rows(), tmp_path / "run"), reward=f"{tmp_path / 'mine.py'}:absent")


def test_advantages_of_functions_with_unknown_weights_are_skipped(tmp_path):
    """The advantages are those of two reward functions with the weights 1 and 0.2, which no dump has."""
    scores = [{"right": index % 2.0, "format": index % 3 / 2} for index in range(16)]
    totals = [entry["right"] + 0.2 * entry["format"] for entry in scores]
    samples = [
        Sample(1, "2+2?", f"{index}", None, total - sum(totals) / 16, entry)
        for index, (total, entry) in enumerate(zip(totals, scores, strict=True))
    ]
    result = check_advantages(Recording("completions.jsonl", tuple(samples)))
    assert (result.outcome, result.decisive) == (SKIPPED, False)


@pytest.mark.parametrize("peers", ["group", "leave_one_out", "batch", "none"])
def test_advantages_of_a_large_step_are_computed_in_2_s(peers):
    """A step of 16,000 samples takes less than 2 s of CPU time; leave-one-out values of a small group are exact."""
    assert Formula("leave_one_out", "leave_one_out").apply([0.0, 1.0, 3.0], [[0, 1, 2]]) == pytest.approx(
        [-2 / 2**0.5, -0.5 / 4.5**0.5, 2.5 / 0.5**0.5]
    )
    rewards = [float(place % 7) for place in range(16_000)]
    start = time.process_time()
    Formula(peers, peers).apply(rewards, [list(range(16_000))])
    assert time.process_time() - start < 2
