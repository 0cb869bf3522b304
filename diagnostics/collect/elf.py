"""Read which libraries the compiled modules of vLLM, flash-attn and xformers need, from their ELF headers."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from diagnostics import safe_io

# Modules that usually fail to load in a broken environment.
_PATTERNS = ("vllm/*.so", "flash_attn_2_cuda*.so", "flash_attn_3/*.so", "xformers/_C*.so")
# Libraries that come with packages or the driver; those of the system are not checked.
_CHECKED_LIBRARIES = (
    "libtorch", "libc10", "libcu", "libnccl", "libnv", "libhip", "libamdhip", "libnuma", "libtbb", "libstdc++",
)  # fmt: skip
_SYSTEM = (
    "/usr/lib/{arch}-linux-gnu", "/lib/{arch}-linux-gnu", "/usr/lib64", "/lib64", "/usr/lib", "/lib", "/usr/local/lib",
    "/usr/local/cuda/lib64", "/usr/local/nvidia/lib64", "/usr/lib/wsl/lib",
)  # fmt: skip
_SYMBOL = re.compile(r"(GLIBC|GLIBCXX|CXXABI)_(\d{1,9}(?:\.\d{1,9})*)", re.ASCII)
_DYNAMIC, _VERSIONS_NEEDED = 6, 0x6FFFFFFE
_NEEDED = 1
# Real files have some forty sections, and ask for some hundred names of at most sixty letters.
_MAX_SECTIONS, _MAX_NAMES, _MAX_NAME_BYTES = 4096, 10_000, 256
_MAX_CHECKED = 300
_MAX_EXTENSIONS = 500


@dataclass(frozen=True)
class Extension:
    """A compiled module.

    Attributes:
        needed: Libraries of PyTorch, CUDA, ROCm and a few others (`_CHECKED_LIBRARIES`) that it needs.
        missing: Those of them that are in no library folder of the system or of a package.
        versions: Newest needed version of each kind of symbol, as "GLIBCXX_3.4.32".
        problem: Why the module could not be read.
    """

    path: str
    needed: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()
    problem: str = ""


def collect(folders: Iterable[Path], prefix: Path, environ: Mapping[str, str]) -> tuple[Extension, ...]:
    """Read the headers of vLLM's, flash-attn's and xformers' compiled modules in package folders, at most 500."""
    folders = list(dict.fromkeys(folders))
    paths = sorted({path for folder in folders for pattern in _PATTERNS for path in folder.glob(pattern)})
    if not paths:
        return ()
    available = _library_names(folders, prefix, environ)
    read: dict[tuple[int, int] | str, Extension] = {}  # each file once, because it may have many links
    results = []
    for path in paths[:_MAX_EXTENSIONS]:
        file = _file_identity(path)
        if file not in read:
            read[file] = _read_extension(path, available)
        results.append(replace(read[file], path=str(path)))
    return tuple(results)


def _file_identity(path: Path) -> tuple[int, int] | str:
    try:
        status = path.stat()
    except OSError:
        return str(path)
    return status.st_dev, status.st_ino


def _read_extension(path: Path, available: set[str]) -> Extension:
    try:
        names, versions = read_elf(path)
        needed = _checked_libraries(names)
    except (OSError, ValueError, struct.error, IndexError, OverflowError) as error:
        return Extension(str(path), problem=f"no readable ELF file: {error}")
    missing = tuple(name for name in needed if name not in available)
    return Extension(str(path), needed, missing, tuple(newest_versions(versions)))


def _checked_libraries(names: Iterable[str]) -> tuple[str, ...]:
    results = tuple(dict.fromkeys(name for name in names if name.startswith(_CHECKED_LIBRARIES)))
    if len(results) > _MAX_CHECKED:
        raise ValueError("more libraries than a real file asks for")
    return results


def newest_versions(versions: Iterable[str]) -> list[str]:
    """Return the newest version of each kind ("GLIBC", "GLIBCXX", "CXXABI")."""
    best: dict[str, tuple[int, ...]] = {}
    for kind, number in (match.groups() for match in map(_SYMBOL.fullmatch, versions) if match):
        best[kind] = max(best.get(kind, ()), tuple(map(int, number.split("."))))
    return [f"{kind}_{'.'.join(map(str, number))}" for kind, number in sorted(best.items())]


