r"""Escape control characters and CI workflow commands in printed text; make the streams and consoles that do it.

`sanitize_stdio` sanitizes the standard streams, `escape` a text; `console` makes a console. Control characters are
shown as `\uXXXX` rather than removed, because removing one sequence can create another. JSON reads the escape as the
character again, so a document stays valid. Consoles let their own colours pass; a console that redraws a progress line
lets cursor movements pass, too. `write_ci_commands` lets CI commands pass. After the reader has closed a pipe, output
is dropped.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderResult

# C0 except tab and newline, DEL, C1, soft hyphen, direction marks and overrides, line separators, lone surrogates,
# annotations and tags. Zero-width joiners stay, because names need them.
_INVISIBLE = (
    r"\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    r"\ud800-\udfff\U000e0000-\U000e007f"
)
_COLOUR = r"\x1b\[[0-9;]{0,32}m"
_CONTROL = re.compile(f"[{_INVISIBLE}]")
_CONTROL_OR_NEWLINE = re.compile(f"[{_INVISIBLE}\n]")
_CONTROL_OR_COLOUR = re.compile(f"{_COLOUR}|[{_INVISIBLE}]")
# Rich's cursor movements in a progress line: hide, show, up, erase the line. A carriage return is not escaped either.
_CURSOR = r"\x1b\[\?25[hl]|\x1b\[[0-9]{1,3}A|\x1b\[2K"
_CONTROL_OR_CURSOR = re.compile(rf"{_COLOUR}|{_CURSOR}|(?!\r)[{_INVISIBLE}]")
# `##[error]` (older GitHub) and `##vso[...]` (Azure) are commands anywhere in a line.
_HASH_COMMAND = re.compile(r"##(?=\w{0,32}\[)")
# `::error` is a command at the start of a line, after blanks; a single colon may be continued by the next write.
_COLON_COMMAND = re.compile(rf"(?m)^((?:[^\S\n]|{_COLOUR})*):(?=:|\Z)")
_BLANK = re.compile(rf"(?:\s|{_COLOUR})*")
_TRAILING_BLANKS = re.compile(rf"(?<! ) +((?:{_COLOUR})*)\n")
before_write: Callable[[], None] | None = None
"""Called before anything is written, so that a progress line can be cleared."""


def escape(text: str) -> str:
    r"""Return a text with control characters and `##` commands escaped; SanitizedStream escapes `::` commands.

    >>> escape("\x1b\x1b[m]52;c;aGk=\x07")
    '\\u001b\\u001b[m]52;c;aGk=\\u0007'
    """
    return _HASH_COMMAND.sub(r"#\\u0023", _CONTROL.sub(_escape_match, text))


def escape_line(text: object) -> str:
    r"""Escape a text that must stay one line, such as a file name.

    >>> escape_line("run\n::error::x.log")
    'run\\u000a::error::x.log'
    """
    return _HASH_COMMAND.sub(r"#\\u0023", _CONTROL_OR_NEWLINE.sub(_escape_match, str(text)))


def has_control(text: str) -> bool:
    r"""Return whether a text has a character that must not be in a command; a terminal shows a tab as blanks.

    >>> has_control("a b"), has_control("a\tb")
    (False, True)
    """
    return "\t" in text or escape_line(text) != text


def _escape_match(match: re.Match[str]) -> str:
    result = match[0]
    if len(result) > 1:
        return result  # a colour sequence of ours
    units = result.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


class SanitizedStream:
    """A text stream that escapes what is written; if the reader closes the pipe, further output is dropped.

    Attributes:
        reader_gone: Whether the reader closed the pipe of a sanitized stream of this process.
    """

    reader_gone = False
    _pattern = _CONTROL
    _clears_progress = True

    def __init__(self, inner: TextIO, change: Callable[[str], str] | None = None) -> None:
        """Wrap a stream.

        Args:
            inner: The stream.
            change: Applied first to each text of more than one character, such as masking on standard error.
        """
        self.inner, self._change = inner, change
        self._at_line_start = True

    def write(self, text: str) -> int:
        """Write a text, escaped."""
        if before_write is not None and self._clears_progress:
            before_write()
        changed = self._change(text) if self._change and len(text) > 1 else text
        printed = _HASH_COMMAND.sub(r"#\\u0023", self._pattern.sub(_escape_match, changed))
        head, newline, rest = ("", "", printed) if self._at_line_start else printed.partition("\n")
        _, line_end, last_line = printed.rpartition("\n")
        self._at_line_start = bool((line_end or self._at_line_start) and _BLANK.fullmatch(last_line))
        with self._broken_pipe_ignored():
            self.inner.write(head + newline + _COLON_COMMAND.sub(r"\1\\u003a", rest))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write texts."""
        for text in lines:
            self.write(text)

    def flush(self) -> None:
        """Flush the stream."""
        with self._broken_pipe_ignored():
            self.inner.flush()

    @contextlib.contextmanager
    def _broken_pipe_ignored(self) -> Iterator[None]:
        """Drop further output after the reader (`| head -1`) has closed the pipe; the exit code stays the same."""
        try:
            yield
        except BrokenPipeError:
            SanitizedStream.reader_gone = True
            null_device = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null_device, self.inner.fileno())
            os.close(null_device)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class _ColourStream(SanitizedStream):
    """The stream behind a Rich console: colour sequences pass, trailing blanks of wrapped lines are dropped."""

    _pattern = _CONTROL_OR_COLOUR

    def write(self, text: str) -> int:
        return super().write(_TRAILING_BLANKS.sub(r"\1\n", text))


