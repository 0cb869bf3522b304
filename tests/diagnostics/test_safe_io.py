"""`safe_io` reads regular files of bounded size, refuses hostile JSON and TOML, and writes files atomically.

Pipes are read only if the caller allows them. Of a large file, the head and the tail can be read.
"""

import os
import socket
import stat
from pathlib import Path

import pytest

from diagnostics import safe_io


@pytest.mark.parametrize("kind", ["fifo", "device", "kernel file", "folder", "too large"])
def test_special_or_too_large_files_are_refused(tmp_path, kind):
    path = tmp_path / "file"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "too large":
        path.write_bytes(bytes(11))
    else:
        path.symlink_to("/dev/zero" if kind == "device" else "/proc/self/environ")
    with pytest.raises(OSError):
        safe_io.read_bytes(path, 10)


def test_link_out_of_the_folder_is_refused(tmp_path):
    """Links inside the folder are followed; `..` and links that lead out are refused."""
    (tmp_path / "secret").write_text("s")
    folder = tmp_path / "inside"
    folder.mkdir()
    (folder / "a").write_text("a")
    (folder / "ok").symlink_to("a")
    (folder / "out").symlink_to("../secret")
    assert safe_io.read_text(folder / "ok", 9, inside=folder) == "a"
    for name in ("out", "../secret"):
        with pytest.raises(safe_io.UnsafeFileError):
            safe_io.read_text(folder / name, 9, inside=folder)


def test_pipe_is_read_with_the_pipes_option():
    """With `pipes=True` a shell's `<(...)` and /dev/null are read."""
    reading, writing = os.pipe()
    os.write(writing, b"text")
    os.close(writing)
    path = safe_io.Path(f"/dev/fd/{reading}")
    assert safe_io.read_bytes(path, 9, pipes=True) == b"text"
    os.close(reading)
    assert safe_io.read_bytes(safe_io.Path("/dev/null"), 9, pipes=True) == b""


def test_kernel_file_of_another_mount_is_read_as_empty(monkeypatch):
    """Its device is unknown, and its size is 0."""
    monkeypatch.setattr(safe_io, "_kernel_devices", frozenset)
    assert safe_io.read_bytes(Path("/proc/self/status"), 100) == b""


def test_name_with_a_nul_raises_oserror():
    with pytest.raises(OSError, match="not a file name"):
        safe_io.read_bytes(safe_io.Path("a\0b"), 9)


def test_head_and_tail_of_a_large_file_are_read(tmp_path):
    """The file is sparse and has 1 GiB."""
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.write(b"begin")
        file.seek(1 << 30)
        file.write(b"end")
    assert (safe_io.read_head(path, 5), safe_io.read_tail(path, 3)) == (b"begin", b"end")


@pytest.mark.parametrize("document", ["[" * 100_000, '{"a":' * 50_000, b"\xff", "[1"])
def test_deeply_nested_or_invalid_json_is_refused(document):
    with pytest.raises(ValueError):
        safe_io.parse_json(document)


def test_toml_key_of_many_parts_is_refused():
    """A TOML key of many parts is refused, because tomllib needs time quadratic in their number."""
    with pytest.raises(ValueError, match="parts"):
        safe_io.parse_toml("a" + ".a" * 50_000 + "=1\n")


def test_toml_number_that_python_cannot_convert_is_refused():
    """`str`, `float` or both raise for these integers."""
    for number in ("0x" + "f" * 20_000, "9" * 400, "[1, -0b" + "1" * 2000 + "]"):
        with pytest.raises(ValueError, match="more than 200 digits"):
            safe_io.parse_toml(f"num_generations = {number}\n")
    assert safe_io.parse_toml(f"hash = '0x{'f' * 500}'\n")


def test_file_is_written_with_mode_0600_and_replaces_a_link(tmp_path):
    target, path = tmp_path / "target", tmp_path / "out"
    target.write_text("untouched")
    path.symlink_to(target)
    safe_io.write_atomically(path, "new")
    assert (path.read_text(), target.read_text(), path.is_symlink()) == ("new", "untouched", False)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("is_link", [False, True])
@pytest.mark.parametrize("kind", ["pipe", "socket", "folder", "null", "stdout"])
def test_only_a_regular_file_or_a_link_to_one_is_replaced(tmp_path, kind, is_link, run_command):
    """`hang --save PATH` is refused with one line that names the path, and the entry stays as it was."""
    path = tmp_path / kind
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
    elif kind == "null":
        path.symlink_to("/dev/null")
    else:  # standard output is a regular file, as after a redirection in a shell
        descriptor = os.open(tmp_path / "output", os.O_WRONLY | os.O_CREAT)
        path.symlink_to(f"/proc/self/fd/{descriptor}")
    if is_link:
        (tmp_path / "link").symlink_to(path)
        path = tmp_path / "link"
    before = path.lstat()
    snapshot = tmp_path / "snapshot.json"
    snapshot.write_text('{"schema":"grpo-doctor.hang-snapshot.v1","source":"live","processes":[{"pid":1}]}')
    code, _, errors = run_command("hang", "--from", snapshot, "--save", path)
    assert (code, len(errors.splitlines()), str(path) in errors) == (2, 1, True)
    assert os.path.samestat(path.lstat(), before)
    if kind == "stdout":
        os.close(descriptor)


def test_full_disk_leaves_the_old_file_and_no_temporary_file(tmp_path, monkeypatch):
    path = tmp_path / "out"
    path.write_text("old")

    def raise_no_space(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", raise_no_space)
    with pytest.raises(OSError, match="space"):
        safe_io.write_atomically(path, "new")
    assert [item.name for item in tmp_path.iterdir()] == ["out"]
    assert path.read_text() == "old"
