"""Read untrusted files safely, parse JSON, TOML and Python with limits, and write files atomically.

The read functions return a whole file up to a size, or the head or tail of a file of any size. They refuse devices,
kernel file systems and, unless `pipes` allows them, pipes, because these may block or have no end. A refused file
raises an OSError, so callers can treat it like a missing file. Only `read_kernel_file` reads /proc and /sys; it and
`list_folder` return an empty value instead of raising. The parse functions raise a ValueError. Standard library only,
because remote hosts run this code.
"""

import ast
import contextlib
import errno
import functools
import json
import os
import re
import stat
import tempfile
from io import BufferedReader
from pathlib import Path
from typing import Any

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
# Size limits in bytes by kind of file; the largest known file of a kind has at most a tenth of its limit.
CONFIG_LIMIT = 64 * KIB
METADATA_LIMIT = 4 * MIB
SOURCE_LIMIT = 8 * MIB
DOCUMENT_LIMIT = 64 * MIB
ARTIFACT_LIMIT = GIB
# tomllib needs time quadratic in the number of parts of a dotted key.
_LONG_TOML_KEY = re.compile(r"(?:\.[ \t]*[A-Za-z0-9_\"'-]{1,60}[ \t]*){64}")
# float() refuses a number of 400 digits, and str() a hexadecimal one of 4000.
_LONG_TOML_NUMBER = re.compile(r"[=\[,]\s{0,64}[+-]?\d[\da-fA-F_xob]{200}")
# CPython's parser needs memory quadratic in the number of parts of an imported name.
_LONG_PYTHON_NAME = re.compile(r"(?:\.[ \t\f\n\\]*[A-Za-z0-9_\x80-\U0010ffff]+[ \t\f\n\\]*){64}")


class UnsafeFileError(OSError):
    """Raised for a refused file, such as a device, a too large file or a forbidden link; `strerror` says why."""

    def __init__(self, why: str, path: object = None) -> None:
        super().__init__(errno.EINVAL, why, os.fspath(path) if isinstance(path, (str, os.PathLike)) else None)

    def __str__(self) -> str:
        return str(self.strerror)


class TooLargeError(ValueError):
    """Raised for a document whose values would take too much time or memory to parse, or cannot be printed."""


def open_regular(path: Path, *, inside: Path | None = None, pipes: bool = False) -> BufferedReader:
    """Open a regular file without blocking.

    Args:
        path: The file. Links are followed.
        inside: Folder that must contain the file after links are resolved; None for anywhere.
        pipes: Whether to accept pipes and /dev/null, for a path from the user (a shell's `<(...)` is a pipe).

    Raises:
        OSError: The file is missing, unreadable or refused (UnsafeFileError).
    """
    try:
        real = os.path.realpath(path) if inside is not None else os.fspath(path)
        if inside is not None and not Path(real).is_relative_to(os.path.realpath(inside)):
            raise UnsafeFileError("a link that leads out of the folder", path)
        _check_kind(os.stat(real), path, pipes=pipes)  # noqa: PTH116 - before opening: opening a device can have effects
        no_links = os.O_NOFOLLOW if inside is not None else 0
        descriptor = os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | no_links)
    except ValueError as error:  # a NUL or a lone surrogate in the name
        raise UnsafeFileError(f"not a file name: {error}") from None
    try:
        status = os.fstat(descriptor)
        _check_kind(status, path, pipes=pipes)  # the file may have been replaced meanwhile
        if stat.S_ISREG(status.st_mode) and not status.st_size:
            # A read of a kernel's file, whose size is 0 too, may block: /proc may be mounted in another place.
            with open(os.devnull, "rb") as null:  # noqa: PTH123 - as a descriptor
                os.dup2(null.fileno(), descriptor, inheritable=False)
        os.set_blocking(descriptor, True)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _check_kind(status: os.stat_result, path: Path, *, pipes: bool) -> None:
    null = stat.S_ISCHR(status.st_mode) and status.st_rdev == os.makedev(1, 3)
    if pipes and (stat.S_ISFIFO(status.st_mode) or null):
        return
    if not stat.S_ISREG(status.st_mode):
        raise UnsafeFileError("not a regular file", path)
    if status.st_dev in _kernel_devices():
        raise UnsafeFileError("not a file but a kernel interface", path)


@functools.cache
def _kernel_devices() -> frozenset[int]:
    """Device numbers of /proc and /sys, whose files can be endless or block."""
    devices = set()
    for folder in ("/proc", "/sys"):
        with contextlib.suppress(OSError):
            devices.add(os.stat(folder).st_dev)  # noqa: PTH116 - as text
    with contextlib.suppress(OSError):
        devices.discard(os.stat("/").st_dev)  # noqa: PTH116 - where nothing is mounted there
    return frozenset(devices)


