"""Where a finding stands, for formats that have a file and a line of their own for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from diagnostics.output.personal import strip

if TYPE_CHECKING:
    from diagnostics.output.findings import Finding


@dataclass(frozen=True)
class Spot:
    """A file, relative to the current folder where it is below it, and a line; line 0 where there is none."""

    file: str
    line: int


def spots(finding: Finding) -> list[Spot]:
    """The files and lines of a finding's evidence, each once, the first being where it is shown."""
    found = []
    for item in finding.evidence:
        head, colon, tail = item.place.rpartition(":")
        file, line = (head, int(tail)) if colon and tail.isascii() and tail.isdecimal() else (item.place, 0)
        path = Path(file)
        # A place can be prose, too: where an entry's claim was shown.
        if (line and " " not in file) or _is_file(path):
            found.append(Spot(_relative(path), min(line, 10**9)))
    return list(dict.fromkeys(found))


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _relative(path: Path) -> str:
    try:
        return strip(path.absolute().relative_to(Path.cwd()).as_posix())
    except (ValueError, OSError):
        # Outside the folder no reader can open it anyway, and it may say whose it is.
        return strip(path.as_posix())
