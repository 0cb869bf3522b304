"""Logs in a folder: which of its files are logs, told by name and first bytes; what is none is passed over quickly."""

from __future__ import annotations

import os
import re
import stat
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from diagnostics import safe_io
from diagnostics.triage.reading import kinds, packed
from diagnostics.triage.reading.logs import LogSource, SourceError

# train.log, slurm-17_3.out, worker-0a.err, job.o1234 and job.e1234 of PBS, run.log.2, raylet.out.1, log.txt.gz
_LOG = re.compile(
    r"\.(?:log|txt|out|err|jsonl|ndjson|stdout|stderr|[oe]\d+(?:[-.]\d+)?)(?:\.\d+|[.-]\d{4}-\d\d-\d\d)?"
    r"(?:\.(?:gz|bz2|xz|zst|lz4))?$"
    r"|^[^.]+(?:\.(?:gz|bz2|xz|zst|lz4))?$",
    re.IGNORECASE,
)
_NO_FOLDERS = {"__pycache__", "node_modules", "site-packages", "wandb-cache"}
_HEAD = 4096
_MOST_FILES = 200_000
_NAMED = 6


@dataclass
class Passed:
    """What was passed over in folders.

    Attributes:
        kinds: How many files of each ending, or `binary` where the name could have been a log's.
        unread: Folders and files that could be logs and could not be looked at.
    """

    kinds: Counter[str] = field(default_factory=Counter)
    unread: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        told = []
        if self.kinds:
            named = ", ".join(f"{count} {kind}" for kind, count in self.kinds.most_common(_NAMED))
            rest = self.kinds.total() - sum(count for _, count in self.kinds.most_common(_NAMED))
            named += f", {rest} of other kinds" if rest else ""
            told.append(
                f"passed over {self.kinds.total()} files that are no logs by name or first bytes: {named}"
            )
        if self.unread:
            told.append(f"could not be looked at: {', '.join(self.unread[:4])}")
        return "; ".join(told)


def in_folder(folder: Path, passed: Passed | None = None) -> list[LogSource]:
    """The logs in a folder and below it, by name; each file once, whatever links lead to it.

    Raises:
        SourceError: There are none.
    """
    passed = Passed() if passed is None else passed
    paths, known = [], set()
    root = os.path.realpath(folder)
    for path in _files(folder, passed):
        try:
            found = path.stat()
        except OSError:
            # A link to what is gone.
            passed.kinds["dangling"] += 1
            continue
        if not stat.S_ISREG(found.st_mode):
            passed.kinds["not a file"] += 1
        elif not _LOG.search(path.name):
            passed.kinds[path.suffix.lower() or "other"] += 1
        elif path.is_symlink() and not os.path.realpath(path).startswith(f"{root.rstrip('/')}/"):
            passed.unread.append(
                f"{path.relative_to(folder)} (a link out of the folder: name the file itself)"
            )
        elif (found.st_dev, found.st_ino) not in known and _is_text(path, passed):
            known.add((found.st_dev, found.st_ino))
            paths.append(path)
    if not paths:
        told = f"; {passed}" if str(passed) else ""
        raise SourceError(
            f"{folder}: no log in it (files such as *.log *.txt *.out *.err *.jsonl *.gz){told}"
        )
    return [LogSource(str(path.relative_to(folder)), path, inside=folder) for path in paths]


def _files(folder: Path, passed: Passed) -> list[Path]:
    """All files below a folder; no hidden folders, and links to folders are not followed."""

    def failed(error: OSError) -> None:
        passed.unread.append(f"{error.filename} ({error.strerror})")

    found = []
    for where, folders, files in os.walk(folder, onerror=failed):
        folders[:] = sorted(name for name in folders if name[0] != "." and name not in _NO_FOLDERS)
        found += [Path(where, name) for name in files]
        if len(found) > _MOST_FILES:
            passed.unread.append(f"{where} and what comes after it ({_MOST_FILES} files were enough)")
            break
    return sorted(found)


def _is_text(path: Path, passed: Passed) -> bool:
    """Whether a file begins as a log may; a file that can't be read is left to be reported when it is."""
    try:
        with safe_io.open_regular(path) as raw:
            head = raw.peek(_HEAD)[:_HEAD]
            for magic, (kind, unpacker) in packed.PACKERS.items():
                if head.startswith(magic):
                    head = packed.Unpacked(raw, kind, unpacker).read(_HEAD)
                    break
    except (OSError, EOFError, kinds.NoLogError, *packed.ERRORS):
        return True
    if kinds.utf16(head) or head.startswith(kinds.PACKED_UNREAD) or kinds.is_text(head) is not False:
        return True
    passed.kinds["binary"] += 1
    return False