def system_folders() -> list[Path]:
    """Return the folders in which the system's loader finds libraries."""
    return [Path(folder.format(arch=os.uname().machine)) for folder in _SYSTEM]


def _library_names(folders: Sequence[Path], prefix: Path, environ: Mapping[str, str]) -> set[str]:
    """Return the names of all libraries that compiled modules in these folders could find."""
    places = system_folders()
    places += [Path(entry) for entry in environ.get("LD_LIBRARY_PATH", "").split(":") if entry]
    places += [prefix / "lib", *Path("/usr/local").glob("cuda-*/lib64")]
    for folder in folders:
        # PyTorch loads these into the process before any of its extensions.
        places += [folder / "torch" / "lib", *folder.glob("nvidia/*/lib"), *folder.glob("*.libs")]
        places += [folder / "cusparselt" / "lib", folder / "vllm", *folder.glob("vllm/*.libs")]
    names: set[str] = set()
    for place in dict.fromkeys(map(os.path.realpath, places)):
        try:
            names |= {entry.name for entry in os.scandir(place)}
        except OSError:
            continue
    return names


def read_elf(path: Path) -> tuple[list[str], list[str]]:
    """Return the libraries and symbol versions that a 64-bit little-endian ELF file needs.

    Raises:
        OSError: The file is not regular, or is unreadable.
        ValueError: The file is not such an ELF file, or has implausible tables.
        struct.error: The file is truncated.
        IndexError: A section names a string table that does not exist.
    """
    with safe_io.open_regular(path) as file:
        elf = _ElfFile(file.fileno())
        head = elf.read_at(0, 64)
        if head[:6] != b"\x7fELF\x02\x01":
            raise ValueError("not a 64-bit little-endian ELF file")
        (offset,) = struct.unpack_from("<Q", head, 0x28)
        size, count = struct.unpack_from("<HH", head, 0x3A)
        if count > _MAX_SECTIONS:
            raise ValueError("more sections than a loadable file has")
        table = elf.read_at(offset, count * size)
        sections = [struct.unpack_from("<IIQQQQIIQQ", table, index * size) for index in range(count)]
        # The loader reads only one section of each type.
        dynamic = next((section for section in sections if section[1] == _DYNAMIC), None)
        requirements = next((section for section in sections if section[1] == _VERSIONS_NEEDED), None)
        needed = _needed_libraries(elf, dynamic, sections[dynamic[6]][4]) if dynamic else []
        if requirements is None:
            return needed, []
        return needed, _needed_versions(elf, requirements[4], sections[requirements[6]][4], requirements[7])


class _ElfFile:
    """A file read by offset. It is not mapped: a file that shrinks would kill this process."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._names = 0

    def read_at(self, place: int, length: int) -> bytes:
        """Read bytes at an offset."""
        if place >= 1 << 62:
            raise ValueError("a place beyond the end of any file")
        return os.pread(self._descriptor, min(length, safe_io.MIB), place)

    def unpack(self, form: str, place: int) -> tuple[int, ...]:
        """Unpack numbers at an offset."""
        return struct.unpack(form, self.read_at(place, struct.calcsize(form)))

    def string(self, place: int) -> str:
        """Read a NUL-terminated name."""
        self._names += 1
        if self._names > _MAX_NAMES:
            raise ValueError("more libraries and symbol versions than a real file asks for")
        text, end, _ = self.read_at(place, _MAX_NAME_BYTES).partition(b"\0")
        if not end:
            raise ValueError("a name that is longer than any library's")
        return text.decode("utf-8", "replace")


def _needed_libraries(elf: _ElfFile, section: tuple[int, ...], strings: int) -> list[str]:
    """Return the names in the dynamic section."""
    table = elf.read_at(section[4], section[5])
    entries = struct.iter_unpack("<QQ", table[: len(table) // 16 * 16])
    return [elf.string(strings + value) for tag, value in entries if tag == _NEEDED]


def _needed_versions(elf: _ElfFile, place: int, strings: int, entries: int) -> list[str]:
    """Return the names in a chain of Verneed records (System V ABI, symbol versioning)."""
    results = []
    for _ in range(min(entries, _MAX_NAMES)):
        _, count, _, first, following = elf.unpack("<HHIII", place)
        aux = place + first
        for _ in range(count):
            _, _, _, name, next_aux = elf.unpack("<IHHII", aux)
            results.append(elf.string(strings + name))
            aux += next_aux
        if not following:
            break
        place += following
    return results
