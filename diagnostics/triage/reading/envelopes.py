"""Lines within a line: what collectors of logs wrap in JSON, and tracebacks whose line ends are written out."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from diagnostics.triage.reading.prefixes import Line, clean
from diagnostics.triage.tracebacks import HEADER

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

# A longer line is not taken for a document.
LONGEST = 256_000
_DEEPEST = 8
_MOST_LINES = 2000
_RANK = ("rank", "global_rank", "RANK", "local_rank", "dist_rank", "node_rank", "task_index")
_WHO = (
    "pod",
    "pod_name",
    "container_name",
    "container",
    "host",
    "hostname",
    "actor_id",
    "worker_id",
    "pid",
    "process",
)
_LEVEL = ("level", "levelname", "severity", "log_level", "levelno", "lvl")
# What says when and where, and is no message.
_ABOUT = {
    *_RANK, *_WHO, *_LEVEL, "stream", "time", "timestamp", "ts", "@timestamp", "asctime", "logger", "logger_name",
    "name", "module", "filename", "pathname", "funcName", "namespace",
}  # fmt: skip
# Where an exception comes in parts, the names of its class and of what it says.
_TYPES = ("exc_type", "exception_type", "exception.type", "type", "class")
_VALUES = ("exc_value", "exception_message", "exception.message", "value", "message")
_WRITTEN_OUT = re.compile(r"(?<!\\)\\n")
_FRAME = re.compile(r'\\n\s*File \\?["\']')
_ESCAPES = {"\\n": "\n", "\\t": "\t", '\\"': '"', "\\'": "'", "\\\\": "\\", "\\r": ""}
_ESCAPE = re.compile(r"\\[nt\"'\\r]|\\u001[bB]|\\x1[bB]")


def inside(raw: bytes) -> list[Line] | None:
    """The lines within a line of a log, also two envelopes deep; None where it is an ordinary one."""
    if b"\\n" not in raw and b'{"' not in raw[:400]:
        return None
    inner = opened(clean(raw.decode("utf-8", "replace").rstrip("\r\n")))
    if inner is None:
        return None
    # Docker's object around a logger's.
    return [innermost for line in inner for innermost in opened(line) or (line,)]


def opened(line: Line) -> Iterator[Line] | None:
    r"""The lines within a line; None where it is an ordinary one.

    Example:
        >>> [inner.text for inner in opened(Line('{"rank": 3, "msg": "ValueError: a\\nb"}')) or ()]
        ['ValueError: a', 'b']
    """
    text = line.text.strip()
    if text[:1] == "{" and text[-1:] == "}" and len(text) <= LONGEST and (document := _document(text)):
        return _of_document(document, line)
    if "\\n" in text and (HEADER in text or _FRAME.search(text)):
        return _of_text(_unescaped(text.lstrip("b\"'")), line, {})
    return None


def _document(text: str) -> dict[str, Any] | None:
    """The object that a line of JSON is; none of Python's own dictionaries, which metrics are printed as."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _of_document(document: dict[str, Any], line: Line) -> Iterator[Line]:
    for text in _texts(document, 0):
        yield from _of_text(text, line, document)


def _texts(value: Any, depth: int) -> Iterator[str]:
    """All texts in a document in its order, with exceptions that come in parts put together."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list) and depth < _DEEPEST:
        for item in value[:_MOST_LINES]:
            yield from _texts(item, depth + 1)
    elif isinstance(value, dict) and depth < _DEEPEST:
        yield from _frames(value.get("frames"))
        kind = next((value[key] for key in _TYPES if isinstance(value.get(key), str)), "")
        said = next((value[key] for key in _VALUES if isinstance(value.get(key), str)), "")
        if kind and said and depth:
            yield f"{kind}: {said}"
        for key, item in value.items():
            if (
                key != "frames"
                and key not in _ABOUT
                and (not depth or key not in {*_TYPES, *_VALUES} or not (kind and said))
            ):
                yield from _texts(item, depth + 1)


def _frames(frames: Any) -> Iterator[str]:
    """The frames that structlog writes as objects, as Python prints them."""
    for frame in frames[:_MOST_LINES] if isinstance(frames, list) else ():
        if isinstance(frame, dict) and isinstance(frame.get("filename"), str):
            yield f'  File "{frame["filename"]}", line {frame.get("lineno", 0)}, in {frame.get("name", "")}'


def _of_text(text: str, line: Line, document: dict[str, Any]) -> Iterator[Line]:
    who = [str(document[key]) for key in (*_WHO, *_RANK) if isinstance(document.get(key), (str, int))]
    rank = next((str(document[key]) for key in _RANK if str(document.get(key, "")).isdigit()), "")
    level = next((document[key].upper() for key in _LEVEL if isinstance(document.get(key), str)), "")
    for part in text.removesuffix("\n").split("\n", _MOST_LINES)[:_MOST_LINES]:
        inner = clean(part)
        stream = "/".join(filter(None, [line.stream, *who, inner.stream]))
        yield Line(inner.text, stream, line.rank or rank or inner.rank, inner.level or level, inner.clocks)


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda match: _ESCAPES.get(match[0], "\x1b"), text)
