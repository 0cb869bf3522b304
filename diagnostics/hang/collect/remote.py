"""Take a snapshot on another host, with the standard library and the py-spy that is there."""

from __future__ import annotations

from typing import Any

from diagnostics.hang.collect.snapshot import NoProcessError, Selection, take_snapshot
from diagnostics.hang.snapshot import Snapshot


def snapshot_as_json(options: dict[str, Any], _folder: str) -> dict[str, Any]:
    """Return the snapshot of this host as JSON, or why there is none.

    Args:
        options: `pattern`, `seconds` and `samples` of a Selection.
    """
    selection = Selection(
        pattern=options["pattern"],
        everything=not options["pattern"],
        seconds=options["seconds"],
        samples=options["samples"],
    )
    try:
        return take_snapshot(selection).to_json()
    except NoProcessError as error:
        return Snapshot(notes=(str(error),)).to_json()
