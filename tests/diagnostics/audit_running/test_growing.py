"""A file that grows is read once, in its order, whatever is done to it meanwhile."""

from __future__ import annotations

import json
import os

import pytest

from diagnostics.audit.recorded.readers import plain
from diagnostics.audit.recorded.rows import Row
from diagnostics.audit.running import growing
from diagnostics.audit.running.growing import Lines, Reader
from tests.diagnostics.audit_running.lines import healthy, written


@pytest.fixture
def opened():
    """Makes readers, which are closed afterwards."""
    made = []

    def reader(path):
        made.append(Reader(path))
        return made[-1]

    yield reader
    for each in made:
        each.close()


def steps(reader):
    found, anew = reader.more()
    return [each.step for each in found], anew


def test_half_a_line_waits_for_the_other_half(opened, tmp_path):
    """And nothing is read twice."""
    path = tmp_path / "metrics.jsonl"
    whole = json.dumps(healthy(1)) + "\n"
    path.write_text(whole + whole[:20])
    reader = opened(path)
    assert steps(reader) == ([1], False)
    assert steps(reader) == ([], False)
    with path.open("a") as file:
        file.write(whole[20:])
    assert steps(reader) == ([1], False)
    assert (steps(reader), reader.unread) == (([], False), 0)


def test_a_file_that_comes_later_is_read_then(opened, tmp_path):
    """It is empty before."""
    reader = opened(tmp_path / "metrics.jsonl")
    assert steps(reader) == ([], False)
    written(tmp_path / "metrics.jsonl", [healthy(1)])
    assert steps(reader) == ([1], False)


@pytest.mark.parametrize("longer", [False, True])
def test_a_file_that_is_written_anew_begins_anew(opened, tmp_path, longer):
    """Cut short, or with more in it than was read of the other."""
    path = tmp_path / "metrics.jsonl"
    written(path, map(healthy, (1, 2, 3)))
    reader = opened(path)
    assert steps(reader) == ([1, 2, 3], False)
    written(path, map(healthy, range(11, 31 if longer else 12)), "w")
    assert steps(reader) == (list(range(11, 31 if longer else 12)), True)
    assert reader.anew == 1


def test_what_a_rotated_file_still_had_is_read_first(opened, tmp_path):
    """Then the new one, when it is there."""
    path = tmp_path / "metrics.jsonl"
    written(path, [healthy(1)])
    reader = opened(path)
    assert steps(reader) == ([1], False)
    written(path, [healthy(2)])
    path.rename(tmp_path / "metrics.jsonl.1")
    assert steps(reader) == ([2], False)
    assert steps(reader) == ([], False)
    written(path, [healthy(3)])
    assert steps(reader) == ([3], True)


def test_lines_that_are_no_json_are_counted(opened, tmp_path):
    """And those around them are read."""
    path = tmp_path / "metrics.jsonl"
    written(path, [healthy(1)])
    with path.open("a") as file:
        file.write("{'half\n[1]\n\n")
    written(path, [healthy(2)])
    reader = opened(path)
    assert steps(reader) == ([1, 2], False)
    assert reader.unread == 2


def test_a_line_without_an_end_is_dropped(tmp_path, monkeypatch):
    """Memory is bounded; the line behind it is read."""
    monkeypatch.setattr(plain, "LINE", 100)
    monkeypatch.setattr(growing, "ROUND", 64)
    path = tmp_path / "a.log"
    path.write_text("x" * 1000 + "\nloss: 1\n")
    file = growing.Growing(path)
    lines = Lines(file)
    found = [line for _ in range(40) for line in lines.more()[0]]
    file.close()
    assert found == [(2, b"loss: 1")]


def test_a_log_is_read_by_its_lines(opened, tmp_path):
    """As triage reads them."""
    path = tmp_path / "run.log"
    path.write_text(
        "loading\n{'loss': 0.5, 'grad_norm': 1.0}\nstep:4 - actor/grad_norm:0.5 - actor/entropy:2.0\n"
    )
    found, _ = opened(path).more()
    assert [(each.values["grad_norm"], each.place) for each in found] == [
        (1.0, "run.log:2"),
        (0.5, "run.log:3"),
    ]


def test_records_of_an_event_file_are_read_when_they_are_whole(opened, tmp_path):
    """As TensorBoard writes them, a byte at a time at the worst."""
    writer = pytest.importorskip("torch.utils.tensorboard").SummaryWriter(str(tmp_path))
    for step in range(3):
        writer.add_scalar("train/reward", 0.5 * step, step)
    writer.close()
    (path,) = tmp_path.glob("events.*")
    data, part = path.read_bytes(), tmp_path / "events.out.tfevents.part"
    reader = opened(part)
    found = []
    for size in range(0, len(data) + 1, 7):
        part.write_bytes(data[:size])
        found += reader.more()[0]
    part.write_bytes(data)
    found += reader.more()[0]
    assert [(each.step, each.values["reward"]) for each in found] == [(0, 0.0), (1, 0.5), (2, 1.0)]
    assert reader.unread == 0


def test_samples_of_ours_are_rows(opened, tmp_path):
    """With their log-probs."""
    path = tmp_path / "completions.jsonl"
    entry = {
        "step": 3, "request": "3.0.1", "prompt": "a", "completion": "b", "reward": 1.0, "advantage": 0.5,
        "finish_reason": "stop", "prompt_ids": [1], "ids": [2], "logprobs": [-0.1], "versions": [0],
    }  # fmt: skip
    written(path, [entry, {**entry, "ids": 5}])
    reader = opened(path)
    (row,), _ = reader.more()
    assert isinstance(row, Row)
    assert (row.step, row.tokens.engine, reader.unread) == (3, (None, -0.1), 1)


def test_a_device_is_refused(opened, tmp_path):
    """What can't be read to an end is not waited for."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        opened(tmp_path / "pipe").more()
