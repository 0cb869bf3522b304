"""The door out: all that is printed passes it, so that nothing of what was read acts on a terminal or a CI runner.

What a text holds besides letters is shown, never obeyed and never dropped: dropping one sequence can make another of
what stood around it, and an escape that is spelled out is read by nobody. An escape is written as JSON writes it, so
that a document stays one.
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
    from types import TracebackType

    from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderResult

# C0 but tab and newline, DEL, C1; soft hyphen, Mongolian's and Arabic's marks; zero width joiners stay (names need
# them), marks and overrides of direction don't; line separators; surrogates, which no stream can encode; annotations
# and tags, which nobody sees.
_UNSEEN = (
    r"\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    r"\ud800-\udfff\U000e0000-\U000e007f"
)
_HIDDEN = re.compile(f"[{_UNSEEN}]")
_HIDDEN_OR_NEWLINE = re.compile(f"[{_UNSEEN}\n]")
_COLOURED = re.compile(rf"\x1b\[[0-9;]{{0,32}}m|[{_UNSEEN}]")
# `##[error]` of GitHub's older commands and `##vso[...]` of Azure's are obeyed wherever they stand in a line.
_MARKED = re.compile(r"##(?=\w{0,32}\[)")
# `::error` is obeyed where nothing but blanks stands before it. What ends in one colon may be gone on with.
_COMMAND = re.compile(r"(?m)^((?:[^\S\n]|\x1b\[[0-9;]{0,32}m)*):(?=:|\Z)")
_ENDING = re.compile(r"(?<! ) +((?:\x1b\[[0-9;]{0,32}m)*)\n")
# Called before anything is written: what was drawn at the end of a terminal gives way to it.
before_words: Callable[[], None] | None = None
_BLANK = re.compile(r"(?:\s|\x1b\[[0-9;]{0,32}m)*")


def visible(text: str) -> str:
    r"""The text with everything that isn't seen, or that a CI runner would obey, spelled out.

    >>> visible("\x1b\x1b[m]52;c;aGk=\x07")
    '\\u001b\\u001b[m]52;c;aGk=\\u0007'
    """
    return _MARKED.sub(r"#\\u0023", _HIDDEN.sub(_escape, text))


def line(text: object) -> str:
    r"""The same of what is one line, as the name of a file: a line break is spelled out, too.

    >>> line("run\n::error::x.log")
    'run\\u000a::error::x.log'
    """
    return _MARKED.sub(r"#\\u0023", _HIDDEN_OR_NEWLINE.sub(_escape, str(text)))


def _escape(match: re.Match[str]) -> str:
    found = match[0]
    if len(found) > 1:
        return found  # a colour of our own
    number = ord(found)
    if number < 0x10000:
        return f"\\u{number:04x}"
    number -= 0x10000
    return f"\\u{0xD800 + (number >> 10):04x}\\u{0xDC00 + (number & 0x3FF):04x}"


class Door:
    """A text stream through which nothing passes that acts.

    Attributes:
        inner: The stream behind it.
        unread: Whether somebody stopped reading what one of them told.
    """

    unread = False
    _hidden = _HIDDEN

    def __init__(self, inner: TextIO) -> None:
        self.inner = inner
        self._fresh = True

    def write(self, text: str) -> int:
        """Writes a text, made visible; a line of it that a CI runner would take for a command is none any more."""
        if before_words is not None:
            before_words()
        shown = _MARKED.sub(r"#\\u0023", self._hidden.sub(_escape, text))
        head, newline, rest = ("", "", shown) if self._fresh else shown.partition("\n")
        told = head + newline + (_COMMAND.sub(r"\1\\u003a", rest) if self._fresh or newline else rest)
        _, broken, tail = shown.rpartition("\n")
        if shown:
            self._fresh = bool((broken or self._fresh) and _BLANK.fullmatch(tail))
        with self._unread():
            self.inner.write(told)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Writes texts."""
        for text in lines:
            self.write(text)

    def flush(self) -> None:
        """Hands on what was written."""
        with self._unread():
            self.inner.flush()

    @contextlib.contextmanager
    def _unread(self) -> Iterator[None]:
        """Where nobody reads any more, as behind `| head -1`, the rest goes nowhere; the exit code is the answer's."""
        try:
            yield
        except BrokenPipeError:
            Door.unread = True
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.inner.fileno())
            os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class _Errors(Door):
    """The same for standard error, where a refusal repeats what it was given: without the secrets in it."""

    def write(self, text: str) -> int:
        """Writes a text."""
        # Late: an answer without a refusal needs none of it.
        from diagnostics.collect.secrets import mask

        super().write(mask(text) if len(text) > 1 else text)
        return len(text)


class _Painted(Door):
    """The same for a console that paints: its text was made visible before the colours came to it."""

    _hidden = _COLOURED

    def write(self, text: str) -> int:
        """Writes a text; the blanks at which a line was wrapped are not copied along with it."""
        return super().write(_ENDING.sub(r"\1\n", text))


class _Shown:
    """What a console is about to print, with its text made visible; its colours and movements stay."""

    def __init__(self, inner: ConsoleRenderable) -> None:
        self._inner = inner

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self._inner, options):
            yield segment if segment.control else type(segment)(visible(segment.text), segment.style)


class _Hook:
    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """As Rich asks for it before it prints."""
        return [_Shown(one) for one in renderables]


def behind(stream: Any) -> TextIO:
    """The stream itself, where this is a door to it."""
    inner: TextIO = stream.inner if isinstance(stream, Door) else stream
    return inner


def console(stream: TextIO, **options: Any) -> Console:
    """A console of Rich's whose colours are its own: every console there is, is made here."""
    # Late: who asks for JSON needs none of it.
    from rich.console import Console

    made = Console(file=_Painted(behind(stream)), **options)  # type: ignore[arg-type]  # what it uses, it has
    made.push_render_hook(_Hook())  # type: ignore[arg-type]  # the same
    return made


def painting(stream: Any) -> TextIO:
    """A stream for what paints its own text, after it made that visible: its colours pass."""
    painted: Any = _Painted(behind(stream))
    made: TextIO = painted
    return made


def write_commands(text: str) -> None:
    """Writes lines that a CI runner is meant to obey, to standard output; what stands in them is visible."""
    if before_words is not None:
        before_words()
    stream = behind(sys.stdout)
    stream.write(visible(text) + "\n")


def write_painted(text: str) -> None:
    """Writes what a console of ours has painted, to standard output."""
    _Painted(behind(sys.stdout)).write(text)
    sys.stdout.flush()


@contextlib.contextmanager
def opened() -> Iterator[None]:
    """Puts both standard streams behind doors; what Python says of an error that nobody caught passes one, too."""
    before = sys.stdout, sys.stderr
    # None where the stream was closed before we began.
    out, errors = (behind(stream) or io.StringIO() for stream in before)
    sys.stdout, sys.stderr = Door(out), _Errors(errors)
    try:
        yield
    except Exception:
        sys.excepthook = _told
        raise
    finally:
        with contextlib.suppress(OSError):  # a full disk: said at the end, by Python
            sys.stdout.flush()
            sys.stderr.flush()
        sys.stdout, sys.stderr = before


def _told(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    import traceback

    stream = _Errors(behind(sys.stderr))
    stream.writelines(traceback.format_exception(kind, error, trace))
    stream.flush()
