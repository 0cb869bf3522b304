"""Hostile run artifacts that would exhaust memory or time (tensor shapes, Parquet dictionaries) are refused."""

from __future__ import annotations

import json
import struct

import pytest

from diagnostics.audit.recorded import run_data, safetensors, sample_files, stats


@pytest.mark.parametrize("shape", [[int("9" * 4000)] * 3, [1] * 1000, [-1, -1]])
def test_impossible_tensor_shape_is_refused(shape):
    """A shape with huge, too many or negative dimensions is refused before the dimensions are multiplied."""
    header = json.dumps({"a": {"dtype": "F99", "shape": shape, "data_offsets": [0, 0]}}).encode()
    with pytest.raises(ValueError, match="impossible shape"):
        safetensors.parse(struct.pack("<Q", len(header)) + header)


def test_dictionary_encoded_text_counts_once_per_row(tmp_path, monkeypatch):
    """Dictionary-encoded text counts once per row, so a small Parquet file cannot expand to gigabytes."""
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
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
    assert stats.correlation(values, [1.0, 2.0, 3.0]) == 0.0
