"""Packed, cut and binary logs: a failure inside is found; what cannot be read is never reported as clean."""

import bz2
import gzip
import io
import json
import lzma
import os
import struct
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from diagnostics import __main__ as program

ROOT = Path(__file__).parents[2]
FAILURE = b"".join(
    (
        b"step 1\nTraceback (most recent call last):\n",
        b'  File "/opt/env/lib/python3.12/site-packages/own/a.py", line 7, in f\n    f()\n',
        b"KeyError: 'x'\n",
    )
)


@pytest.fixture
def run(capsys):
    """Run the command in this process; return its exit code, and its report or standard error."""

    def triage_path(path):
        code = program.main(["triage", str(path), "--format", "json"])
        captured = capsys.readouterr()
        return code, json.loads(captured.out) if captured.out else captured.err

    return triage_path


def a_tar(data):
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        info = tarfile.TarInfo("a.log")
        info.size = len(data)
        archive.addfile(info, io.BytesIO(data))
    return raw.getvalue()


def a_zip(*files, method=zipfile.ZIP_DEFLATED):
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w", method) as archive:
        for name, data in files:
            # A fixed date: the bytes are in test names, which must be equal in each worker.
            archive.writestr(zipfile.ZipInfo(name), data, method)
    return raw.getvalue()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\x7fELF" + bytes(range(32)) * 9, "a program"),
        (bytes(5000), "only NUL bytes"),
        (bytes(range(256)) * 40, "binary"),
        (b"\xff" * 300, "binary"),
        (b"\x28\xb5\x2f\xfd" + FAILURE, "zstd -dc"),
        (b"\x04\x22\x4d\x18" + FAILURE, "LZ4"),
        (a_tar(FAILURE), "tar archive"),
        (gzip.compress(a_tar(FAILURE), mtime=0), "binary"),
        (gzip.compress(a_zip(("a", FAILURE)), mtime=0), "binary"),
        (a_zip(("a.log", FAILURE), method=zipfile.ZIP_LZMA), "method 14"),
        (a_zip(("a.log", a_zip(("b", FAILURE)))), "zip in a"),
        (lzma.compress(FAILURE)[:-20], "cut off"),
        (b"BZh9 is no archive", "cannot be read"),
        (a_zip(("a", FAILURE)).replace(b"a", b"", 1), "cannot be read"),
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
        a_zip(("0_setup.txt", b"fine\n"), ("run/1_train.txt", FAILURE)),
        a_zip(("a.log.gz", gzip.compress(FAILURE))),
        bytes(3 << 20) + FAILURE,
    ],
    ids=["gzip in parts", "bzip2", "xz", "zip", "gzip in a zip", "a hole before it"],
)
def test_a_failure_is_found_in_what_is_packed(run, tmp_path, data):
    """Or after a hole, which a log has that was cut while it was written to."""
    (tmp_path / "a.log").write_bytes(data)
    code, document = run(tmp_path / "a.log")
    assert (code, document["subject"]["verdict"]) == (3, "unknown")
    assert document["subject"]["anchors"][0]["text"].startswith("KeyError: 'x'")


def _shared(size, count):
    """Make a zip whose entries share the same bytes."""
    raw = bytearray(a_zip(("0", b"a" * size)))
    end = raw.rindex(b"PK\x05\x06")
    start = struct.unpack_from("<I", raw, end + 16)[0]
    entry = bytes(raw[start:end])
    entries = b"".join(
        entry[:28] + struct.pack("<H", 6) + entry[30:46] + b"%06d" % number for number in range(count)
    )
    tail = bytearray(raw[end:])
    struct.pack_into("<HHI", tail, 8, count & 0xFFFF, count & 0xFFFF, len(entries))
    return bytes(raw[:start]) + entries + bytes(tail)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (lambda: gzip.compress(b"a\n" * (4 << 20)), "times its size"),
        (lambda: bz2.compress(b"a\n" * (4 << 20)), "times its size"),
        (lambda: gzip.compress(b"") * 20_000, "parts with next to nothing"),
        (lambda: a_zip(("a", b"a" * (3 << 20))), "times its size"),
        (lambda: _shared(1 << 20, 5000), "times its size"),
        (lambda: _shared(10, 20_000), "files"),
    ],
    ids=["gzip", "bzip2", "empty parts", "zip", "one for many", "many"],
)
def test_a_bomb_is_refused(run, tmp_path, monkeypatch, data, said):
    """Archives that expand too far, in bytes, parts or files, are refused with exit 3 or 2, never clean."""
    monkeypatch.setattr("diagnostics.triage.streams.BOMB_BYTES", 1 << 20)
    (tmp_path / "a.log").write_bytes(data())
    code, answer = run(tmp_path / "a.log")
    text = answer if isinstance(answer, str) else json.dumps(answer["checks"])
    assert code in {2, 3}
    assert said in text


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


def test_a_pipe_is_still_read(tmp_path):
    """A shell's `<(…)`."""
    reading, writing = os.pipe()
    os.write(writing, FAILURE)
    os.close(writing)
    done = subprocess.run(
        [sys.executable, "-m", "diagnostics", "triage", f"/dev/fd/{reading}"],
        pass_fds=[reading], capture_output=True, cwd=ROOT, check=False,
    )  # fmt: skip
    os.close(reading)
    assert (done.returncode, b"KeyError" in done.stdout) == (3, True)


@pytest.mark.parametrize("before", [b"", b"INFO start\n"])
def test_what_was_never_written_of_a_log_takes_no_time(tmp_path, before):
    """A hole of 100 GB, before a failure or alone: read to its end it would take minutes."""
    failure = b'Traceback (most recent call last):\n  File "/opt/run.py", line 3, in <module>\n    serve()\n'
    path = tmp_path / "a.log"
    with path.open("wb") as file:
        file.write(before)
        file.truncate(100 << 30)
    assert program.main(["triage", str(path)]) == 3
    with path.open("r+b") as file:
        file.seek(100 << 30)
        file.write(failure + b"OSError: [Errno 98] Address already in use\n")
    assert program.main(["triage", str(path)]) == 1
