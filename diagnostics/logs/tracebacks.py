"""Parse tracebacks line by line, even if several ranks print at the same time.

`TracebackParser` reads the formats of Python, IPython and rich, with one open traceback for each stream of lines.
`exception_of` returns the class of a message that was printed without it; `short_path` shortens a path.
"""

import functools
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from diagnostics.logs.prefixes import Line
from diagnostics.output import redact

HEADER = "Traceback (most recent call last)"
_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_FRAME = re.compile("|".join(_TABLE["frames"]))
_TYPE = r"[A-Za-z_]\w*(?:\.[\w<>]+)*"
_EXCEPTION = re.compile(rf"(?P<type>{_TYPE})(?:\((?P<inner>{_TYPE})\))?(?P<colon>:)? ?(?P<message>.*)")
# Beginning of a message that the patterns below read; they take quadratic time.
_MAX_CLASS_TEXT = 300
_MESSAGES = [(name, re.compile(pattern)) for name, pattern in _TABLE["messages"].items()]
# Names of exception classes: capitalised, or one of the standard library's old names.
_EXCEPTION_CLASS = re.compile(r"(?:.*\.)?(?:_*[A-Z]\w*|\w*(?:error|timeout|exception))")
# An exception that may be printed without a message.
_WITHOUT_MESSAGE = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Timeout|Iteration)\b")
# Text after a colon that is no message of an exception: the line number of a file, or a progress bar.
_NOT_A_MESSAGE = re.compile(r"\d+(?::|%\|)| *\d+%\|")
# The margin in which groups of exceptions are printed.
_MARGIN = re.compile(r"\s+[|+] ")
# A person wrote this line in place of frames.
_CUT = re.compile(
    r"\W*(?:\.{3,}|\u2026)(?:[\w ]*\W+)?|\W*(?:\w+ ){0,3}(?:omitted|truncated|snip(?:ped)?|skipped)\W*"
)
_MAX_CUT_TEXT = 200
# IPython's mark of the line that failed, and the lines around it.
_FAILED_LINE, _LINE_AROUND = re.compile(r"-+> ?\d+ "), re.compile(r" +\d+ ")
# Beginning of rich's box around a traceback, also without Unicode.
_BOX_TOPS = ("╭", "+--")
# Characters of such a box.
BOX = "│╭╰┃❱"
# Lines between the tracebacks of chained exceptions.
CHAIN_LINES = ("During handling of the above exception", "The above exception was the direct cause")
# An unfinished traceback is dropped after this number of log lines without one of its frames.
MAX_GAP = 400
_MAX_FRAMES = 200
_FRAME_INDENT = 2
# Maximum number of open tracebacks, one per stream; no run has so many ranks.
_MAX_OPEN = 20_000
# A message may continue for this number of lines after the line of the exception.
_MAX_MESSAGE_LINES = 8


@dataclass
class Traceback:
    """A traceback with its exception, complete or still open; the exception may be part of a chain.

    Attributes:
        stream: Writer of the lines; see `Line.stream`.
        rank: Rank in the prefixes; empty if unknown.
        line: Number of the first line.
        end: Number of the line with the exception; 0 while the traceback is open.
        link: Number of earlier exceptions in the chain; 0 for the first cause.
        frames: (path, function) of each frame, outermost first; at most 200.
        type: Class of the exception, with its module if printed; empty while the traceback is open.
        message: Message of the exception; at most 4,096 characters.
        last_seen: Number of the last line with a frame or the header.
        ignored: Whether Python printed "Exception ignored in" and went on.
        indent: Indentation of the whole traceback in spaces, as in a code block of Markdown.
        record: (level, number of timestamps) of the first line; see `Line`.
        headed: Whether there is a line "Traceback (most recent call last)"; a healthy program may print frames without
            this line.
        source: The source line below the last frame.
        boxed: Whether rich printed the traceback in a box, which wraps the message at the width of the terminal.
    """

    stream: str
    rank: str
    line: int
    end: int = 0
    link: int = 0
    frames: list[tuple[str, str]] = field(default_factory=list)
    type: str = ""
    message: str = ""
    last_seen: int = 0
    ignored: bool = False
    indent: int = 0
    record: tuple[str, int] = ("", 0)
    boxed: bool = False
    source: str = ""
    headed: bool = True

    @property
    def is_cut(self) -> bool:
        """Whether the frames before the exception are cut off."""
        return _is_in_place_of_frames(self.source)

    @property
    def shape(self) -> tuple[str, tuple[tuple[str, str], ...]]:
        """The exception's type and the frames without line numbers, to recognise a repeated failure."""
        return self.type, tuple((short_path(path), function) for path, function in self.frames)


@functools.lru_cache(maxsize=4096)
def short_path(path: str) -> str:
    """Return the end of a path: the part below site-packages; the name of a module of Python; else two redacted parts.

    Example:
        >>> short_path("/opt/env/lib/python3.12/site-packages/vllm/v1/engine/core.py")
        'vllm/v1/engine/core.py'
    """
    path = redact.mask(path) if " " in path else path
    for mark in ("site-packages/", "dist-packages/"):
        if mark in path:
            return path.rpartition(mark)[2]
    # redact_path recognizes a user name by the folder before it, so it runs before that folder is cut.
    parts = redact.redact_path(path).split("/")
    if "python3." in path:
        return parts[-1]
    return "/".join(parts[-2:])


