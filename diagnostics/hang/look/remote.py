"""Looks on a node, by the standard library and the py-spy that is there: its processes as a snapshot."""

from __future__ import annotations

from typing import Any

from diagnostics.hang.look.take import NoProcessError, Wanted, take
from diagnostics.hang.snapshot import Snapshot


def look(options: dict[str, Any], _folder: str) -> dict[str, Any]:
    """The document of this node, or why there is none.

    Args:
        options: `pattern`, `seconds` and `samples` as `Wanted` has them.
    """
    wanted = Wanted(
        pattern=options["pattern"],
        everything=not options["pattern"],
        seconds=options["seconds"],
        samples=options["samples"],
    )
    try:
        return take(wanted).to_json()
    except NoProcessError as error:
        return Snapshot(notes=(str(error),)).to_json()
