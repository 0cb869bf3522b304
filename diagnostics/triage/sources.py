"""Find the logs that a command line names (files, folders, standard input), and note files that are skipped.

Links to folders, and links out of a named folder, are not followed.
"""

import os
import re
import stat
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from diagnostics.cpu_limit import CpuLimitError, cpu_limit
from diagnostics.fixes import count_of
from diagnostics.output.redact import name_below
from diagnostics.triage.log_reader import SOURCES, LogSource, SourceError, looks_like_log

__all__ = ["LogSource", "SkippedFiles", "SourceError", "find_logs"]

_LOG_NAME = re.compile(SOURCES["log_name"])
_MAX_FILES = 200_000
_MAX_KINDS, _MAX_UNREAD = 6, 4
# Limit of processor time for one file; a log needs a millisecond.
_FIRST_BYTES_S = 2.0


@dataclass
class SkippedFiles:
    """Files below the named folders that were not read; the text is for a note in the report.

    Attributes:
        kinds: Number of files that are no logs, by suffix, or by `binary` (a log's name, other contents), `dangling`
            (a broken link) or `not a file`.
        unread: Folders and files that may be logs: unreadable, a link out of the folder, or beyond a limit.
    """

    kinds: Counter[str] = field(default_factory=Counter)
    unread: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        notes = []
        if total := self.kinds.total():
            names = ", ".join(f"{count} {kind}" for kind, count in self.kinds.most_common(_MAX_KINDS))
            notes.append(f"{count_of(total, 'file')} not read, no logs by name or first bytes: {names}")
        if self.unread:
            notes.append(f"could not be read: {', '.join(self.unread[:_MAX_UNREAD])}")
        return "; ".join(notes)


def find_logs(arguments: Sequence[str], skipped: SkippedFiles | None = None) -> list[LogSource]:
    """Return the logs that a command line names; `-` is standard input, a folder means the logs below it.

    Logs with equal names get their paths as names.

    Args:
        arguments: Files and folders.
        skipped: Object that collects the files that were not read; None to drop them.

    Raises:
        SourceError: An argument does not exist or cannot be read, or a folder has no log.
    """
    skipped = SkippedFiles() if skipped is None else skipped
    sources: list[LogSource] = []
    for argument in arguments:
        path = Path(argument)
        if argument == "-":
            sources.append(LogSource("<stdin>", None))
        elif stat.S_ISDIR(_mode(path)):
            sources += _folder_logs(path, skipped)
        else:
            sources.append(LogSource(path.name, path))
    names = Counter(source.name for source in sources)
    return [
        replace(source, name=str(source.path)) if names[source.name] > 1 and source.path else source
        for source in sources
    ]


def _mode(path: Path) -> int:
    """Return the mode of a file or folder; raise SourceError if it does not exist or cannot be read."""
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        raise SourceError(f"{path}: no such file or folder") from None
    except (OSError, ValueError) as error:
        raise SourceError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _folder_logs(folder: Path, skipped: SkippedFiles) -> list[LogSource]:
    """Return the logs below a folder, sorted; a file is listed once, even if several links lead to it."""
    paths, identities = [], set()
    root = os.path.realpath(folder)
    for path in _files(folder, skipped):
        try:
            status = path.stat()
        except OSError:
            skipped.kinds["dangling"] += 1
            continue
        if not stat.S_ISREG(status.st_mode):
            skipped.kinds["not a file"] += 1
        elif not _LOG_NAME.search(path.name):
            skipped.kinds[path.suffix.lower() or "other"] += 1
        elif path.is_symlink() and not os.path.realpath(path).startswith(f"{root.rstrip('/')}/"):
            skipped.unread.append(
                f"{name_below(path, folder)} (a link out of the folder: name the file itself)"
            )
        elif (identity := (status.st_dev, status.st_ino)) not in identities:
            try:
                with cpu_limit("reading its first bytes", _FIRST_BYTES_S):
                    is_log = looks_like_log(path)
            except CpuLimitError as error:
                skipped.unread.append(f"{name_below(path, folder)} ({error})")
                continue
            if is_log:
                identities.add(identity)
                paths.append(path)
            else:
                skipped.kinds["binary"] += 1
    if not paths:
        reason = f"; {skipped}" if str(skipped) else ""
        names = "*.log *.txt *.out *.err *.jsonl *.gz"
        raise SourceError(f"{folder}: no log in it (files such as {names}){reason}")
    return [LogSource(name_below(path, folder), path, root=folder) for path in paths]


def _files(folder: Path, skipped: SkippedFiles) -> list[Path]:
    """Return the files below a folder, without caches and installed packages; links to folders are not followed."""

    def report_unreadable(error: OSError) -> None:
        skipped.unread.append(f"{error.filename} ({error.strerror})")

    paths: list[Path] = []
    for parent, folders, files in os.walk(folder, onerror=report_unreadable):
        folders[:] = sorted(name for name in folders if name not in SOURCES["skipped_folders"])
        paths += [Path(parent, name) for name in files]
        if len(paths) > _MAX_FILES:
            skipped.unread.append(f"{parent} and what comes after it ({_MAX_FILES} files were enough)")
            break
    return sorted(paths)
