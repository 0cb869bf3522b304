"""Compare a package's list of installed files (RECORD) with the disk: missing files, and libraries of another length.

Only `.py` and `.so` files in site-packages with a recorded size are compared, without folders such as `tests`; at most
MAX_DAMAGED damaged files are listed. The result also has the package's top-level modules.
"""

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from diagnostics import safe_io

MAX_DAMAGED = 20
# No path of a RECORD needs more: lib/python3.11/site-packages is three folders below the prefix.
_MAX_PARENTS = 3
# Folders that small images leave out on purpose; no run imports them.
_UNNEEDED = re.compile(r"(?:^|/)(?:tests?|testing|docs?|examples?|benchmarks?)/", re.IGNORECASE)
# Files of an editable install that are not the package itself.
_POINTERS = re.compile(
    r"__editable__.*|.*\.(?:pth|egg-link|(?:dist|egg)-info)|__pycache__|\.\.|bin|share|etc"
)


@dataclass(frozen=True)
class RecordedFiles:
    """Result of comparing a package's list of installed files (RECORD) with the disk.

    Attributes:
        damaged: Missing libraries and modules, and libraries of another length than recorded; at most MAX_DAMAGED.
        modules: The top-level modules that the package installed; empty for an editable install.
        unread: Reason why the list could not be read; empty if it could.
        exists: Whether the package has a list.
    """

    damaged: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    unread: str = ""
    exists: bool = True


class ModuleListings:
    """Cache of the modules in the folders of an environment."""

    def __init__(self) -> None:
        self._listings: dict[str, frozenset[str]] = {}

    def list_modules(self, folder: str) -> frozenset[str]:
        """Return the names of the `.py` files in a folder, without links; none if it cannot be listed."""
        place = os.path.normpath(folder)
        if place not in self._listings:
            names: list[str] = []
            with contextlib.suppress(OSError, ValueError), os.scandir(place) as entries:
                names += [it.name for it in entries if it.name.endswith(".py") and not it.is_symlink()]
            self._listings[place] = frozenset(names)
        return self._listings[place]


def read_record(metadata_folder: str, listings: ModuleListings) -> RecordedFiles:
    """Compare the RECORD in a metadata folder with the disk; a missing or unreadable RECORD is part of the result."""
    try:
        record = safe_io.read_installed(Path(metadata_folder, "RECORD"), safe_io.DOCUMENT_LIMIT)
        return _compare(record, metadata_folder, listings)
    except (FileNotFoundError, NotADirectoryError):  # an egg, or a package in a zip
        return RecordedFiles(exists=False)
    except OSError as error:
        return RecordedFiles(unread=error.strerror or str(error))


def _compare(record: str, metadata_folder: str, listings: ModuleListings) -> RecordedFiles:
    """Compare the `.py` and `.so` files of a RECORD with the disk; listed modules are not looked up one by one."""
    site = os.path.dirname(metadata_folder)  # noqa: PTH120 - as text, because the list is long
    damaged: list[str] = []
    tops: set[str] = set()
    # Modules by folder, because most folders have many files; None for folders that are not needed.
    by_folder: dict[str, frozenset[str] | None] = {}
    for line in record.splitlines():
        path, _, size = line.rpartition(",")
        path = path.rpartition(",")[0].strip('"')
        if not path.endswith((".so", ".py")):
            continue
        folder = path[: path.rfind("/") + 1]
        tops.add(path.partition("/")[0])
        if folder not in by_folder:
            by_folder[folder] = None if _is_unneeded(folder) else listings.list_modules(f"{site}/{folder}")
        listing = by_folder[folder]
        if listing is None or path[len(folder) :] in listing:
            continue
        if size.isdecimal() and len(size) <= 18 and "\0" not in path and len(damaged) < MAX_DAMAGED:
            damaged += filter(None, [_compare_file(f"{site}/{path}", path, int(size))])
    modules = {top.partition(".")[0] for top in tops if not _POINTERS.fullmatch(top)}
    return RecordedFiles(tuple(damaged), tuple(sorted(modules)))


def _is_unneeded(folder: str) -> bool:
    """Return whether a folder of a RECORD is outside site-packages, or one that no run needs."""
    outside = folder.startswith(("/", "../")) or folder.count("..") > _MAX_PARENTS
    return outside or bool(_UNNEEDED.search(folder))


def _compare_file(path: str, recorded_path: str, size: int) -> str:
    """Describe a missing file, or a library of another length than recorded; empty if neither."""
    try:
        length = os.stat(path).st_size  # noqa: PTH116 - thousands of them
    except (OSError, UnicodeError):
        return f"{recorded_path}: not there"
    # Two packages may install the same `tests/__init__.py`, but never the same library.
    return f"{recorded_path}: {length} bytes of {size}" if length != size and path.endswith(".so") else ""
