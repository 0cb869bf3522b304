"""Truncated, foreign or unread files of a run are reported, and the audit is not clean; readers keep their limits."""

from __future__ import annotations

import itertools
import json
import struct

import pyarrow as pa
import pytest
from pyarrow import parquet

from diagnostics.audit.recorded import metric_files, run_audit, run_data, safetensors, sample_files, stats
from diagnostics.audit.recorded.run_audit import audit_run
from diagnostics.audit.recorded.run_data import Sample
from diagnostics.audit.results import CLEAN, NOT_DECIDED, AuditError
from tests.diagnostics.audit_recorded import runs


def some_rows(steps=5):
    """Return four groups of four samples per step, with different rewards and correct advantages."""
    places = itertools.product(range(1, steps + 1), range(4), range(4))
    advantages = [value / (0.57735027 + 1e-4) for value in (-0.5, 0.5, -0.5, 0.5)]
    return [
        Sample(
            step, f"prompt {step} {group}", f"answer {step} {group} {item}", float(item % 2), advantages[item]
        )
        for step, group, item in places
    ]


FILES = ("1.jsonl", "completions.jsonl", "trainer_state.json", "completions_00001.parquet", "rollouts.jsonl")


def audit_with_notes(path):
    """Audit a run; return the audit and its notes on unread files."""
    audit = audit_run(path)
    facts = [fact for answer in audit.results if answer.family == "files" for fact in answer.evidence]
    return audit, facts


def test_path_without_run_artifacts_is_refused(tmp_path):
    (tmp_path / "notes.md").write_text("hello")
    with pytest.raises(AuditError, match="no run artifacts"):
        audit_run(tmp_path)
    with pytest.raises(AuditError, match="no such file"):
        audit_run(tmp_path / "gone")


@pytest.mark.parametrize("form", ["parquet", "verl", "swift"])
def test_truncated_file_is_reported_and_not_clean(tmp_path, form):
    """A truncated last file is named, and the outcome is undecided."""
    folder = runs.WRITERS[form](some_rows(), tmp_path / form)
    full, facts = audit_with_notes(folder)
    assert (full.outcome, facts) == (CLEAN, [])
    last = sorted(path for path in folder.rglob("*") if path.is_file())[-1]
    last.write_bytes(last.read_bytes()[:-20])
    audit, facts = audit_with_notes(folder)
    assert audit.outcome == NOT_DECIDED
    assert [last.name in fact.place for fact in facts] == [True]


@pytest.mark.parametrize(
    "data", [b"", b"\x00" * 64, b"[1, 2]\n", b'{"input": ' + b"[" * 5000 + b"\n", b"\xff\xfe{}"]
)
def test_foreign_file_under_a_known_name_does_not_end_the_audit(tmp_path, data):
    for name in FILES:
        (tmp_path / name).write_bytes(data)
    audit, facts = audit_with_notes(tmp_path)
    assert audit.outcome == NOT_DECIDED
    assert len(facts) >= 5


def test_truncated_weights_are_reported(tmp_path):
    """Weights whose header declares more bytes than the file has are reported as cut off."""
    head = json.dumps({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    for step, data in ((1, b"\0" * 16), (2, b"\0" * 12)):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + data)
    _, facts = audit_with_notes(tmp_path)
    assert len(facts) == 1
    assert "cut off" in facts[0].values["why"]


def test_fifth_folder_of_one_format_is_reported_as_unread(tmp_path):
    """The audit reads four folders of one format and is undecided if there are more."""
    for name in "abcde":
        runs.write_verl(some_rows(), tmp_path / name)
    audit, facts = audit_with_notes(tmp_path)
    assert audit.outcome == NOT_DECIDED
    assert [fact.values["why"] for fact in facts] == ["1 more of this kind were not read"]


def test_log_history_beyond_the_limit_is_reported_as_unread(tmp_path, monkeypatch):
    monkeypatch.setattr(metric_files, "MAX_STEPS", 9)
    history = [{"step": step, "reward": 0.5} for step in range(1, 11)]
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    reasons = [reason for _, reason in run_audit.read_run(tmp_path).unread]
    assert reasons == ["log_history[9] and all after it: more than 9 steps"]


@pytest.mark.parametrize("shape", [[int("9" * 4000)] * 3, [1] * 1000, [-1, -1]])
def test_impossible_tensor_shape_is_refused(shape):
    """A shape with huge, too many or negative dimensions is refused before the dimensions are multiplied."""
    header = json.dumps({"a": {"dtype": "F99", "shape": shape, "data_offsets": [0, 0]}}).encode()
    with pytest.raises(ValueError, match="impossible shape"):
        safetensors.parse(struct.pack("<Q", len(header)) + header)


def test_dictionary_encoded_text_counts_once_per_row(tmp_path, monkeypatch):
    """Dictionary-encoded text counts once per row, so a small Parquet file cannot expand to gigabytes."""
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * 2000, pa.int32()), pa.array(["x" * 1000]))
    table = pa.table({"step": pa.array([1] * 2000), "prompt": texts, "completion": texts})
    path = tmp_path / "completions_00001.parquet"
    parquet.write_table(table, path, compression="zstd")
    monkeypatch.setattr(run_data, "MAX_RUN", 1_000_000)
    reading = run_data.ReadBudget()
    assert sample_files.read_samples("parquet", [path], reading) is None
    assert "MiB of text" in reading.unread[0][1]


def test_statistics_of_huge_numbers_do_not_overflow():
    values = [1e308, 1e308, -1e308]
    assert stats.deviation(values) == float("inf")
    assert stats.mean([1e308] * 3) == float("inf")


def test_link_out_of_the_folder_is_reported_as_unread(tmp_path):
    """The metrics of another folder are not judged as those of the run."""
    run, other = tmp_path / "run", tmp_path / "other.jsonl"
    run.mkdir()
    other.write_text("".join(f'{{"step": {step}, "reward": 0.5}}\n' for step in range(20)))
    (run / "metrics.jsonl").symlink_to(other)
    artifacts = run_audit.read_run(run)
    assert not artifacts.series
    assert "a link that leads out of the folder" in artifacts.unread[0][1]
