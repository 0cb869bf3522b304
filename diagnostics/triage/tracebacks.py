"""Tracebacks put together again, line by line, also where several ranks print at once."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from diagnostics.output import redact

if TYPE_CHECKING:
    from diagnostics.triage.reading.prefixes import Line

HEADER = "Traceback (most recent call last)"
FRAME = '  File "'
_IN_FRAME = re.compile(
    r'\s*(?:> ?)?File "(?P<path>[^"]{1,600})", line \d+(?:, in (?P<function>.{1,200}))?'
    # IPython: File /opt/run/a.py:7, in f(x); before 8.0 /opt/run/a.py in f(x)
    r"|\s*File (?P<cell_path>[^\s:]{1,600}):\d+,? in (?P<cell_function>[\w.<>]{1,200})"
    r"|(?P<old_path>[/~][^\s:]{1,600}\.py|<ipython-input-[^>\s]{1,80}>) in (?P<old_function>[\w.<>]{1,200})"
    # rich: │ /opt/run/a.py:7 in f   │, or with the function in the next line
    r"|[│|] (?P<box_path>\S{1,600}\.py):\d+ in(?: (?P<box_function>[\w.<>]{1,200})| *[│|]?$)"
)
_TYPE = r"[A-Za-z_]\w*(?:\.[\w<>]+)*"
_EXCEPTION = re.compile(rf"(?P<type>{_TYPE})(?:\((?P<inner>{_TYPE})\))?(?P<colon>:)? ?(?P<message>.*)")
# What a class of exceptions is called: a capital, or one of the old ones of the standard library.
_NAMED = re.compile(r"(?:.*\.)?(?:_*[A-Z]\w*|\w*(?:error|timeout|exception))")
_HEADLESS = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Timeout|Iteration)\b")
# A file and a line, or a progress bar, after a colon: no message of an exception.
_NO_MESSAGE = re.compile(r"\d+(?::|%\|)| *\d+%\|")
# The margin in which groups of exceptions are printed.
_MARGIN = re.compile(r"\s+[|+] ")
# How a box begins, also where it is drawn without Unicode.
_LIDS = ("╭", "+--")
BOX = "│╭╰┃❱"
CHAIN = ("During handling of the above exception", "The above exception was the direct cause")
# So many further lines of the log may pass before an unfinished traceback is given up.
PATIENCE = 400
_MOST_FRAMES = 200
_FRAME_INDENT = 2
# So many tracebacks may be open at once; more streams than that are no ranks.
_MOST_OPEN = 20_000
# A message may go on for so many lines after that of the exception.
_MESSAGE = 8


@dataclass
class Traceback:
    """One exception of a chain.

    Attributes:
        line: The number of its first line.
        end: The number of the line with the exception, 0 while that has not come.
        link: How many exceptions of its chain stand before it: 0 is the first cause.
        frames: (path, function), the outermost first.
        ignored: Python printed it because nobody could catch it, and went on.
        indent: How far all of it is indented, as code is in Markdown.
        record: Level and times of day before its first line.
        headed: It has its head, and not frames alone, which a program may print that goes well.
        source: The line of code below its last frame.
        boxed: rich printed it in a box, whose message is broken at the width of the terminal.
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
    def shape(self) -> tuple[str, tuple[tuple[str, str], ...]]:
        """What repeats when the same thing happens again: the type and the frames, without lines and values."""
        return self.type, tuple((short_path(path), function) for path, function in self.frames)


@functools.lru_cache(maxsize=4096)
def short_path(path: str) -> str:
    """A path from its package on, so that environments agree.

    Example:
        >>> short_path("/opt/env/lib/python3.12/site-packages/vllm/v1/engine/core.py")
        'vllm/v1/engine/core.py'
    """
    for mark in ("site-packages/", "dist-packages/"):
        if mark in path:
            return path.rpartition(mark)[2]
    # A user's name is told by the folder before it, which is about to be cut off.
    parts = redact.redact_path(path).split("/")
    if "python3." in path:
        return parts[-1]
    return "/".join(parts[-2:])


