"""Files of a run that are small and would take all time or all memory are told, and left out."""

from __future__ import annotations

import json
import struct

import pytest

from diagnostics.audit.recorded.questions import figures
from diagnostics.audit.recorded.readers import completions_parquet, plain, safetensors, trackers


def wandb(parts):
    """A file of W&B's with these parts of records, each with its kind."""
    told = (b"\0\0\0\0" + struct.pack("<HB", len(part), kind) + part for kind, part in parts)
    return memoryview(b":W&B\xe1\xbe\x00" + b"".join(told))


def test_what_follows_a_records_last_part_is_none_of_it():
    """Each last part took all before it along: a file of them grew with the square of its length."""
    found = trackers._logged(wandb([(2, b"a"), (4, b"b"), (4, b"c"), (3, b"d"), (2, b"e"), (4, b"f")]))
    assert [bytes(record) for record in found] == [b"ab", b"c", b"ef"]


def test_a_record_without_an_end_is_told(tmp_path, monkeypatch):
    """Parts of a byte each, put together anew for each of them, held an audit for hours."""
    monkeypatch.setattr(plain, "LINE", 1000)
    path = tmp_path / "run-a.wandb"
    path.write_bytes(wandb([(2, b"a")] + [(3, b"a")] * 2000))
    unread = []
    assert trackers.history(path, unread) is None
    assert "goes on for more than" in unread[0].why


@pytest.mark.parametrize("shape", [[int("9" * 4000)] * 3, [1] * 1000, [-1, -1]])
def test_a_tensor_of_no_possible_shape_is_refused(shape):
    """A header of numbers of thousands of digits was multiplied out."""
    header = json.dumps({"a": {"dtype": "F99", "shape": shape, "data_offsets": [0, 0]}}).encode()
    with pytest.raises(ValueError, match="no tensor has such a shape"):
        safetensors.of(struct.pack("<Q", len(header)) + header)


def test_a_text_held_once_and_told_in_every_row_is_counted_in_each(tmp_path, monkeypatch):
    """A Parquet file of a kilobyte made gigabytes: its own sizes are of what it holds, packed by a dictionary."""
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * 2000, pa.int32()), pa.array(["x" * 1000]))
    table = pa.table({"step": pa.array([1] * 2000), "prompt": texts, "completion": texts})
    path = tmp_path / "completions_00001.parquet"
    parquet.write_table(table, path, compression="zstd")
    monkeypatch.setattr(plain, "ALL", 1_000_000)
    unread = []
    assert completions_parquet.read([path], plain.Budget(1 << 30), unread) is None
    assert "which no such file holds" in unread[0].why


def test_numbers_whose_squares_are_none_end_no_audit():
    """Rewards of 1e308 were a fault of its own."""
    values = [1e308, 1e308, -1e308]
    assert figures.spread(values) == float("inf")
    assert figures.mean([1e308] * 3) == float("inf")
    assert figures.correlation(values, [1.0, 2.0, 3.0]) == 0.0
