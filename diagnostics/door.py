"""Old name of `diagnostics.output.sanitize`; to be removed."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, TextIO

from diagnostics.output import sanitize
from diagnostics.output.redact import mask

Door = sanitize.SanitizedStream
visible = sanitize.escape
line = sanitize.escape_line
behind = sanitize.unwrap
console = sanitize.console
write_commands = sanitize.write_ci_commands


def painting(stream: Any) -> TextIO:
    """Wrap a stream for a caller that escapes its text and adds colours."""
    wrapped: Any = sanitize._ColourStream(sanitize.unwrap(stream))  # noqa: SLF001 - until the old renderers are gone
    made: TextIO = wrapped
    return made


def write_painted(text: str) -> None:
    """Write coloured text of ours to standard output."""
    stream = painting(None or __import__("sys").stdout)
    stream.write(text)
    stream.flush()


def opened() -> AbstractContextManager[None]:
    """Sanitize standard output and standard error."""
    return sanitize.sanitize_stdio(mask)
