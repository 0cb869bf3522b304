"""The logs that a command line names."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from diagnostics import safe_io
from diagnostics.triage.reading import kinds, packed
from diagnostics.triage.reading.folders import in_folder
from diagnostics.triage.reading.logs import LogSource, SourceError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diagnostics.triage.reading.folders import Passed


def find(arguments: Sequence[str], passed: Passed | None = None) -> list[LogSource]:
    """The logs that the command line names: `-` is standard input, a folder means the logs below it.

    Args:
        arguments: What was named.
        passed: Takes up what was passed over in folders, and why.

    Raises:
        SourceError: Something named is not there, or a folder has no log.
    """
    found: list[LogSource] = []
    for argument in arguments:
        path = Path(argument)
        if argument == "-":
            found.append(LogSource("<stdin>", None))
        elif _is_folder(path):
            found += in_folder(path, passed)
        else:
            found += _of_zip(path) or [LogSource(path.name, path)]
    named: dict[str, int] = {}
    for source in found:
        named[source.name] = named.get(source.name, 0) + 1
    return [
        replace(source, name=f"{source.path}/{source.member}".rstrip("/"))
        if named[source.name] > 1 and source.path
        else source
        for source in found
    ]


def _of_zip(path: Path) -> list[LogSource]:
    """The files in a zip, which is what CI gives logs as; none for any other file.

    Raises:
        SourceError: It is a zip that can't be read, or no run's.
    """
    try:
        if stat.S_ISFIFO(path.stat().st_mode):
            return []
        with safe_io.open_regular(path) as raw:
            if not raw.peek(4).startswith(kinds.ZIP):
                return []
            return [LogSource(f"{path.name}/{name}", path, member=name) for name in packed.files_of(raw)]
    except (kinds.NoLogError, *packed.ERRORS) as error:
        raise SourceError(f"{path}: {error}") from None
    except OSError:
        return []  # said when it is read


def _is_folder(path: Path) -> bool:
    """Whether a folder is named, or a file.

    Raises:
        SourceError: Neither is there.
    """
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except FileNotFoundError:
        raise SourceError(f"{path}: no such file or folder") from None
    except (OSError, ValueError) as error:
        raise SourceError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
