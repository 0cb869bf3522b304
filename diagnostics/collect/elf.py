"""Read the ELF headers of vLLM's, flash-attn's and xformers' compiled modules: needed libraries and symbol versions.

Only libraries of PyTorch, CUDA, ROCm and a few of the system are considered. A library is missing if none of these has
it: the usual folders of the system and CUDA, LD_LIBRARY_PATH, the environment's `lib`, and the folders of PyTorch, the
nvidia packages, cusparselt, vLLM and `*.libs`. No library is loaded. `collect` reads the modules in package folders,
and `read_elf` one file.
"""

import os
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from diagnostics import safe_io

# Modules that usually fail to load in a broken environment.
_MODULE_PATTERNS = ("vllm/*.so", "flash_attn_2_cuda*.so", "flash_attn_3/*.so", "xformers/_C*.so")
# Beginnings of the names of libraries that are checked: those of PyTorch, CUDA and ROCm, and a few of the system.
_CHECKED_LIBRARIES = (
    "libtorch", "libc10", "libcu", "libnccl", "libnv", "libhip", "libamdhip", "libnuma", "libtbb", "libstdc++",
)  # fmt: skip
_SYSTEM_FOLDERS = (
    "/usr/lib/{arch}-linux-gnu", "/lib/{arch}-linux-gnu", "/usr/lib64", "/lib64", "/usr/lib", "/lib", "/usr/local/lib",
    "/usr/local/cuda/lib64", "/usr/local/nvidia/lib64", "/usr/lib/wsl/lib",
)  # fmt: skip
_SYMBOL = re.compile(r"(GLIBC|GLIBCXX|CXXABI)_(\d{1,9}(?:\.\d{1,9})*)", re.ASCII)
# Section types SHT_DYNAMIC and SHT_GNU_verneed, and the tag DT_NEEDED.
_DYNAMIC, _VERSIONS_NEEDED, _NEEDED_TAG = 6, 0x6FFFFFFE, 1
_MAX_NAME_BYTES, _MAX_VERSIONS = 256, 5000


@dataclass(frozen=True)
class Extension:
    """A compiled module.

    Attributes:
        needed: The libraries that it needs, as far as they are checked (`_CHECKED_LIBRARIES`).
        missing: Needed libraries that no library folder has.
        versions: Newest needed version of each kind of symbol, as "GLIBCXX_3.4.32".
        problem: Why the module could not be read.
    """

    path: str
    needed: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()
    problem: str = ""


def collect(folders: Iterable[Path], prefix: Path, environ: Mapping[str, str]) -> tuple[Extension, ...]:
    """Read the headers of compiled modules in package folders; links to another name get a `problem`.

    Args:
        folders: The package folders.
        prefix: The environment, whose `lib` folder is searched for libraries, too.
        environ: Variables; LD_LIBRARY_PATH names more library folders.
    """
    folders = list(dict.fromkeys(folders))
    paths = {path for folder in folders for pattern in _MODULE_PATTERNS for path in folder.glob(pattern)}
    if not paths:
        return ()
    available = _library_names(folders, prefix, environ)
    return tuple(_read_extension(path, available) for path in sorted(paths))


def _read_extension(path: Path, available: set[str]) -> Extension:
    """Read one compiled module; an unreadable file gives an Extension with a `problem`."""
    if path.resolve().name != path.name:
        return Extension(str(path), problem="a link to a file of another name")
    try:
        names, versions = read_elf(path)
    except (OSError, ValueError, struct.error, IndexError, OverflowError) as error:
        return Extension(str(path), problem=f"no readable ELF file: {error}")
    needed = tuple(dict.fromkeys(name for name in names if name.startswith(_CHECKED_LIBRARIES)))
    missing = tuple(name for name in needed if name not in available)
    return Extension(str(path), needed, missing, tuple(newest_versions(versions)))


def newest_versions(versions: Iterable[str]) -> list[str]:
    """Return the newest symbol version of each kind (GLIBC, GLIBCXX, CXXABI), such as "GLIBC_2.34"."""
    best: dict[str, tuple[int, ...]] = {}
    for kind, number in (match.groups() for match in map(_SYMBOL.fullmatch, versions) if match):
        best[kind] = max(best.get(kind, ()), tuple(map(int, number.split("."))))
    return [f"{kind}_{'.'.join(map(str, number))}" for kind, number in sorted(best.items())]


