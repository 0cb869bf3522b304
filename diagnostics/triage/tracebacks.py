"""Tracebacks put together again, line by line, also where several ranks print at once."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

HEADER = "Traceback (most recent call last)"
FRAME = '  File "'
_IN_FRAME = re.compile(r'\s*File "(?P<path>[^"]{1,600})", line \d+(?:, in (?P<function>.{1,200}))?')
_TYPE = r"[A-Za-z_]\w*(?:\.[\w<>]+)*"
_EXCEPTION = re.compile(rf"(?P<type>{_TYPE})(?:\((?P<inner>{_TYPE})\))?(?P<colon>:)? ?(?P<message>.*)")
_HEADLESS = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Timeout)\b")
# The margin in which groups of exceptions are printed.
_MARGIN = re.compile(r"\s+[|+] ")
_CHAIN = ("During handling of the above exception", "The above exception was the direct cause")
# So many further lines of the log may pass before an unfinished traceback is given up.
PATIENCE = 400
_MOST_FRAMES = 200
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

    @property
    def shape(self) -> tuple[str, tuple[tuple[str, str], ...]]:
        """What repeats when the same thing happens again: the type and the frames, without lines and values."""
        return self.type, tuple((short_path(path), function) for path, function in self.frames)


def short_path(path: str) -> str:
    """A path from its package on, so that environments agree.

    Example:
        >>> short_path("/opt/env/lib/python3.12/site-packages/vllm/v1/engine/core.py")
        'vllm/v1/engine/core.py'
    """
    for mark in ("site-packages/", "dist-packages/"):
        if mark in path:
            return path.rpartition(mark)[2]
    parts = path.split("/")
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

    def take(self, text: str, stream: str, rank: str, number: int) -> Traceback | None:
        """Takes a line; returns the traceback to which it belongs, which has ended if its `end` is this line."""
        if margin := _MARGIN.match(text):
            text = text[margin.end() :]
        if HEADER in text:
            self.open[stream] = Traceback(
                stream, rank, number, link=self._link(stream, number), last_seen=number
            )
            return self.open[stream]
        if text.startswith(_CHAIN):
            self._links[stream] = (self._links.get(stream, (0, 0))[0], number)
            return None
        frame = _IN_FRAME.match(text)
        traceback = self.open.get(stream)
        if frame:
            if traceback is None:
                # The head was cut off, or Ray printed the frames of a task without one.
                traceback = Traceback(stream, rank, number, link=self._link(stream, number))
                if len(self.open) >= _MOST_OPEN:
                    self.open.clear()
                self.open[stream] = traceback
            traceback.last_seen = number
            if len(traceback.frames) < _MOST_FRAMES:
                traceback.frames.append((frame["path"], frame["function"] or ""))
            return traceback
        return self._inside(traceback, text, number) if traceback else None

    def _inside(self, traceback: Traceback, text: str, number: int) -> Traceback | None:
        if number - traceback.last_seen > PATIENCE:
            del self.open[traceback.stream]
            return None
        if not text or text[0] in " \t|+^~":
            return traceback if text else None
        match = _EXCEPTION.fullmatch(text)
        if match is None or not (match["colon"] or not match["message"] or _HEADLESS.match(text)):
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
