"""Recorded samples that cannot teach anything, and reward functions."""

import json
import math

import pytest

from diagnostics.audit.recorded.run_audit import audit_run
from diagnostics.audit.results import FAULT
from tests.diagnostics.audit_recorded import runs
from tests.diagnostics.audit_recorded.test_recorded_reads import some_rows


def write(folder, rows):
    """verl's rollout dumps, NaN included."""
    return runs.as_verl(rows, folder)


def families(folder, **options):
    return {result.family for result in audit_run(folder, **options).results if result.outcome == FAULT}


def changed(**fields):
    from dataclasses import replace

    return [
        replace(row, **{name: value(place, row) for name, value in fields.items()})
        for place, row in enumerate(some_rows())
    ]


def test_one_nan_reward_in_each_batch_is_a_fault(tmp_path):
    rows = changed(reward=lambda place, row: math.nan if place % 16 == 3 else row.reward)
    assert families(write(tmp_path, rows)) == {"rewards/no_number"}


def test_one_prompt_for_all_samples_is_a_fault(tmp_path):
    rows = changed(prompt=lambda _place, _row: "the same prompt")
    assert "data/one_prompt" in families(write(tmp_path, rows))


def test_23_of_24_groups_without_spread_are_a_fault(tmp_path):
    rows = [row for row in some_rows(6) if True]
    from dataclasses import replace

    rows = [replace(row, reward=row.reward if place < 4 else 0.0) for place, row in enumerate(rows)]
    assert families(write(tmp_path, rows)) == {"rewards/little_spread"}


@pytest.mark.parametrize(
    ("function", "family"), [("needs_answer", ""), ("raises", "rewards_again/raises"), ("right", "")]
)
def test_missing_column_is_not_checked_and_no_fault(tmp_path, function, family):
    """A healthy run whose recording lacks a column that the reward function requires."""
    folder = write(tmp_path / "run", some_rows())
    module = tmp_path / "mine.py"
    module.write_text(
        "def needs_answer(completions, answer):\n    return [0.0 for _ in completions]\n"
        "def raises(completions):\n    raise TypeError('broken')\n"
        "def right(completions):\n    return [int(text[-1]) % 2 for text in completions]\n"
    )
    audit = audit_run(folder, reward=f"{module}:{function}")
    assert {result.family for result in audit.results if result.outcome == FAULT} == (
        {family} if family else set()
    )
    result = next(result for result in audit.results if result.topic == "rewards_again")
    if function == "needs_answer":
        assert result.outcome == "not_asked"
        assert "a column 'answer'" in result.needed[0].text
        assert audit.outcome == "not_decided"


def test_json_lines_with_nan_are_read(tmp_path):
    line = {"input": "a", "output": "b", "score": math.nan, "step": 1}
    (tmp_path / "1.jsonl").write_text("".join(json.dumps(line) + "\n" for _ in range(4)))
    assert "rewards/no_number" in families(tmp_path)
