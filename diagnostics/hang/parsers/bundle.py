"""Save a snapshot as a JSON file (bundle), redacted, and load one.

`save` writes a bundle, `load` converts its JSON document to a snapshot. The rules of `redact` remove secrets, personal
data and names of machines that they recognise. Hosts keep the names host-1, host-2, … that the hang command gives them.
"""

import json
import re
from pathlib import Path
from typing import Any

import msgspec

from diagnostics.cpu_limit import cpu_limit
from diagnostics.hang.parsers import ParseError
from diagnostics.hang.parsers.flight_recorder import check_values
from diagnostics.hang.snapshot import MAX_TEXT, SCHEMA, Snapshot, is_local
from diagnostics.output import text_filters
from diagnostics.output.redact import redact, truncate
from diagnostics.output.sanitize import escape
from diagnostics.safe_io import write_atomically

_ADDRESS = re.compile(r"^(\[[^\]]+\]|[\d.]+):(\d+)$")
# The rendezvous address of a job usually has a host name.
_JOB = re.compile(r"^(.+):(\d{0,5})$")
_TITLE_LENGTH, _REDACTING_S = 120, 60.0


def save(snapshot: Snapshot, path: Path) -> None:
    """Write a redacted bundle atomically, readable only by its owner; a link at the path is replaced.

    Raises:
        OSError: The file cannot be written.
        CpuLimitError: Redacting the texts takes too long.
    """
    with cpu_limit("redacting the snapshot", _REDACTING_S):
        text = json.dumps(redacted(snapshot.to_json()), indent=0, ensure_ascii=False)
    write_atomically(path, escape(text))


def redacted(document: dict[str, Any]) -> dict[str, Any]:
    """Return the document with its texts redacted and titles cut.

    Addresses of other machines are numbered, so that both ends of connections still match.
    """
    addresses: dict[str, str] = {}  # of other machines

    def clean(key: str, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: clean(name, item) for name, item in value.items()}
        if isinstance(value, list):
            return [clean(key, item) for item in value]
        if not isinstance(value, str):
            return value
        match = (_JOB if key == "job" else _ADDRESS).match(value)
        if key in ("local", "remote", "job") and match:
            if is_local(match[1]):
                return value
            return f"{addresses.setdefault(match[1], f'address-{len(addresses) + 1}')}:{match[2]}"
        # A title may have secret arguments, so it is truncated; the role describes the process.
        return redact(value)[:_TITLE_LENGTH] if key == "title" else redact(value)

    return dict(clean("", document))


def load(document: Any, name: str) -> Snapshot:
    """Convert a bundle's JSON document to a snapshot with long texts truncated. `name` is the file's, for errors.

    Raises:
        ParseError: The document is no bundle, or a broken one.
    """
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise ParseError(f"{name}: this JSON is no snapshot of hang --save, and no other known dump")
    try:
        check_values(document)
        # Short texts bound the time of pattern matching.
        cut = text_filters.change_texts(document, lambda text: truncate(text, MAX_TEXT))
        return msgspec.convert(cut, Snapshot)
    except (ValueError, RecursionError) as error:
        raise ParseError(f"{name}: a broken snapshot: {error}") from None
