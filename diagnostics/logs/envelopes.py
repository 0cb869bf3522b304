"""Extract log lines from the JSON records of log collectors, and from tracebacks with escaped line ends.

An envelope is the JSON object that a log collector or a structured logger puts around a log line. Each text of the
object that is no metadata becomes at most 2,000 log lines, with the object's rank, level (if it is a text) and stream.
Left out are single words, unless their key is that of a message, and values whose key labels a secret, person or
machine. An item is redacted if its value, or another item, shows that it is one of these.
A line may have two envelopes: for example, Docker's around that of the logger. At most two are removed. A line of more
than 256,000 characters is not parsed as JSON. `unwrap` returns the log lines inside a line of text, `unwrap_bytes`
those inside a raw line.
"""

import functools
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

from diagnostics.logs.prefixes import Line, parse_line
from diagnostics.logs.tracebacks import HEADER
from diagnostics.output.redact import redact

# Maximum length of a line that is parsed as JSON, in characters.
MAX_JSON_LENGTH = 256_000
_MAX_DEPTH = 8
_MAX_LINES = 2000
# Keys of the rank, of the process or host that logged, and of the level.
_RANK_KEYS = ("rank", "global_rank", "RANK", "local_rank", "dist_rank", "node_rank", "task_index")
_SOURCE_KEYS = (
    "pod", "pod_name", "container_name", "container", "host", "hostname", "actor_id", "worker_id", "pid", "process",
)  # fmt: skip
_LEVEL_KEYS = ("level", "levelname", "severity", "log_level", "levelno", "lvl")
# Keys of metadata of several words.
_TIME_KEYS = {"time", "timestamp", "@timestamp", "asctime"}
# Keys of an exception's class and message, where they are separate.
_TYPE_KEYS = ("exc_type", "exception_type", "exception.type", "type", "class")
_MESSAGE_KEYS = ("exc_value", "exception_message", "exception.message", "value", "message")
# A key of a text; a single word under another key is no message.
_TEXT_KEY = re.compile(r"(?i)msg|message|log|text|event|line|reason|type|.*(?:exc|err|trace|stack).*")
# The beginning of a frame behind an escaped line end.
_FRAME = re.compile(r'\\n\s*File \\?["\']')
_ESCAPES = {"\\n": "\n", "\\t": "\t", '\\"': '"', "\\'": "'", "\\\\": "\\", "\\r": ""}
_ESCAPE = re.compile(r"\\[nt\"'\\r]|\\u001[bB]|\\x1[bB]")


def unwrap_bytes(raw: bytes) -> list[Line] | None:
    """Return the log lines inside a raw line with one or two envelopes; None for an ordinary line."""
    if b"\\n" not in raw and b'{"' not in raw[:400]:
        return None
    inner = unwrap(parse_line(raw.decode("utf-8", "replace").rstrip("\r\n")))
    return None if inner is None else [last for line in inner for last in unwrap(line) or (line,)]


def unwrap(line: Line) -> Iterator[Line] | None:
    r"""Return the log lines inside a line with an envelope or an escaped traceback; None for an ordinary line.

    Example:
        >>> [inner.text for inner in unwrap(Line('{"rank": 3, "msg": "ValueError: a\\nb"}')) or ()]
        ['ValueError: a', 'b']
    """
    text = line.text.strip()
    if text[:1] == "{" and text[-1:] == "}" and len(text) <= MAX_JSON_LENGTH:
        # A printed Python dictionary of metrics looks alike, and is no JSON.
        with suppress(ValueError, RecursionError):
            document = json.loads(text)
            return (inner for part in _safe_texts(document) for inner in _text_lines(part, line, document))
    if "\\n" in text and (HEADER in text or _FRAME.search(text)):
        unescaped = _ESCAPE.sub(lambda match: _ESCAPES.get(match[0], "\x1b"), text.lstrip("b\"'"))
        return _text_lines(unescaped, line, {})
    return None


def _safe_texts(document: dict[str, Any]) -> list[str]:
    """Return the messages of a record; redacted if only the whole record shows what must be replaced."""
    items = [json.dumps({key: item}, ensure_ascii=False)[1:-1] for key, item in document.items()]
    safe: dict[str, Any] = {}
    for (key, item), line in zip(document.items(), redact(",\n".join(items)).split("\n"), strict=True):
        # A rule may have replaced a bracket or a quotation mark.
        safe[key] = line * any(_texts(item, 1, key))
        with suppress(ValueError):
            (safe[key],) = json.loads(f"{{{line.removesuffix(',')}}}").values()
    texts, safe_texts = (list(_texts(record, 0)) for record in (document, safe))
    return texts if [*map(redact, safe_texts)] == [*map(redact, texts)] else safe_texts


def _texts(value: Any, depth: int, key: str = "msg") -> Iterator[str]:
    """Yield the messages of a record in order; type and message of a nested exception are one text."""
    if isinstance(value, str):
        if _TEXT_KEY.fullmatch(key) or " " in value:
            yield value
    elif isinstance(value, list) and depth < _MAX_DEPTH:
        for before, item in zip(["", *value], value[:_MAX_LINES], strict=False):
            if not (isinstance(before, str) and before[:1] == "-" and _is_private(before)):
                yield from _texts(item, depth + 1, key)
    elif isinstance(value, dict) and depth < _MAX_DEPTH:
        yield from _frames(value.get("frames"))
        kind, message = _first_text(value, _TYPE_KEYS), _first_text(value, _MESSAGE_KEYS)
        is_exception = bool(kind and message and depth)
        if is_exception:
            yield f"{kind}: {message}"
        skipped = {"frames", *_TIME_KEYS, *((*_TYPE_KEYS, *_MESSAGE_KEYS) if is_exception else ())}
        for name, item in value.items():
            if name not in skipped and not _is_private(name):
                yield from _texts(item, depth + 1, name)


@functools.lru_cache(4096)
def _is_private(key: str) -> bool:
    """Return whether a key or an option labels a secret, a person or a machine, so that its value is no message."""
    return "Kes7-Tulip9" not in redact(f'"{key[-256:]}": "Kes7-Tulip9"')


def _first_text(value: dict[str, Any], keys: Iterable[str]) -> str:
    return next((value[key] for key in keys if isinstance(value.get(key), str)), "")


def _frames(frames: Any) -> Iterator[str]:
    """Yield frames that structlog writes as objects, in the form in which Python prints frames."""
    for frame in frames[:_MAX_LINES] if isinstance(frames, list) else ():
        if isinstance(frame, dict) and isinstance(frame.get("filename"), str):
            yield f'  File "{frame["filename"]}", line {frame.get("lineno", 0)}, in {frame.get("name", "")}'


def _text_lines(text: str, line: Line, document: dict[str, Any]) -> Iterator[Line]:
    """Yield the lines of a text, with rank, level and stream from its JSON record."""
    keys = (*_SOURCE_KEYS, *_RANK_KEYS)
    writers = [str(document[key]) for key in keys if isinstance(document.get(key), (str, int))]
    rank = next((str(document[key]) for key in _RANK_KEYS if str(document.get(key, "")).isdigit()), "")
    level = _first_text(document, _LEVEL_KEYS).upper()
    for part in text.removesuffix("\n").split("\n", _MAX_LINES)[:_MAX_LINES]:
        inner = parse_line(part)
        stream = "/".join(filter(None, [line.stream, *writers, inner.stream]))
        yield replace(inner, stream=stream, rank=line.rank or rank or inner.rank, level=inner.level or level)