def read_bytes(path: Path, limit: int, *, inside: Path | None = None, pipes: bool = False) -> bytes:
    """Read a whole file of at most `limit` bytes; a larger file is refused."""
    with open_regular(path, inside=inside, pipes=pipes) as file:
        too_large = os.fstat(file.fileno()).st_size > limit
        data = b"" if too_large else file.read(limit + 1)
    if too_large or len(data) > limit:
        unit, name = (MIB, "MiB") if limit >= MIB else (KIB, "KiB") if limit >= KIB else (1, "bytes")
        raise UnsafeFileError(f"larger than {limit // unit} {name}", path)
    return data


def read_head(path: Path, size: int, *, inside: Path | None = None) -> bytes:
    """Read the first bytes of a file of any size."""
    with open_regular(path, inside=inside) as file:
        return file.read(size)


def read_tail(path: Path, size: int) -> bytes:
    """Read the last bytes of a file of any size."""
    with open_regular(path) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - size))
        return file.read(size)


def read_text(path: Path, limit: int, *, inside: Path | None = None, pipes: bool = False) -> str:
    """Read a whole file like `read_bytes`, as UTF-8 with invalid bytes replaced and line ends normalised."""
    data = read_bytes(path, limit, inside=inside, pipes=pipes).decode("utf-8", "replace")
    return data.replace("\r\n", "\n").replace("\r", "\n")


def read_installed(path: Path, limit: int) -> str:
    """Read a text file of an environment; a link to a file with another name is refused.

    Installers may link files, but do not rename them. For a `.pth` file the same suffix is enough.
    """
    real = Path(os.path.realpath(path))
    same = real.suffix == path.suffix if path.suffix == ".pth" else real.name == path.name
    if not same:
        raise UnsafeFileError("a link to a file of another name", path)
    return read_text(real, limit)


def list_folder(folder: str | Path) -> list[str]:
    """Return the names in a folder, in no order; none if it cannot be listed."""
    try:
        return os.listdir(folder)  # noqa: PTH208 - names alone, of large folders
    except (OSError, ValueError):
        return []


def read_kernel_file(path: str | Path) -> str:
    """Read the beginning of a file of /proc or /sys, about METADATA_LIMIT bytes; empty if it cannot be read."""
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - of thousands, `Path` took half the time
            data = b""
            while len(data) < METADATA_LIMIT and (part := file.read(1 << 16)):
                data += part
            return data.decode("utf-8", errors="replace")
    except OSError:
        return ""


def parse_json(document: bytes | str) -> Any:
    """Parse JSON; raise ValueError if it is invalid or nested too deep."""
    try:
        return json.loads(document)
    except RecursionError:
        raise ValueError("nested too deep") from None


def parse_toml(document: str) -> dict[str, Any]:
    """Parse TOML; raise ValueError if it is invalid, nested too deep or too large.

    A key of more than 64 parts and a number of more than 200 digits are too large.
    """
    import tomllib  # not in Python 3.10, which remote hosts may have and which reads no TOML

    if _LONG_TOML_KEY.search(document):
        raise TooLargeError("a key with more than 64 parts")
    if _LONG_TOML_NUMBER.search(document):
        raise TooLargeError("a number with more than 200 digits")
    try:
        return tomllib.loads(document)
    except RecursionError:
        raise ValueError("nested too deep") from None


def parse_python(source: str) -> ast.Module:
    """Parse Python; raise ValueError if it is invalid, nested too deep or has a name of more than 64 parts."""
    if _LONG_PYTHON_NAME.search(source):
        raise TooLargeError("a name with more than 64 parts")
    try:
        return ast.parse(source)
    except SyntaxError as error:
        raise ValueError(str(error)) from None
    except (RecursionError, MemoryError):
        raise ValueError("nested too deep") from None


def write_atomically(path: Path, data: bytes | str, *, mode: int = 0o600) -> None:
    """Write a file completely or not at all, by default readable only by its owner; a link to a file is replaced.

    Raises:
        OSError: The file cannot be written, or the path or what it links to is no regular file (UnsafeFileError).
    """
    _check_output(path)
    content = data.encode() if isinstance(data, str) else data
    descriptor, temporary = tempfile.mkstemp(prefix="." + path.name[:40] + ".", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def try_output(path: Path) -> None:
    """Raise an OSError if `write_atomically` cannot write a file at this path now; the path stays as it is."""
    _check_output(path)
    with tempfile.NamedTemporaryFile(prefix="." + path.name[:40] + ".", dir=path.parent) as file:
        file.write(b"\n")


def _check_output(path: Path) -> None:
    """Raise an OSError if a file at this path would replace a device, pipe, socket or folder, or a link to one."""
    with contextlib.suppress(FileNotFoundError):
        _check_kind(path.stat(), path, pipes=False)
    # /dev/stdout is a link to /proc/self/fd/1, which is a link to a regular file if a shell redirects the output.
    while path.is_symlink():
        if path.lstat().st_dev in _kernel_devices():
            raise UnsafeFileError("a link to a kernel interface", path)
        path = path.parent / path.readlink()
