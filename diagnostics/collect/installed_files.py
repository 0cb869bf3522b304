"""The files that a package brought, by its own list, against those on the disk."""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from diagnostics import given

MOST_DAMAGED = 20
# So far a list of installed files leads up: from lib/python3.11/site-packages to the prefix.
_MOST_UP = 3
# What people leave out of an image on purpose, and no run imports.
_SPARED = re.compile(r"(?:^|/)(?:tests?|testing|docs?|examples?|benchmarks?)/", re.IGNORECASE)
# What an editable install brings instead of the package.
_POINTERS = re.compile(
    r"__editable__.*|.*\.pth|.*\.egg-link|__pycache__|\.\.|bin|share|etc|.*\.(?:dist|egg)-info"
)


@dataclass(frozen=True)
class InstalledFiles:
    """What a list of installed files says.

    Attributes:
        damaged: Libraries and modules that are gone, libraries of another length; the first twenty.
        gone: How many files of those looked at are gone.
        modules: The top-level modules that it brought; none of an editable install.
        unread: Why the list could not be read, or "".
        there: Whether there is a list.
    """

    damaged: tuple[str, ...] = ()
    gone: int = 0
    modules: tuple[str, ...] = ()
    unread: str = ""
    there: bool = True


def read(place: str) -> InstalledFiles:
    """Compares the list in a metadata folder with the disk."""
    try:
        record = given.text(Path(place, "RECORD"), given.LIST)
    except (FileNotFoundError, NotADirectoryError):  # an egg, or what is in a zip
        return InstalledFiles(there=False)
    except OSError as error:
        return InstalledFiles(unread=error.strerror or str(error))
    site = os.path.dirname(place)  # noqa: PTH120 - as text, since the list is long
    damaged: list[str] = []
    tops: set[str] = set()
    # Known by the folder, of which most have many files: what lies in it; None of those that nobody misses.
    there: dict[str, frozenset[str] | None] = {}
    gone = 0
    for line in record.splitlines():
        path, _, size = line.rpartition(",")
        path = path.rpartition(",")[0].strip('"')
        if not path.endswith((".so", ".py")):
            continue
        folder = path[: path.rfind("/") + 1]
        if folder not in there:
            there[folder] = None if _left_out(folder) else _files(f"{site}/{folder}")
            tops.add(path.partition("/")[0])
        elif not folder:
            tops.add(path)
        files = there[folder]
        if files is None or path[len(folder) :] in files:
            continue
        if not size.isdecimal() or len(size) > 18 or "\0" in path:
            continue
        told = _compared(f"{site}/{path}", path, int(size))
        gone += told.endswith("not there")
        if told and len(damaged) < MOST_DAMAGED:
            damaged.append(told)
    modules = {top.partition(".")[0] for top in tops if not _POINTERS.fullmatch(top)}
    return InstalledFiles(tuple(damaged), gone, tuple(sorted(modules)))


def _left_out(folder: str) -> bool:
    outside = folder.startswith(("/", "../")) or folder.count("..") > _MOST_UP
    return outside or bool(_SPARED.search(folder))


def _files(folder: str) -> frozenset[str]:
    """Modules that lie in a folder, one look for them all; links, libraries and the unlisted are asked by name."""
    with contextlib.suppress(OSError, ValueError), os.scandir(folder) as entries:
        return frozenset(
            entry.name for entry in entries if entry.name.endswith(".py") and not entry.is_symlink()
        )
    return frozenset()


def _compared(place: str, path: str, size: int) -> str:
    try:
        length = os.stat(place).st_size  # noqa: PTH116 - thousands of them
    except (OSError, UnicodeError):
        return f"{path}: not there"
    # Two packages may bring the same `tests/__init__.py`; nobody shares a library.
    return f"{path}: {length} bytes of {size}" if length != size and path.endswith(".so") else ""
