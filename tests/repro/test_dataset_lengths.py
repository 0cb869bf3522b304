"""The data sets of dataset_lengths are fixed, and only the large one makes a released vLLM scheduler fail."""

import json

import pytest

from evaluation.repro import dataset_lengths
from evaluation.repro.dataset_lengths import LIMIT, lengths
from tests.cells import run_in_cell


def test_small_dataset_is_a_prefix_of_the_large_one():
    """The small data set is the beginning of the large one, and only the large one has over-long prompts."""
    small, large = lengths(1000), lengths(20_000)
    assert large[:1000] == small
    assert max(small) == 3034 < LIMIT
    too_long = {row: length for row, length in enumerate(large) if length > LIMIT}
    assert too_long == {9478: 5842, 14449: 4616}


def test_missing_vllm_is_reported(capsys, monkeypatch):
    """Without vLLM the program exits with 2 and prints how to run it."""
    monkeypatch.setattr(dataset_lengths.upstream, "first_installed", lambda _names: None)
    assert dataset_lengths.main([]) == 2
    assert "run it with the Python of a cell" in capsys.readouterr().err


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.heavy
def test_a_thousand_rows_pass_and_twenty_thousand_fail():
    """On vLLM 0.7.3's scheduler only 20,000 rows fail; without the over-long rows, every request gets its tokens."""
    arguments = ["--mitigation", "filter_overlong", "--json"]
    done = run_in_cell(
        "vllm-0.7.3+trl-0.16.1", "-m", "evaluation.repro.dataset_lengths", *arguments, timeout_s=500
    )
    assert done.returncode == 1, done.stderr[-3000:]
    runs = {(sample["rows"], sample["mitigation"]): sample for sample in json.loads(done.stdout)["runs"]}
    assert {pair: sample["outcome"] for pair, sample in runs.items()} == {
        (1000, None): "passed",
        (1000, "filter_overlong"): "passed",
        (20000, None): "failed",
        (20000, "filter_overlong"): "passed",
    }
    failed = runs[20000, None]
    assert failed["ended_in"] == 14336
    assert failed["where"] == "vllm/core/scheduler.py:686: assert len(self._async_stopped) == 0"
    filtered = runs[20000, "filter_overlong"]
    assert (filtered["asked"], filtered["answered"], filtered["leaked_blocks"]) == (19998, 19998, 0)
    assert filtered["tokens"] == 159984
