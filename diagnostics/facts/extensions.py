"""Compiled modules, and the libraries and library releases they ask for: read from their ELF headers, never loaded."""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

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
_MOST_VERSIONS = 10_000


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
    return tuple(_extension(path, known) for path in paths)


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
        if kind in {"GLIBC", "GLIBCXX", "CXXABI"} and all(part.isdecimal() for part in parts):
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
        ValueError: It is no such file.
        struct.error: It is cut off.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[:6] != b"\x7fELF\x02\x01":
            raise ValueError("not a 64-bit little-endian ELF file")
        (offset,) = struct.unpack_from("<Q", data, 0x28)
        size, count = struct.unpack_from("<HH", data, 0x3A)
        sections = [struct.unpack_from("<IIQQQQIIQQ", data, offset + index * size) for index in range(count)]
        needed: list[str] = []
        versions: list[str] = []
        for section in sections:
            kind, start, length, link, entries = section[1], section[4], section[5], section[6], section[7]
            if kind == _DYNAMIC:
                strings = sections[link][4]
                for place in range(start, start + length, 16):
                    tag, value = struct.unpack_from("<QQ", data, place)
                    if tag == _NEEDED:
                        needed.append(_string(data, strings + value))
            elif kind == _VERSIONS_NEEDED:
                versions += _versions(data, start, sections[link][4], entries)
        return needed, versions


def _versions(data: mmap.mmap, place: int, strings: int, entries: int) -> list[str]:
    """Names in a chain of Verneed records, each with a chain of Vernaux records (System V ABI, symbol versioning)."""
    found = []
    for _ in range(entries):
        _, count, _, first, following = struct.unpack_from("<HHIII", data, place)
        aux = place + first
        for _ in range(count):
            _, _, _, name, next_aux = struct.unpack_from("<IHHII", data, aux)
            found.append(_string(data, strings + name))
            if len(found) > _MOST_VERSIONS:
                raise ValueError("more symbol versions than a real file has")
            aux += next_aux
        if not following:
            break
        place += following
    return found


def _string(data: mmap.mmap, start: int) -> str:
    return data[start : data.find(b"\0", start)].decode("utf-8", "replace")
