"""What stands before the message in a line of a log: time, rank, actor, level. Taken off, and remembered."""

from __future__ import annotations

import re
from dataclasses import dataclass

_ANSI = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)?|[@-Z\\^_])")
_REPEATED = re.compile(r" ?\[repeated \d+x across cluster\].*$")
_LEVELS = r"(?:TRACE|DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL|FATAL)"
_CLOCK = r"\d{1,2}:\d\d:\d\d(?:[.,]\d+)?"
# One space at the most is taken with each: what is further indented belongs to a traceback.
_PREFIX = re.compile(
    "|".join(
        (
            # 2026-01-31T10:00:00.123+01:00 and its relatives
            rf"\[?\d{{4}}[-/]\d\d[-/]\d\d[T ]{_CLOCK}(?:Z|[+-]\d\d:?\d\d)?\]?(?: - | ?:?)",
            rf"\[?{_CLOCK}\]? ",
            # (WorkerDict pid=17, ip=10.0.0.1) of Ray, (EngineCore_DP0 pid=17) of vLLM
            r"\((?P<actor>[A-Za-z_][\w .:<>-]{0,80}?)? ?pid=(?P<pid>\d+)(?:, ip=[\w.:]+)?\) ?",
            r"\[rank(?P<rank>\d+)\]:? ?",
            r"\[(?:[A-Za-z_]\w{0,30})?(?P<torchrun>\d{1,5})\]: ?",
            r"\[\d+,(?P<mpi>\d+)\]<std(?:out|err)>: ?",
            # ERROR 01-31 10:00:00 [core.py:708] of vLLM, with and without the brackets
            rf"{_LEVELS} \d\d-\d\d {_CLOCK} (?:\[[\w./]+:\d+\]|[\w./]+:\d+\]) ?",
            # [E131 10:00:00.123 ProcessGroupNCCL.cpp:607] of PyTorch, E0131 … of glog
            rf"\[?[EWIF]\d{{3,4}} {_CLOCK} (?:\d+ )?[\w./]+:\d+\] ?",
            rf"\[{_LEVELS}[:|][^\]]{{0,80}}\](?: >>)? ?",
            rf"\[{_LEVELS}\] ?",
            rf"{_LEVELS}(?::[\w.]{{1,60}}: ?| - |: ?)",
            r"\[pod/[^\]]{1,120}\] ",
            r"(?P<container>[\w.-]{1,60}-\d+) +\| ?",
            rf"[A-Z][a-z]{{2}} [ \d]\d {_CLOCK} [\w.-]+ [\w./-]+\[\d+\]: ",
            # pdsh, under DeepSpeed's launcher
            r"\d{1,3}(?:\.\d{1,3}){3}: ",
            r"(?P<srun>\d{1,4}): ",
        )
    )
)
_TENSOR_PARALLEL = re.compile(r"(?:_TP|TP|rank[_ ]?)(\d+)")
_MOST_PREFIXES = 6


@dataclass(frozen=True)
class Line:
    """A line without what was before its message.

    Attributes:
        text: The message, with its indentation.
        stream: Names who wrote it, by the prefixes; lines of one traceback share it.
        rank: The rank in the prefixes, or an empty string.
        error: A prefix says error or worse.
    """

    text: str
    stream: str
    rank: str
    error: bool


def clean(raw: str) -> Line:
    """Takes prefixes, terminal codes and carriage returns off a line."""
    text = _ANSI.sub("", raw) if "\x1b" in raw else raw
    if "\r" in text:
        # What a terminal would show is what came after the last return; a progress bar is before it.
        text = next((part for part in reversed(text.split("\r")) if part.strip()), "")
    if "[repeated " in text:
        text = _REPEATED.sub("", text)
    stream, rank, error, start = [], "", False, 0
    for _ in range(_MOST_PREFIXES):
        match = _PREFIX.match(text, start)
        if match is None or match.end() == start:
            break
        start = match.end()
        found = match.groupdict()
        if found["pid"]:
            stream.append(f"{found['actor'] or ''}:{found['pid']}")
            inner = _TENSOR_PARALLEL.search(found["actor"] or "")
            rank = rank or (inner[1] if inner else "")
        if found["container"]:
            stream.append(found["container"])
        of_prefix = found["rank"] or found["torchrun"] or found["mpi"] or found["srun"]
        if of_prefix:
            stream.append(of_prefix)
            rank = rank or of_prefix
        error = error or "ERROR" in match[0] or "CRITICAL" in match[0] or "FATAL" in match[0]
    return Line(text[start:].rstrip(), "/".join(stream), rank, error)
