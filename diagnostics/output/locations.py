"""List the files and lines that a finding's evidence names, for output formats with a field for a location."""

import os
from pathlib import Path

from diagnostics.findings import Finding, Location
from diagnostics.output.redact import name_below, redact


def file_locations(finding: Finding) -> list[Location]:
    """Return the files and lines of a finding's evidence without duplicates, redacted.

    Files inside the working folder are relative to it.
    """
    result = []
    for item in finding.evidence:
        location = Location.parse(item.place)
        # The place of evidence can also be prose, such as the source of a claim.
        if (location.line and " " not in location.file) or os.path.isfile(location.file):  # noqa: PTH113 - any text
            result.append(Location(_relative(location.file), min(location.line, 10**9)))
    return list(dict.fromkeys(result))


def _relative(path: str) -> str:
    """Return a path relative to the working folder if it is inside and shows no user then; redacted."""
    try:
        return redact(name_below(Path(path).absolute(), Path.cwd()))
    except (ValueError, OSError):
        return redact(Path(path).as_posix())