class Assembler:
    """Takes lines and gives back tracebacks as they end."""

    def __init__(self) -> None:
        self.open: dict[str, Traceback] = {}
        self._links: dict[str, tuple[int, int]] = {}
        self._ended: dict[str, Traceback] = {}

    def before(self, stream: str, number: int) -> Traceback | None:
        """The traceback to whose message a line may belong, since it ended a few lines before."""
        traceback = self._ended.get(stream)
        return traceback if traceback and number - traceback.end <= _MESSAGE else None

    def take(self, line: Line, number: int) -> Traceback | None:
        """Takes a line; returns the traceback to which it belongs, which has ended if its `end` is this line."""
        text, stream = line.text, line.stream
        traceback = self.open.get(stream)
        if traceback and traceback.indent and text[: traceback.indent].isspace():
            text = text[traceback.indent :]
        margin = _MARGIN.match(text)
        text = text[margin.end() :] if margin else text
        if HEADER in text:
            bare = line.text.lstrip()
            return self._begun(
                line, number, len(line.text) - len(bare) if bare.startswith((HEADER, *_LIDS)) else 0
            )
        if text.startswith(CHAIN):
            self._links[stream] = (self._links.get(stream, (0, 0))[0], number)
            return None
        frame = _IN_FRAME.match(text)
        if frame and (traceback or frame["path"]):
            # The head was cut off, or Ray printed the frames of a task without one.
            traceback = traceback or self._begun(line, number, 0, headed=False)
            traceback.last_seen, traceback.source = number, ""
            if not traceback.frames and frame["path"] and not margin:
                traceback.indent = max(
                    traceback.indent, len(line.text) - len(line.text.lstrip()) - _FRAME_INDENT, 0
                )
            if len(traceback.frames) < _MOST_FRAMES:
                traceback.frames.append(_two(frame))
            return traceback
        return self._inside(traceback, text, line, number) if traceback else None

    def _begun(self, line: Line, number: int, indent: int, *, headed: bool = True) -> Traceback:
        if len(self.open) >= _MOST_OPEN:
            self.open.clear()
        traceback = Traceback(
            line.stream, line.rank, number, link=self._link(line.stream, number), last_seen=number, indent=indent,
            record=(line.level, line.clocks), boxed=line.text.lstrip().startswith(_LIDS),
            headed=headed,
        )  # fmt: skip
        self.open[line.stream] = traceback
        return traceback

    def _inside(self, traceback: Traceback, text: str, line: Line, number: int) -> Traceback | None:
        if number - traceback.last_seen > PATIENCE:
            del self.open[traceback.stream]
            return None
        level, clocks = traceback.record
        if line.level not in {"", level} or line.clocks > clocks:
            # A record of a logger's own, between the lines of the traceback.
            return None
        if not text or text[0] in " \t|+^~" or text[0] in BOX:
            traceback.source = text or traceback.source
            return traceback if text else None
        match = _EXCEPTION.fullmatch(text)
        if match is None or not _is_exception(match, traceback.source):
            return None
        traceback.type = match["inner"] or match["type"]
        traceback.message = match["message"][:600]
        traceback.end = number
        del self.open[traceback.stream]
        self._ended[traceback.stream] = traceback
        self._links[traceback.stream] = (traceback.link, 0)
        return traceback

    def _link(self, stream: str, number: int) -> int:
        before, marked = self._links.get(stream, (0, 0))
        return before + 1 if marked and number - marked < PATIENCE else 0


def _two(frame: re.Match[str]) -> tuple[str, str]:
    """Path and function of a frame, in whichever of the formats it is printed."""
    groups = frame.groups()
    return next(
        (path, function or "")
        for path, function in zip(groups[::2], groups[1::2], strict=True)
        if path is not None
    )


def _is_exception(match: re.Match[str], source: str) -> bool:
    """Whether a line of an open traceback is the one with the exception; `source` is the line before it."""
    if match["type"].endswith("Warning") and "warn" not in source.lower():
        # Somebody's warning, printed between the lines.
        return False
    if not _NAMED.fullmatch(match["type"]) or _NO_MESSAGE.match(match["message"]):
        return False
    return bool(
        match["colon"] or _HEADLESS.match(match["type"]) or (not match["message"] and "." in match["type"])
    )
