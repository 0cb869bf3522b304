"""Split a log line into its message and its prefixes, such as time, rank, actor, process and level.

`parse_line` returns a `Line`, whose properties say whether it is an error, harmless, a printed sample or source code.
"""

import html
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

# A command such as a link ends at BEL or ST; if that is missing, at the first blank.
_ANSI = re.compile(
    r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\](?:[^\x07\x1b\x9c]*(?:\x07|\x9c|\x1b\\)|[^\x07\x1b\x9c\s]*)"
    r"|[@-Z\\^_]|[()*+][0-9A-Z])"
)
# Terminal codes whose escape character was lost, or is escaped as in JSON.
_BARE_ANSI = re.compile(r"(?:\\(?:u001b|x1b|033))?\[(?:\d{1,2}(?:;\d{1,3}){0,4})?m")
_REPEATED = re.compile(r" ?\[repeated \d+x across cluster\].*$")
_ENTITY = re.compile(r"&(?:lt|gt|amp|quot|apos|nbsp|#39|#x27|#34|#x22|#x60);")
_LEVELS = r"(?:TRACE|DEBUG|INFO|SUCCESS|WARN|WARNING|ERROR|CRITICAL|FATAL)"
_CLOCK = r"\d{1,2}:\d\d:\d\d(?:[.,]\d+)?"
_STAMP = rf"\d{{4}}[-/]\d\d[-/]\d\d[T ]{_CLOCK}(?: ?Z| ?[+-]\d\d:?\d\d)?"
_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def _compile(pattern: str) -> re.Pattern[str]:
    """Compile a pattern of the TOML file."""
    return re.compile(
        pattern.replace("{STAMP}", _STAMP).replace("{CLOCK}", _CLOCK).replace("{LEVELS}", _LEVELS)
    )


_PREFIX, _INDENTED, _SAMPLE = map(
    _compile, ("|".join(_TABLE["prefixes"]), _TABLE["indented"], _TABLE["sample"])
)
# Markdown's mark of quoted text.
_QUOTED = re.compile(r"(?:> ?)+")
_CLOCKS = ("core_stamp", "stamp", "clock", "kernel", "syslog", "loguru")
_LEVEL_GROUPS = {
    "core", "loguru_level", "vllm", "colon", "square", "structlog", "plain", "ray", "actions", "glog", "rich", "dashed",
}  # fmt: skip
_TENSOR_PARALLEL = re.compile(r"(?:_TP|TP|rank[_ ]?)(\d+)")
_MAX_PREFIXES = 8
_IGNORED_ERRORS = ("Ignore import error", "Ignoring import error")
# Source code that IPython or rich prints around the failed line, with line numbers.
_CODE_CONTEXT = re.compile(r"\s*(?:[│|] +)?\d{1,6}(?: +│| {2,}|$)")
# A retried operation has not failed yet, and one with a fallback does not fail the run. Ray's workers report with level
# error that the metrics agent does not answer (ray-project/ray#59665).
_RETRY = re.compile(r"(?i)\b(?:backing off|retrying|will retry|retry attempt)\b")
_FALLBACK = re.compile(r"(?i)\bfalling back\b|\bmetrics will not be exported\b")
_CHAT_TOKENS = (
    "<think>", "</think>", "<answer>", "</answer>", "<|im_start|>", "<|im_end|>", "<|eot_id|>", "<|endoftext|>",
)  # fmt: skip
_CHAT_HEAD = 400
_RAISED = re.compile(r"[\w.]*(?:Error|Exception|Warning)\b")
_FAILURES = {"E", "F", "C", "ERROR", "CRITICAL", "FATAL", "EXCEPTION"}


@dataclass(frozen=True)
class Line:
    """A log line, split into message and prefixes.

    Attributes:
        text: The message with its indentation, without the prefixes.
        stream: Name of the writer, made of the prefixes with actor, process, rank, container or host; empty if there
            are none. The lines of a traceback are collected by stream.
        rank: The rank in the prefixes, or an empty string.
        level: The level in the prefixes, or an empty string.
        clocks: Number of timestamps in the prefixes.
        prefix: The removed prefixes, as in the log.
    """

    text: str
    stream: str = ""
    rank: str = ""
    level: str = ""
    clocks: int = 0
    prefix: str = ""

    @property
    def is_error(self) -> bool:
        """Whether the level is error or worse, and the message reports no fallback or lost metrics."""
        return self.level in _FAILURES and not _FALLBACK.search(self.text)

    @property
    def is_harmless(self) -> bool:
        """Whether the level is a warning or lower, or the message reports an ignored import error or a retry.

        A retry at level error or worse is not harmless.
        """
        if self.text.startswith(_IGNORED_ERRORS):
            return True
        return not self.is_error and bool(self.level or _RETRY.search(self.text))

    @property
    def reports_no_failure(self) -> bool:
        """Whether the line is harmless, a printed sample or source code, so that "error" in it means nothing."""
        return self.is_harmless or self.is_sample or self.is_code_context

    @property
    def is_code_context(self) -> bool:
        """Whether the line has the form of source code printed around a failed line."""
        return bool(_CODE_CONTEXT.match(self.text))

    @property
    def is_sample(self) -> bool:
        """Whether the line looks like a prompt or completion that a trainer prints."""
        if self.is_error:
            return False
        if _SAMPLE.match(self.text):
            return True
        head = self.text[:_CHAT_HEAD]
        return "<" in head and any(mark in head for mark in _CHAT_TOKENS) and not _RAISED.match(head)


def parse_line(raw: str) -> Line:
    """Split a raw line into message and prefixes.

    Terminal codes, overwritten text and Ray's mark of a repeated message are removed, and HTML entities are decoded.
    """
    text = _without_markup(raw)
    writers, rank, level, clocks = [], "", "", 0
    start = match.end() if (match := _QUOTED.match(text) or _INDENTED.match(text)) else 0
    for _ in range(_MAX_PREFIXES):
        match = _PREFIX.match(text, start)
        if match is None or match.end() == start:
            break
        start = match.end()
        kind = match.lastgroup or ""
        groups = match.groupdict()
        if groups["pid"]:
            writers.append(f"{groups['actor'] or ''}:{groups['pid']}")
            inner = _TENSOR_PARALLEL.search(groups["actor"] or "")
            rank = rank or (inner[1] if inner else "")
        elif kind in {"container", "pdsh", "unit"}:
            writers.append(groups[kind])
        elif kind in {"rank", "torchrun", "mpi", "srun"}:
            number = groups[kind].strip()
            writers.append(number)
            rank = rank or number
        elif kind in _LEVEL_GROUPS:
            level = groups[kind].upper()
        clocks += any(groups[name] for name in _CLOCKS)
    return Line(text[start:].rstrip(), "/".join(writers), rank, level, clocks, text[:start])


def _without_markup(text: str) -> str:
    """Return the text that a terminal or a web page shows, without Ray's mark of a repeated message."""
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    elif "m" in text and "[0m" in text:
        text = _BARE_ANSI.sub("", text)
    if "\r" in text:
        # A terminal shows the text after the last carriage return; a progress bar is before it.
        text = next((part for part in reversed(text.split("\r")) if part.strip()), "")
    if "[repeated " in text:
        text = _REPEATED.sub("", text)
    if "&" in text:
        text = _ENTITY.sub(lambda match: html.unescape(match[0]).replace("\xa0", " "), text)
    return text.removesuffix("```").lstrip("\ufeff")
