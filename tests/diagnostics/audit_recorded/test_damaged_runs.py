"""Truncated, invalid and skipped files of a run are reported, and the audit is not clean.

Readers keep their limits of bytes, memory and time. A secret at a text's limit is masked, and statistics of huge
numbers are infinite instead of an error.
"""

import contextlib
import hashlib
import itertools
import json
import math
import struct
import subprocess
import sys
import tracemalloc

import pyarrow as pa
import pytest
import torch
from pyarrow import parquet
from safetensors.torch import save

from diagnostics import safe_io
from diagnostics.audit.recorded import metric_files, run_audit, run_data, safetensors, sample_files, stats
from diagnostics.audit.recorded.run_audit import audit_run
from diagnostics.audit.recorded.run_data import MAX_TEXT, Sample, text_of
from diagnostics.audit.results import CLEAN, NOT_DECIDED, AuditError
from diagnostics.output.redact import redact
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


def test_python_script_is_not_read_as_a_log(tmp_path):
    (tmp_path / "train.py").write_text("print({'loss': 0.1, 'reward': 1.0})\n")
    _audit, facts = audit_with_notes(tmp_path / "train.py")
    assert [fact.values["why"] for fact in facts] == ["a Python script, not metrics"]


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


def test_deep_folder_is_reported_as_unread(tmp_path):
    """Folders below the deepest level that is read are listed, and the audit is undecided."""
    runs.write_verl(some_rows(), tmp_path / "run")
    (tmp_path / "1/2/3/4/5/6/7/8").mkdir(parents=True)
    audit, facts = audit_with_notes(tmp_path)
    assert audit.outcome == NOT_DECIDED
    assert [fact.values["why"] for fact in facts] == ["folders below level 7 are not read"]
    assert facts[0].place.endswith("6/7/8")


def test_log_history_beyond_the_limit_is_reported_as_unread(tmp_path, monkeypatch):
    monkeypatch.setattr(metric_files, "MAX_STEPS", 9)
    history = [{"step": step, "reward": 0.5} for step in range(1, 11)]
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    reasons = [reason for _, reason in run_audit.read_run(tmp_path).unread]
    assert reasons == ["log_history[9] and all after it: more than 9 steps"]


def test_user_in_the_path_of_a_run_is_named_with_the_folder_before_it(tmp_path):
    """The folder is what the rules of redaction know the user's name by."""
    file = tmp_path / "home" / "adalovelace" / "trainer_state.json"
    file.parent.mkdir(parents=True)
    file.write_text('{"log_history": [{"step": 1, "reward": 0.5}]}')
    series = str(metric_files.read_trainer_state(file, run_data.UnreadInputs()))
    assert "adalovelace/trainer_state.json" in series
    assert "adalovelace" not in redact(series)


def test_tensors_that_share_bytes_are_refused():
    entry = {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}
    header = json.dumps({"a": entry, "b": entry}).encode()
    with pytest.raises(ValueError, match="share bytes"):
        safetensors.parse(struct.pack("<Q", len(header)) + header + b"1234")


def test_secret_at_the_limit_of_a_text_is_masked():
    text = "a" * (MAX_TEXT - 20) + " postgres://ada:hunter22four@db/x"
    assert "hunter22" not in text_of(text)


@pytest.mark.parametrize("shape", [[int("9" * 4000)] * 3, [1] * 1000, [-1, -1], [math.inf]])
def test_impossible_tensor_shape_is_refused(shape):
    """A shape with huge, infinite, too many or negative dimensions is refused before the dimensions are multiplied."""
    header = json.dumps({"a": {"dtype": "F99", "shape": shape, "data_offsets": [0, 0]}}).encode()
    with pytest.raises(ValueError, match="impossible shape"):
        safetensors.parse(struct.pack("<Q", len(header)) + header)


@pytest.mark.parametrize("form", ["verl", "swift"])
def test_files_are_read_up_to_the_limit_of_a_run(tmp_path, form):
    """Two of three files fit; the third is reported as unread."""
    for folder in "abc":
        runs.WRITERS[form](some_rows(1), tmp_path / folder)
    paths, reading = sorted(tmp_path.rglob("*.jsonl")), run_data.ReadBudget()
    reading.bytes = 2 * paths[0].stat().st_size + 9
    assert len(sample_files.read_samples(form, paths, reading).rows) == 32
    assert [path for path, _ in reading.unread] == [str(paths[2])]


def test_dictionary_encoded_text_counts_once_per_row(tmp_path, monkeypatch):
    """Small Parquet files cannot expand to gigabytes: the limit is for all files of a run together."""
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * 2000, pa.int32()), pa.array(["x" * 1000]))
    table = pa.table({"step": pa.array([1] * 2000), "prompt": texts, "completion": texts})
    paths = [tmp_path / f"completions_0000{number}.parquet" for number in (1, 2)]
    for path in paths:
        parquet.write_table(table, path, compression="zstd")
    monkeypatch.setattr(run_data, "MAX_RUN", 6_000_000)
    reading = run_data.ReadBudget()
    assert sample_files.read_samples("parquet", paths, reading).files == (2, 1)
    assert "over the limit of bytes" in reading.unread[0][1]


def varint(number):
    """Encode a number as in a Parquet footer."""
    low = bytes([number & 127 | 128 * (number > 127)])
    return low + (varint(number >> 7) if number > 127 else b"")