class TracebackParser:
    """Assembles tracebacks from lines, with one open traceback per stream.

    Attributes:
        open: The open traceback of each stream.
    """

    def __init__(self) -> None:
        self.open: dict[str, Traceback] = {}
        self._links: dict[str, tuple[int, int]] = {}
        self._ended: dict[str, Traceback] = {}

    def ended_before(self, stream: str, number: int) -> Traceback | None:
        """Return the traceback of a stream that ended at most 8 lines before; None if there is none.

        The line with this number may continue its message.
        """
        traceback = self._ended.get(stream)
        return traceback if traceback and number - traceback.end <= _MAX_MESSAGE_LINES else None

    def add_line(self, line: Line, number: int) -> Traceback | None:
        """Add a line, and return the traceback to which it belongs; None if it belongs to none.

        The traceback is complete if its `end` is `number`.
        """
        text, stream = line.text, line.stream
        traceback = self.open.get(stream)
        if traceback and traceback.indent and text[: traceback.indent].isspace():
            text = text[traceback.indent :]
        margin = _MARGIN.match(text)
        text = text[margin.end() :] if margin else text
        if HEADER in text:
            stripped = line.text.lstrip()
            indented = len(line.text) - len(stripped) if stripped.startswith((HEADER, *_BOX_TOPS)) else 0
            return self._open(line, number, indented)
        if text.startswith(CHAIN_LINES):
            self._links[stream] = (self._links.get(stream, (0, 0))[0], number)
            return None
        frame = _FRAME.match(text)
        if frame and (traceback or frame["path"]):
            # The traceback has no header: it was cut off, or Ray printed the frames of a task without a header.
            traceback = traceback or self._open(line, number, 0, headed=False)
            traceback.last_seen, traceback.source = number, ""
            if not traceback.frames and frame["path"] and not margin:
                indent = len(line.text) - len(line.text.lstrip()) - _FRAME_INDENT
                traceback.indent = max(traceback.indent, indent, 0)
            if len(traceback.frames) < _MAX_FRAMES:
                traceback.frames.append(_path_and_function(frame))
            return traceback
        return self._add_inner_line(traceback, text, line, number) if traceback else None

    def _open(self, line: Line, number: int, indent: int, *, headed: bool = True) -> Traceback:
        if len(self.open) >= _MAX_OPEN:
            self.open.clear()
        traceback = Traceback(
            line.stream,
            line.rank,
            number,
            link=self._chain_link(line.stream, number),
            last_seen=number,
            indent=indent,
            record=(line.level, line.clocks),
            boxed=line.text.lstrip().startswith(_BOX_TOPS),
            headed=headed,
        )
        self.open[line.stream] = traceback
        return traceback

    def _add_inner_line(self, traceback: Traceback, text: str, line: Line, number: int) -> Traceback | None:
        """Add a line between frames, or the exception that ends the traceback; None if the line is not part of it."""
        if number - traceback.last_seen > MAX_GAP:
            del self.open[traceback.stream]
            return None
        level, clocks = traceback.record
        if line.level not in {"", level} or line.clocks > clocks:
            # Another log record is between the lines of the traceback.
            return None
        failed_line, is_cut = _FAILED_LINE.match(text), _is_in_place_of_frames(text)
        if not text or is_cut or failed_line or text[0] in " \t|+^~" or text[0] in BOX:
            # Below the source line Python may mark a part of it.
            if text.strip(" ^~") and not _LINE_AROUND.match(text):
                traceback.source = text[failed_line.end() :] if failed_line else text
            return traceback if text else None
        match = _EXCEPTION.fullmatch(text)
        if match and _is_exception(match, traceback.source):
            traceback.type, message = match["inner"] or match["type"], match["message"]
        else:
            traceback.type, message = exception_of(text), text
        if not traceback.type:
            return None
        traceback.message = redact.truncate(message, 4096)
        traceback.end = number
        del self.open[traceback.stream]
        self._ended[traceback.stream] = traceback
        self._links[traceback.stream] = (traceback.link, 0)
        return traceback

    def _chain_link(self, stream: str, number: int) -> int:
        link, marked = self._links.get(stream, (0, 0))
        return link + 1 if marked and number - marked < MAX_GAP else 0


def exception_of(message: str) -> str:
    """Return the exception class of a message that was printed without it; '' for any other text.

    The messages are those about missing names and wrong arguments.

    >>> exception_of("No module named 'trl.extras'"), exception_of("step 3")
    ('ModuleNotFoundError', '')
    """
    return next((name for name, pattern in _MESSAGES if pattern.match(message[:_MAX_CLASS_TEXT])), "")


def _is_in_place_of_frames(text: str) -> bool:
    return len(text) <= _MAX_CUT_TEXT and bool(_CUT.fullmatch(text))


def _path_and_function(frame: re.Match[str]) -> tuple[str, str]:
    """Return path and function of a frame, in any of the printed formats."""
    groups = frame.groups()
    pairs = zip(groups[::2], groups[1::2], strict=True)
    return next((path, function or "") for path, function in pairs if path is not None)


def _is_exception(match: re.Match[str], source: str) -> bool:
    """Return whether a line of an open traceback has the exception; `source` is the last source line."""
    if match["type"].endswith("Warning") and "warn" not in source.lower():
        # A warning is printed between the lines of the traceback.
        return False
    if not _EXCEPTION_CLASS.fullmatch(match["type"]) or _NOT_A_MESSAGE.match(match["message"]):
        return False
    if match["colon"] or _WITHOUT_MESSAGE.match(match["type"]):
        return True
    return not match["message"] and "." in match["type"]