class _CursorStream(_ColourStream):
    """The stream behind a console that redraws a progress line: cursor movements pass as well."""

    _pattern = _CONTROL_OR_CURSOR
    _clears_progress = False


class _EscapeHook:
    """Rich render hook that escapes the text of each segment, before Rich adds colours."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_Escaped(entry) for entry in renderables]


class _Escaped:
    def __init__(self, inner: ConsoleRenderable) -> None:
        self._inner = inner

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self._inner, options):
            yield segment if segment.control else type(segment)(escape(segment.text), segment.style)


def unwrap(stream: Any) -> TextIO:
    """Return the stream behind a sanitized stream, or the stream itself."""
    inner: TextIO = stream.inner if hasattr(stream, "inner") else stream
    return inner


def console(stream: TextIO | None = None, *, redraws: bool = False, **options: Any) -> Console:
    """Return a Rich console that escapes all text; `diagnostics` creates all its consoles here.

    Args:
        stream: Stream to print on; None for standard output.
        redraws: Whether the console draws progress. Then cursor movements are not escaped, and the caller must escape
            the text of the progress line.
        options: Options of Rich's console.
    """
    # Imported here: 0.15 s that JSON and CI output do not need.
    from rich.console import Console

    options = {"highlight": False, "markup": False, "emoji": False} | options
    # Rich and Python refuse numbers of more than 4,300 digits.
    sizes = {name: os.environ.get(name, "")[:5] for name in ("COLUMNS", "LINES")}
    options["_environ"] = {**os.environ, **sizes}
    stream_type = _CursorStream if redraws else _ColourStream
    target: Any = stream_type(unwrap(sys.stdout if stream is None else stream))
    rich_console = Console(file=target, **options)
    rich_console.push_render_hook(_EscapeHook())  # type: ignore[arg-type]  # has the one method that Rich calls
    return rich_console


def write_ci_commands(text: str) -> None:
    """Write `::` commands, which a CI runner executes, to standard output; the caller must escape their content."""
    if before_write is not None:
        before_write()
    unwrap(sys.stdout).write(escape(text) + "\n")


@contextlib.contextmanager
def sanitize_stdio(mask: Callable[[str], str] | None = None) -> Iterator[None]:
    """Sanitize standard output and standard error within the context.

    Args:
        mask: Applied to the text on standard error, because error messages repeat arguments.
    """
    before = sys.stdout, sys.stderr
    out, errors = (unwrap(stream) or io.StringIO() for stream in before)  # None if closed before we started
    sys.stdout, sys.stderr = SanitizedStream(out), SanitizedStream(errors, mask)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # a full disk: Python reports it at exit
            sys.stdout.flush()
            sys.stderr.flush()
        sys.stdout, sys.stderr = before
