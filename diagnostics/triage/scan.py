"""Scan a log in one pass, in bounded memory and in time linear in its size.

Whole blocks are searched for anchors: texts that a line of interest must contain (see `rules.py`). Only lines with an
anchor, and those of tracebacks and of torchrun's table, are checked one by one, by a `FactCollector`. Lines of the
prompts and responses that verl prints are skipped. The processor time for one log is limited.
"""

import re

from diagnostics.cpu_limit import MB, CpuLimitError, cpu_limit
from diagnostics.logs import envelopes
from diagnostics.logs.prefixes import parse_line
from diagnostics.output import progress
from diagnostics.triage.fact_collector import FactCollector
from diagnostics.triage.log_end import TAIL
from diagnostics.triage.log_facts import CONTEXT, LogFacts, context
from diagnostics.triage.log_reader import OVERLAP, SOURCES, LogSource, SourceError
from diagnostics.triage.rules import AnchorSearch, Rules

# Number of bytes of a long line that are read before an anchor; after it, twice as many.
_WINDOW = 4096
# Limits of processor time: for a log from a pipe, for one in a file, and in addition for each megabyte of the file,
# which may be compressed. An ordinary log needs 0.1 s for a megabyte.
_PIPE_S, _LOG_S, _FILE_MB_S = 600.0, 10.0, 30.0
# Number of the log's first bytes that are kept, for metrics and for what is read after the scan.
HEAD = 1 << 16
# A progress bar overwrites its line; this number of its last states is read.
_MAX_BAR_STATES = 20
# verl prints a prompt, the response, and then the score, each over many lines.
_SAMPLE = re.compile(rb"(?:^|\n)([^\n]{0,80}?pid=[^\n]{1,60}?)\[(?:(prompt|response)|ground_truth|score)\]")
_SAMPLE_CONTEXT = 1 << 13
# The rank in the name of a file.
_RANK_FILE = re.compile(SOURCES["rank_file"])


def scan(source: LogSource, rules: Rules) -> LogFacts:
    """Read a log once and return its facts; if reading fails, return the facts so far and the problem."""
    progress.update(f"reading {source.name}")
    match = _RANK_FILE.search(source.name)
    log = LogFacts(source.name, next(filter(None, match.groups()), "") if match else "")
    scanner = _BlockScanner(log, rules)
    try:
        with cpu_limit(f"{source.name}: reading it", _time_limit(source)):
            for block in source.blocks():
                scanner.scan_block(block)
                log.head = log.head or block[:HEAD]
                log.tail = (log.tail + block[-TAIL:])[-TAIL:]
    except SourceError as error:
        log.problem = str(error)
    except CpuLimitError as error:
        log.problem = f"{error}; read to line {scanner.number}"
    # A part of a line may be a part of a secret.
    log.head = log.head[: log.head.rfind(b"\n") + 1 if len(log.head) == HEAD else None]
    if len(log.tail) == TAIL:
        log.tail = b"".join(re.split(rb"[\r\n]", log.tail, maxsplit=1)[1:])
    log.before = log.raw = b""
    scanner.collector.finish()
    return log


def _time_limit(source: LogSource) -> float:
    """Return the limit of processor time for a log, by the size of its file."""
    if source.path is None or not source.path.is_file():
        return _PIPE_S
    return _LOG_S + _FILE_MB_S * source.path.stat().st_size / MB


class _BlockScanner:
    """Passes the lines that need a check to the collector; the number of the line continues from block to block."""

    def __init__(self, log: LogFacts, rules: Rules) -> None:
        self._log = log
        self.number = 1
        # The end of the text before the block.
        self._previous = b""
        self._has_samples: bool | None = None
        self._anchors = AnchorSearch(rules)
        self.collector = FactCollector(log, rules, self._anchors)

    def scan_block(self, data: bytes) -> None:
        """Check a block from anchor to anchor, and line by line inside a traceback."""
        number = self.number
        position, size = 0, len(data)
        self._has_samples = None
        while position < size:
            if self.collector.needs_every_line(number):
                end = _line_end(data, position)
                self._check_line(data, position, end, position, number)
            else:
                match = self._anchors.search(data, position)
                if match is None:
                    number += data.count(b"\n", position)
                    break
                start = max(data.rfind(b"\n", 0, match.start()) + 1, position)
                number += data.count(b"\n", position, start)
                position = start
                end = _line_end(data, match.start())
                is_complete = self._check_line(data, start, end, match.start(), number)
                self._anchors.count(match.group(), self._log.hits)
                if not is_complete and end - match.start() > 2 * _WINDOW:
                    end = match.start() + 2 * _WINDOW
            number += data.count(b"\n", position, end)
            position = end
        self.number = number
        # A piece of a long line begins with the end of the one before.
        self._previous = (data if data[-1:] == b"\n" else data[:-OVERLAP])[-CONTEXT:]
        self._log.lines = max(self._log.lines, number if data[-1:] != b"\n" else number - 1)

    def _check_line(self, data: bytes, start: int, end: int, anchor: int, number: int) -> bool:
        """Check a line, or the part of a very long line around an anchor; return whether it was complete."""
        start = self._word_start(data, start, anchor, end)
        if 2 * _WINDOW < end - start <= envelopes.MAX_JSON_LENGTH:
            inner = envelopes.unwrap_bytes(data[start:end])
            if inner is not None:
                self._log.raw = self._log.before + data[start:end]
                self.collector.add_lines(inner, number)
                return True
        if self._has_samples is None:
            # Most blocks have no line to check, so this search waits for the first one.
            self._has_samples = b"[prompt]" in data or b"[response]" in data
        if self._has_samples and _is_in_sample(data, start, end):
            return True
        stop = min(end, anchor + 2 * _WINDOW)
        start = self._word_start(data, max(start, anchor - _WINDOW), anchor, stop)
        blank = -1 if stop == end else data.rfind(b" ", anchor, stop)
        raw = data[start : stop if blank < 0 else blank]
        self._log.raw = self._log.before + raw
        states = [state for state in raw.split(b"\r") if state.strip()]
        for state in states[-_MAX_BAR_STATES:]:
            inner = envelopes.unwrap_bytes(state)
            plain = state.decode("utf-8", "replace").rstrip("\r\n")
            self.collector.add_lines([parse_line(plain)] if inner is None else inner, number)
        return stop == end

    def _word_start(self, data: bytes, start: int, anchor: int, end: int) -> int:
        """Store the text before a line or a part of it; return its start, or that of the next word inside a line."""
        if (data[start - 1 : start] or self._previous[-1:]) not in b"\n":
            limit = anchor if anchor > start else end
            start = limit - len(data[start:limit].partition(b" ")[2])
        self._log.before = context(self._previous + data[max(0, start - CONTEXT) : start])
        return start


def _is_in_sample(data: bytes, start: int, end: int) -> bool:
    """Return whether a line belongs to a printed sample (prompt or completion) that has not ended."""
    context = data[max(0, start - _SAMPLE_CONTEXT) : start]
    if b"[response]" not in context and b"[prompt]" not in context:
        return False
    is_open_by_prefix = {match[1]: bool(match[2]) for match in _SAMPLE.finditer(context)}
    prefixes = (prefix for prefix, is_open in is_open_by_prefix.items() if is_open)
    return any(data.startswith(prefix, start, end) for prefix in prefixes)


def _line_end(data: bytes, position: int) -> int:
    return data.find(b"\n", max(position, 0)) + 1 or len(data)
