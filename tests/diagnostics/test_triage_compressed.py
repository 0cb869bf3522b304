"""`triage` finds failures in compressed and sparse logs and in pipes, and does not call unread input clean.

Binary files, other compression formats, bombs and links out of a folder are reported as unread, with exit code 3.
"""

import gzip
import json
import os

import pytest

FAILURE = (
    b"step 1\nTraceback (most recent call last):\n"
    b'  File "/opt/env/lib/python3.12/site-packages/own/a.py", line 7, in f\n    f()\n'
    b"KeyError: 'x'\n"
)
# A tar header: numbers that end with NUL, and the magic at byte 257.
TAR_HEADER = (b"a.log".ljust(100, b"\0") + b"0000644\0" * 19).ljust(257, b"\0") + b"ustar".ljust(255, b"\0")
TAR = TAR_HEADER + FAILURE


@pytest.fixture
def run(run_triage):
    """Return a function that runs `triage` on a path and returns (exit code, JSON report)."""

    def run(path):
        done = run_triage(path, "--format", "json")
        return done.code, done.document

    return run


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x7fELF" + bytes(range(32)) * 9, "a program"),
        (bytes(5000), "only NUL bytes"),
        (bytes(range(256)) * 40, "binary"),
        (b"\xff" * 300, "binary"),
        (b"\x28\xb5\x2f\xfd" + FAILURE, "zstd -dc"),
        (b"\x04\x22\x4d\x18" + FAILURE, "lz4 -dc"),
        (b"\xfd7zXZ\0" + FAILURE, "xz -dc"),
        (TAR, "tar archive"),
        (gzip.compress(TAR, mtime=0), "binary"),
        (b"PK\x03\x04" + FAILURE, "a zip, which is not unpacked here"),
        (gzip.compress(FAILURE, mtime=0)[:-20], "cut off"),
        (b"\x1f\x8b is no archive", "cannot be read"),
    ],
    ids=[
        "program", "zeros", "all bytes", "bytes 255", "zstd", "lz4", "xz", "tar", "tar.gz", "zip", "cut gzip", "no gzip"
    ],
)  # fmt: skip
def test_unreadable_log_is_reported_with_the_reason(run, tmp_path, data, message):
    """The exit code is 3, and one check is crashed.

    Only for a cut-off gzip may a note say that there is no failure, in the part that was read.
    """
    (tmp_path / "a.log").write_bytes(data)
    code, document = run(tmp_path / "a.log")
    problems = [check["reason"] for check in document["checks"] if check["outcome"] == "crashed"]
    assert (code, len(problems)) == (3, 1)
    assert message in problems[0]
    assert "no failure" not in document["notes"][0] or "cut off" in message


@pytest.mark.parametrize(
    "data",
    [gzip.compress(FAILURE[:30]) + gzip.compress(FAILURE[30:]) + bytes(500), bytes(3 << 20) + FAILURE],
    ids=["gzip in parts", "a hole before it"],
)
def test_failure_is_found_in_compressed_and_sparse_logs(run, tmp_path, monkeypatch, data):
    """A failure is found in compressed logs, and after a hole of NUL bytes, which truncation leaves.

    A hole of a terabyte is not read. The exit code is 3, because the failure is no known issue.
    """
    monkeypatch.setattr("diagnostics.triage.scan._FILE_MB_S", 0.0)
    with (tmp_path / "a.log").open("wb") as log:
        if data[:1] == b"\0":
            log.seek(1 << 40)
        log.write(data)
    code, document = run(tmp_path / "a.log")
    assert (code, document["subject"]["verdict"]) == (3, "unknown")
    assert document["subject"]["anchors"][0]["text"].startswith("KeyError: 'x'")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (lambda: gzip.compress(b"a\n" * (4 << 20)), "times its size"),
        (lambda: gzip.compress(b"") * 20_000, "parts with next to nothing"),
    ],
    ids=["large", "empty parts"],
)
def test_decompression_bomb_is_refused(run, tmp_path, monkeypatch, data, message):
    """A log that expands too far, or consists of too many empty parts, is refused."""
    monkeypatch.setattr("diagnostics.triage.log_reader.BOMB_BYTES", 1 << 20)
    (tmp_path / "a.log").write_bytes(data())
    code, document = run(tmp_path / "a.log")
    assert (code, message in json.dumps(document["checks"])) == (3, True)


def test_links_out_of_a_folder_of_logs_are_not_followed(run, tmp_path):
    """A link out of the folder is reported as unread, and the exit code is 3."""
    (tmp_path / "secret").write_bytes(FAILURE)
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "a.log").write_text("Training completed.\n")
    assert run(folder)[0] == 0
    (folder / "b.log").symlink_to(tmp_path / "secret")
    code, document = run(folder)
    assert (code, document["subject"]["logs"]) == (3, ["a.log"])
    assert "b.log (a link out of the folder" in document["notes"][-1]


def test_unreadable_compressed_log_in_a_folder_is_reported(run, tmp_path):
    """The exit code is 3 for a .zst file, also under another name."""
    (tmp_path / "a.log").write_text("fine\n")
    (tmp_path / "b.log.zst").write_bytes(b"\x28\xb5\x2f\xfd" + bytes(40))
    code, document = run(tmp_path)
    assert (code, "zstd" in json.dumps(document["checks"])) == (3, True)
    (tmp_path / "b.log.zst").rename(tmp_path / "b.log.2")
    assert run(tmp_path)[0] == 3


def test_named_pipe_argument_is_read(run_triage):
    """A named pipe, such as a shell's `<(...)`, is read as a log."""
    reading, writing = os.pipe()
    os.write(writing, FAILURE)
    os.close(writing)
    done = run_triage(f"/dev/fd/{reading}")
    os.close(reading)
    assert (done.code, "KeyError" in done.out) == (3, True)
