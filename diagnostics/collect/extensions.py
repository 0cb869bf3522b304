"""Compiled modules, and the libraries and library releases they ask for: read from their ELF headers, never loaded."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from diagnostics import given

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

# The ones whose failure to load is the usual broken environment.
_PATTERNS = ("vllm/*.so", "flash_attn_2_cuda*.so", "flash_attn_3/*.so", "xformers/_C*.so")
# Libraries that come with packages or the driver; those of the system itself are not looked for.
_LOOKED_FOR = (
    "libtorch",
    "libc10",
    "libcu",
    "libnccl",
    "libnv",
    "libhip",
    "libamdhip",
    "libnuma",
    "libtbb",
    "libstdc++",
)
_SYSTEM = ("/usr/lib/{arch}-linux-gnu", "/lib/{arch}-linux-gnu", "/usr/lib64", "/lib64", "/usr/lib", "/lib",
           "/usr/local/lib", "/usr/local/cuda/lib64", "/usr/local/nvidia/lib64", "/usr/lib/wsl/lib")  # fmt: skip
_DYNAMIC, _VERSIONS_NEEDED = 6, 0x6FFFFFFE
_NEEDED = 1
# Real files have some forty sections, and ask for some hundred names of at most sixty letters.
_MOST_SECTIONS, _MOST_NAMES, _LONGEST_NAME = 4096, 10_000, 1024
_MOST_EXTENSIONS = 500


@dataclass(frozen=True)
class Extension:
    """A compiled module.

    Attributes:
        needed: Names of libraries that it asks the loader for.
        missing: Those of them that are in none of the places where the loader or the packages would find them.
        versions: Symbol versions that it asks for, as "GLIBCXX_3.4.32": the newest of each kind.
        problem: Why it could not be read, empty if it could.
    """

    path: str
    needed: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()
    problem: str = ""


def collect(folders: Iterable[Path], prefix: Path, environ: Mapping[str, str]) -> tuple[Extension, ...]:
    """Reads the headers of the compiled modules in an environment's package folders."""
    folders = list(dict.fromkeys(folders))
    paths = sorted({path for folder in folders for pattern in _PATTERNS for path in folder.glob(pattern)})
    if not paths:
        return ()
    known = _libraries(folders, prefix, environ)
    return tuple(_extension(path, known) for path in paths[:_MOST_EXTENSIONS])


def _extension(path: Path, known: set[str]) -> Extension:
    try:
        needed, versions = read(path)
    except (OSError, ValueError, struct.error, IndexError, OverflowError) as error:
        return Extension(str(path), problem=f"no readable ELF file: {error}")
    missing = tuple(name for name in needed if name.startswith(_LOOKED_FOR) and name not in known)
    return Extension(str(path), tuple(needed), missing, tuple(newest(versions)))


def newest(versions: Iterable[str]) -> list[str]:
    """Of each kind ("GLIBC", "GLIBCXX", "CXXABI") the newest."""
    best: dict[str, tuple[int, ...]] = {}
    for version in versions:
        kind, _, number = version.partition("_")
        parts = number.split(".")
        if kind in {"GLIBC", "GLIBCXX", "CXXABI"} and all(
            part.isdecimal() and len(part) < 10 for part in parts
        ):
            best[kind] = max(best.get(kind, ()), tuple(int(part) for part in parts))
    return [f"{kind}_{'.'.join(map(str, number))}" for kind, number in sorted(best.items())]


def _libraries(folders: Sequence[Path], prefix: Path, environ: Mapping[str, str]) -> set[str]:
    """File names of all libraries in the places where one of these modules could find one."""
    arch = os.uname().machine
    places = [Path(place.format(arch=arch)) for place in _SYSTEM]
    places += [Path(entry) for entry in environ.get("LD_LIBRARY_PATH", "").split(":") if entry]
    places += [prefix / "lib", *Path("/usr/local").glob("cuda-*/lib64")]
    for folder in folders:
        # PyTorch loads these into the process before any of its extensions comes.
        places += [folder / "torch" / "lib", *folder.glob("nvidia/*/lib"), *folder.glob("*.libs")]
        places += [folder / "cusparselt" / "lib", folder / "vllm", *folder.glob("vllm/*.libs")]
    names: set[str] = set()
    for place in dict.fromkeys(places):
        try:
            names |= {entry.name for entry in os.scandir(place)}
        except OSError:
            continue
    return names


def read(path: Path) -> tuple[list[str], list[str]]:
    """Returns the libraries and the symbol versions that a 64-bit little-endian ELF file asks for.

    Raises:
        OSError: It is no regular file, or can't be read.
        ValueError: It is no such file, or asks for more than a real one does.
        struct.error: It is cut off.
    """
    with given.opened(path) as file:
        elf = _Elf(file.fileno())
        head = elf.bytes(0, 64)
        if head[:6] != b"\x7fELF\x02\x01":
            raise ValueError("not a 64-bit little-endian ELF file")
        (offset,) = struct.unpack_from("<Q", head, 0x28)
        size, count = struct.unpack_from("<HH", head, 0x3A)
        if count > _MOST_SECTIONS:
            raise ValueError("more sections than a loadable file has")
        table = elf.bytes(offset, count * size)
        sections = [struct.unpack_from("<IIQQQQIIQQ", table, index * size) for index in range(count)]
        # The loader looks at one of each.
        dynamic = next((section for section in sections if section[1] == _DYNAMIC), None)
        wanted = next((section for section in sections if section[1] == _VERSIONS_NEEDED), None)
        needed = _needed(elf, dynamic, sections[dynamic[6]][4]) if dynamic else []
        versions = _versions(elf, wanted[4], sections[wanted[6]][4], wanted[7]) if wanted else []
        return needed, versions


class _Elf:
    """A file that is read at places; it may change or end meanwhile, which would kill who has it in memory."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._names = 0

    def bytes(self, place: int, length: int) -> bytes:
        """So many bytes, or those that are left."""
        if place >= 1 << 62:
            raise ValueError("a place beyond the end of any file")
        return os.pread(self._descriptor, min(length, given.MIB), place)

    def unpack(self, form: str, place: int) -> tuple[int, ...]:
        """Numbers at a place."""
        return struct.unpack(form, self.bytes(place, struct.calcsize(form)))

    def string(self, place: int) -> str:
        """A name, which ends with a NUL."""
        self._names += 1
        if self._names > _MOST_NAMES:
            raise ValueError("more libraries and symbol versions than a real file asks for")
        text, end, _ = self.bytes(place, _LONGEST_NAME).partition(b"\0")
        if not end:
            raise ValueError("a name that is longer than any library's")
        return text.decode("utf-8", "replace")


def _needed(elf: _Elf, section: tuple[int, ...], strings: int) -> list[str]:
    """Names in the table of what the loader is told."""
    table = elf.bytes(section[4], section[5])
    entries = struct.iter_unpack("<QQ", table[: len(table) // 16 * 16])
    return [elf.string(strings + value) for tag, value in entries if tag == _NEEDED]


def _versions(elf: _Elf, place: int, strings: int, entries: int) -> list[str]:
    """Names in a chain of Verneed records, each with a chain of Vernaux records (System V ABI, symbol versioning)."""
    found = []
    for _ in range(min(entries, _MOST_NAMES)):
        _, count, _, first, following = elf.unpack("<HHIII", place)
        aux = place + first
        for _ in range(count):
            _, _, _, name, next_aux = elf.unpack("<IHHII", aux)
            found.append(elf.string(strings + name))
            aux += next_aux
        if not following:
            break
        place += following
    return found
