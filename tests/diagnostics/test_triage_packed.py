"""Packed, cut and binary logs: a failure inside is found; what cannot be read is never reported as clean."""

import bz2
import gzip
import json
import lzma
import os

import pytest

FAILURE = b"".join(
    (
        b"step 1\nTraceback (most recent call last):\n",
        b'  File "/opt/env/lib/python3.12/site-packages/own/a.py", line 7, in f\n    f()\n',
        b"KeyError: 'x'\n",
    )
)
# The header of a tar: numbers that end with NUL, and its mark at byte 257.
TAR = (
    (b"a.log".ljust(100, b"\0") + b"0000644\0" * 19).ljust(257, b"\0") + b"ustar".ljust(255, b"\0") + FAILURE
)


@pytest.fixture
def run(run_triage):
    """Run the command; return its exit code and report."""

    def run(path):
        done = run_triage(path, "--format", "json")
        return done.code, done.document

    return run


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\x7fELF" + bytes(range(32)) * 9, "a program"),
        (bytes(5000), "only NUL bytes"),
        (bytes(range(256)) * 40, "binary"),
        (b"\xff" * 300, "binary"),
        (b"\x28\xb5\x2f\xfd" + FAILURE, "zstd -dc"),
        (b"\x04\x22\x4d\x18" + FAILURE, "LZ4"),
        (TAR, "tar archive"),
        (gzip.compress(TAR, mtime=0), "binary"),
        (b"PK\x03\x04" + FAILURE, "a zip, which is not unpacked here"),
        (lzma.compress(FAILURE)[:-20], "cut off"),
        (b"BZh9 is no archive", "cannot be read"),
    ],
)
def test_what_is_no_text_is_not_clean(run, tmp_path, data, said):
    """It was not read: the reason is reported, and the exit code is 3."""
    (tmp_path / "a.log").write_bytes(data)
    code, document = run(tmp_path / "a.log")
    problems = [check["reason"] for check in document["checks"] if check["outcome"] == "crashed"]
    assert (code, len(problems)) == (3, 1)
    assert said in problems[0]
    assert "no failure" not in document["notes"][0] or "cut off" in said


@pytest.mark.parametrize(
    "data",
    [
        gzip.compress(FAILURE[:30]) + gzip.compress(FAILURE[30:]) + bytes(500),
        bz2.compress(FAILURE),
        lzma.compress(FAILURE),
        bytes(3 << 20) + FAILURE,
    ],
    ids=["gzip in parts", "bzip2", "xz", "a hole before it"],
)
def test_a_failure_is_found_in_what_is_packed(run, tmp_path, data):
    """Or after a hole, which a log has that was cut while it was written to."""
    (tmp_path / "a.log").write_bytes(data)
    code, document = run(tmp_path / "a.log")
    assert (code, document["subject"]["verdict"]) == (3, "unknown")
    assert document["subject"]["anchors"][0]["text"].startswith("KeyError: 'x'")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (lambda: gzip.compress(b"a\n" * (4 << 20)), "times its size"),
        (lambda: bz2.compress(b"a\n" * (4 << 20)), "times its size"),
        (lambda: gzip.compress(b"") * 20_000, "parts with next to nothing"),
    ],
    ids=["gzip", "bzip2", "empty parts"],
)
def test_a_bomb_is_refused(run, tmp_path, monkeypatch, data, said):
    """Compressed logs that expand too far, in bytes or parts, are incomplete, never clean."""
    monkeypatch.setattr("diagnostics.triage.log_reader.BOMB_BYTES", 1 << 20)
    (tmp_path / "a.log").write_bytes(data())
    code, document = run(tmp_path / "a.log")
    assert (code, said in json.dumps(document["checks"])) == (3, True)


def test_links_out_of_a_folder_of_logs_are_not_followed(run, tmp_path):
    """They are named as unread, and what was read does not count as all."""
    (tmp_path / "secret").write_bytes(FAILURE)
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "a.log").write_text("Training completed.\n")
    assert run(folder)[0] == 0
    (folder / "b.log").symlink_to(tmp_path / "secret")
    code, document = run(folder)
    assert (code, document["subject"]["logs"]) == (3, ["a.log"])
    assert "b.log (a link out of the folder" in document["notes"][-1]


def test_a_packed_log_in_a_folder_is_not_passed_over(run, tmp_path):
    """One that can't be unpacked is a log that was not read."""
    (tmp_path / "a.log").write_text("fine\n")
    (tmp_path / "b.log.zst").write_bytes(b"\x28\xb5\x2f\xfd" + bytes(40))
    code, document = run(tmp_path)
    assert (code, "zstd" in json.dumps(document["checks"])) == (3, True)
    (tmp_path / "b.log.zst").rename(tmp_path / "b.log.2")
    assert run(tmp_path)[0] == 3


def test_a_pipe_is_read(run_triage):
    """A shell's `<(…)`."""
    reading, writing = os.pipe()
    os.write(writing, FAILURE)
    os.close(writing)
    done = run_triage(f"/dev/fd/{reading}")
    os.close(reading)
    assert (done.code, "KeyError" in done.out) == (3, True)