def write_understated(path, size, rows):
    """Write a Parquet file with one repeated text, whose footer says that the row group has 1 byte."""
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array(["x" * size]))
    table = pa.table({"step": pa.array([1] * rows), "prompt": texts, "completion": texts})
    layout = {"dictionary_pagesize_limit": 1 << 30, "store_schema": False, "write_statistics": False}
    parquet.write_table(table, path, compression="zstd", **layout)
    true = varint(2 * parquet.ParquetFile(path).metadata.row_group(0).total_byte_size)
    data = path.read_bytes()
    position = data.rindex(true)
    stated = b"\x82" + b"\x80" * (len(true) - 2) + b"\0"
    path.write_bytes(data[:position] + stated + data[position + len(true) :])
    assert parquet.ParquetFile(path).metadata.row_group(0).total_byte_size == 1


def test_understated_parquet_file_is_unpacked_in_small_parts(tmp_path, monkeypatch):
    """Reading it takes less than 100 MiB. When 1024 rows were unpacked at once, a file of 809 bytes took 4.7 GB.

    A process unpacks it first, because a call of C ends neither at a limit of this process nor on Ctrl-C.
    """
    path = tmp_path / "completions_00001.parquet"
    write_understated(path, 1 << 20, 200)
    monkeypatch.setattr(run_data, "MAX_RUN", 4 * safe_io.MIB)
    reading = run_data.ReadBudget()
    with traced_memory() as peak:
        assert sample_files.read_samples("parquet", [path], reading) is None
        assert peak() < 100 * safe_io.MIB
    monkeypatch.setattr(sample_files, "_UNPACK_S", 0.01)
    assert sample_files.read_samples("parquet", [path], reading) is None
    reasons = [reason for _, reason in reading.unread]
    assert ["over the limit of bytes" in reasons[0], "more than 0.01 s" in reasons[1]] == [True, True]


def test_understated_page_of_a_parquet_file_is_not_unpacked(tmp_path):
    """A page of 100 MB, stored in 7 KB, is refused by the limit of memory, here of 64 MiB."""
    path = tmp_path / "completions_00001.parquet"
    write_understated(path, 100_000_000, 2)
    code = (
        "from diagnostics.audit.recorded import run_data, sample_files; import pathlib, sys\n"
        "sample_files._PARQUET_BYTES, reading = 64 << 20, run_data.ReadBudget()\n"
        "print(sample_files.read_samples('parquet', [pathlib.Path(sys.argv[1])], reading), *reading.unread)"
    )
    command = [sys.executable, "-c", code, str(path)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "unpacking failed: malloc of size" in result.stdout


def write_shared_prompt(folder, length, samples, prompt):
    """Write a step of rollouts, whose samples have one token each and share a prompt."""
    tensors = {
        name: torch.ones(samples, dtype=torch.uint8)
        for name in (
            *("completion_ids", "completion_lengths", "behaviour_logprobs", "proximal_logprobs"),
            *("policy_versions", "trained", "rewards", "advantages"),
        )
    }
    tensors["prompt_index"] = torch.zeros(samples, dtype=torch.uint8)
    tensors["prompt_ids"] = torch.ones(length, dtype=torch.uint8)
    data = save({**tensors, "prompt_lengths": torch.tensor([length])})
    (folder / "step.safetensors").write_bytes(data)
    texts = {name: [""] * samples for name in ("texts", "finish_reasons", "requests")}
    entry = {"schema": "grpo-doctor.rollout.v1", "step": 1, "file": "step.safetensors", **texts}
    entry |= {"sha256": hashlib.sha256(data).hexdigest(), "prompts": [{"text": prompt}]}
    path = folder / "rollouts.jsonl"
    path.write_text(json.dumps(entry | {"scores": [{}] * samples}) + "\n")
    return path


def test_samples_of_a_prompt_do_not_repeat_it(tmp_path, monkeypatch):
    """The samples share one prompt text. With a copy for each, 5000 samples in 156 KB took 9.5 GB."""
    monkeypatch.setattr(run_data, "MAX_FILE", safe_io.MIB)
    path = write_shared_prompt(tmp_path, 5000, 500, "x" * 2 * run_data.MAX_TEXT)
    with traced_memory() as peak:
        recording = sample_files.read_samples("rollouts", [path], run_data.ReadBudget())
        assert peak() < 8 * safe_io.MIB
    assert len(recording.rows) == 500
    assert len({id(row.prompt) for row in recording.rows}) == 1


def test_numbers_of_rollouts_count_as_large_as_in_memory(tmp_path):
    """A number of one byte counts as 16 bytes, so that a file below the limit is refused."""
    path = write_shared_prompt(tmp_path, 1 << 20, 1, "x")
    reading = run_data.ReadBudget()
    reading.bytes = 8 * safe_io.MIB
    assert sample_files.read_samples("rollouts", [path], reading) is None
    assert "over the limit of bytes" in reading.unread[0][1]


@contextlib.contextmanager
def traced_memory():
    """Trace Python's allocations; yield a function that returns their peak in bytes."""
    tracemalloc.start()
    try:
        yield lambda: tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_statistics_of_huge_numbers_are_infinite():
    values = [1e308, 1e308, -1e308]
    assert stats.deviation(values) == float("inf")
    assert stats.mean([1e308] * 3) == float("inf")


def test_link_out_of_the_folder_is_reported_as_unread(tmp_path):
    """The metrics of another folder are not judged as those of the run."""
    run, log = tmp_path / "run", tmp_path / "other.jsonl"
    run.mkdir()
    log.write_text("".join(f'{{"step": {step}, "reward": 0.5}}\n' for step in range(20)))
    (run / "metrics.jsonl").symlink_to(log)
    artifacts = run_audit.read_run(run)
    assert not artifacts.series
    assert "a link that leads out of the folder" in artifacts.unread[0][1]