def system_folders() -> list[Path]:
    """Return the usual library folders of Linux distributions and CUDA; /etc/ld.so.conf is not read."""
    return [Path(folder.format(arch=os.uname().machine)) for folder in _SYSTEM_FOLDERS]


def _library_names(folders: Sequence[Path], prefix: Path, environ: Mapping[str, str]) -> set[str]:
    """Return the names of the files in the folders where compiled modules in these package folders find libraries."""
    library_folders = system_folders()
    library_folders += [Path(entry) for entry in environ.get("LD_LIBRARY_PATH", "").split(":") if entry]
    library_folders += [prefix / "lib", *Path("/usr/local").glob("cuda-*/lib64")]
    for folder in folders:
        # PyTorch loads these into the process before any of its extensions.
        library_folders += [folder / "torch" / "lib", *folder.glob("nvidia/*/lib"), *folder.glob("*.libs")]
        library_folders += [folder / "cusparselt" / "lib", folder / "vllm", *folder.glob("vllm/*.libs")]
    unique = set(map(os.path.realpath, library_folders))
    return {name for folder in unique for name in safe_io.list_folder(folder)}


def read_elf(path: Path) -> tuple[list[str], list[str]]:
    """Return the libraries and symbol versions that a 64-bit little-endian ELF file needs.

    Raises:
        OSError: The file is not regular, or is unreadable.
        ValueError: The file is not such an ELF file, or has implausible tables.
        struct.error: The file is truncated.
        IndexError: A section refers to a string table that does not exist.
    """
    with safe_io.open_regular(path) as file:
        elf = _ElfFile(file.fileno())
        head = elf.read_at(0, 64)
        if head[:6] != b"\x7fELF\x02\x01":
            raise ValueError("not a 64-bit little-endian ELF file")
        (offset,) = struct.unpack_from("<Q", head, 0x28)
        size, count = struct.unpack_from("<HH", head, 0x3A)
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
    """An ELF file that is read by offset. It is not mapped, because a mapped file that shrinks kills the process."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def read_at(self, offset: int, length: int) -> bytes:
        """Read up to `length` bytes, at most 1 MiB; raise ValueError for an impossible offset."""
        if offset >= 1 << 62:
            raise ValueError("an offset beyond the end of any file")
        return os.pread(self._descriptor, min(length, safe_io.MIB), offset)

    def unpack(self, form: str, offset: int) -> tuple[int, ...]:
        """Unpack numbers by a format of `struct`."""
        return struct.unpack(form, self.read_at(offset, struct.calcsize(form)))

    def read_name(self, offset: int) -> str:
        """Read a NUL-terminated name; raise ValueError if it is too long."""
        text, end, _ = self.read_at(offset, _MAX_NAME_BYTES).partition(b"\0")
        if not end:
            raise ValueError("a name that is longer than any library's")
        return text.decode("utf-8", "replace")


def _needed_libraries(elf: _ElfFile, section: tuple[int, ...], strings: int) -> list[str]:
    """Return the library names in the dynamic section; `strings` is the offset of the string table."""
    table = elf.read_at(section[4], section[5])
    entries = struct.iter_unpack("<QQ", table[: len(table) // 16 * 16])
    return [elf.read_name(strings + value) for tag, value in entries if tag == _NEEDED_TAG]


def _needed_versions(elf: _ElfFile, offset: int, strings: int, entries: int) -> list[str]:
    """Return the names in a chain of Verneed records (Linux Standard Base, symbol versioning).

    Args:
        elf: The file.
        offset: Offset of the first record.
        strings: Offset of the string table.
        entries: Number of records.
    """
    results = []
    for _ in range(entries):
        _, count, _, first, following = elf.unpack("<HHIII", offset)
        aux = offset + first
        for _ in range(count):
            _, _, _, name, next_aux = elf.unpack("<IHHII", aux)
            results.append(elf.read_name(strings + name))
            if len(results) > _MAX_VERSIONS:
                raise ValueError(f"more than {_MAX_VERSIONS} versions of symbols")
            aux += next_aux
        if not following:
            break
        offset += following
    return results
