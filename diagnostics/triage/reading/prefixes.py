"""What stands before the message in a line of a log: time, rank, actor, level. Taken off, and remembered."""

from __future__ import annotations

import re
from dataclasses import dataclass

_ANSI = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)?|[@-Z\\^_])")
# What is left of terminal codes where the escape character itself was lost on the way.
_BARE_ANSI = re.compile(r"\[(?:\d{1,2}(?:;\d{1,3}){0,4})?m")
_REPEATED = re.compile(r" ?\[repeated \d+x across cluster\].*$")
_ENTITY = re.compile(r"&(?:lt|gt|amp|quot|apos|nbsp|#39|#x27|#34|#x22|#x60);")
_ENTITIES = {
    "&lt;": "<", "&gt;": ">", "&amp;": "&", "&quot;": '"', "&apos;": "'", "&nbsp;": " ", "&#39;": "'", "&#x27;": "'",
    "&#34;": '"', "&#x22;": '"', "&#x60;": "`",
}  # fmt: skip
_LEVELS = r"(?:TRACE|DEBUG|INFO|SUCCESS|WARN|WARNING|ERROR|CRITICAL|FATAL)"
_CLOCK = r"\d{1,2}:\d\d:\d\d(?:[.,]\d+)?"
_STAMP = rf"\d{{4}}[-/]\d\d[-/]\d\d[T ]{_CLOCK}(?: ?Z| ?[+-]\d\d:?\d\d)?"
# One space at the most is taken with each: what is further indented belongs to a traceback.
_PREFIX = re.compile(
    "|".join(
        (
            # Loguru's own format: time | LEVEL    | module:function:line - message
            rf"(?P<loguru>{_STAMP}) \| (?P<loguru_level>{_LEVELS}) *\| (?:[^|]{{1,200}}? - )?",
            # [2026-01-31 10:00:00,123 W 17 18] (raylet) worker.cc:105: of Ray's own processes
            rf"(?P<core_stamp>\[{_STAMP}) (?P<core>[EWIDFC]) \d+ \d+\] (?:\(\w+\) )?[\w./-]+:\d+: (?:\[\d+\] )?",
            # 2026-01-31T10:00:00.123+01:00 and its relatives; of Kubernetes with the stream after it
            rf"(?P<stamp>\[?{_STAMP}\]?)(?: - | std(?:out|err) [FP] |[ \t]?:?)",
            rf"(?P<clock>\[?{_CLOCK}\]?) ",
            r"(?P<kernel>\[ *\d{1,10}\.\d{3,9}\]) ",
            # (WorkerDict pid=17, ip=10.0.0.1) of Ray, (EngineCore_DP0 pid=17) of vLLM
            r"\((?P<actor>[A-Za-z_<][\w .:<>()-]{0,80}?)? ?pid=(?P<pid>\d+)(?:, ip=[\w.:]+)?\) ?",
            r"\((?:raylet|gcs_server|dashboard|autoscaler(?: \+[\dhms]+)?)(?:, ip=[\w.:]+)?\) ",
            r"\[[Rr]ank[ :]{0,2}(?P<rank>\d+)\]:? ?",
            r"\[(?:[A-Za-z_]\w{0,30})?(?P<torchrun>\d{1,5})\]: ?",
            r"\[\d+,(?P<mpi>\d+)\]<std(?:out|err)>: ?",
            # ERROR 01-31 10:00:00 [core.py:708] of vLLM, with and without the brackets
            rf"(?P<vllm>{_LEVELS}) \d\d-\d\d {_CLOCK} (?:\[[\w./-]+:\d+\]|[\w./-]+:\d+\]) ?",
            # [E131 10:00:00.123 ProcessGroupNCCL.cpp:607] of PyTorch, E0131 … of glog
            rf"\[?(?P<glog>[EWIF])\d{{3,4}} {_CLOCK} (?:\d+ )?[\w./-]+:\d+\] ?",
            # [01/31/26 10:00:00] ERROR    message of rich, and the lines below it
            rf"(?:\[\d\d/\d\d/\d\d {_CLOCK}\]| {{19}}) (?P<rich>{_LEVELS}) +",
            rf"\[(?P<colon>{_LEVELS})[:|][^\]]{{0,80}}\](?: >>)? ?",
            rf"\[(?P<square>{_LEVELS})\] ?",
            r"\[(?P<structlog>debug|info|warning|error|critical|exception) *\] ",
            rf"(?P<plain>{_LEVELS})(?::[\w.]{{1,60}}: ?| - |: ?)",
            # names of the logger before the level
            rf"(?:[\w.<>/-]{{1,60}} - ){{1,3}}(?P<dashed>{_LEVELS}) - ",
            # 2026-01-31 10:00:00 ERROR worker.py:17 -- of Ray
            rf"(?P<ray>{_LEVELS}) [\w./-]+:\d+ -- ",
            # [config.py:17:print] after the level in DeepSpeed's
            r"\[[\w./-]+\.(?:py|cpp|cc|cu):\d+(?::\w+)?\] ",
            r"##\[(?P<actions>error|warning)\]",
            r"\[pod/[^\]]{1,120}\] ",
            r"(?P<container>[\w.-]{1,60}-\d+) +\| ?",
            rf"(?P<syslog>[A-Z][a-z]{{2}} [ \d]\d {_CLOCK}) (?:[\w.-]+ [\w./-]+: )?",
            # host and unit of the journal, after its time
            r"[\w.-]{1,64} (?P<unit>[\w.@/-]{1,64}\[\d+\]): ",
            # pdsh, under DeepSpeed's launcher
            r"\d{1,3}(?:\.\d{1,3}){3}: ",
            r"(?P<pdsh>[a-z][a-z0-9.-]{0,60}\d): ",
            r"(?P<srun> {0,3}\d{1,4}): ",
        )
    )
)
_QUOTED = re.compile(r"(?:> ?)+")
_INDENTED = re.compile(
    rf" {{1,16}}(?=\[[A-Za-z]{{0,20}}\d+\]:|\(\w[\w.: -]{{0,60}} pid=\d|\[?\d{{4}}-\d\d-\d\d[T ]"
    rf"|{_LEVELS}(?: \d\d-\d\d |:[\w.]{{1,60}}:))"
)
_CLOCKS = ("core_stamp", "stamp", "clock", "kernel", "syslog", "loguru")
_STATED = (
    "core",
    "loguru_level",
    "vllm",
    "colon",
    "square",
    "structlog",
    "plain",
    "ray",
    "actions",
    "glog",
    "rich",
    "dashed",
)
_TENSOR_PARALLEL = re.compile(r"(?:_TP|TP|rank[_ ]?)(\d+)")
_MOST_PREFIXES = 8
_IGNORED = ("Ignore import error", "Ignoring import error")
# Code that IPython or rich prints around the line that failed, with its number: no message of anything.
_AROUND = re.compile(r"\s*(?:[│|] +)?\d{1,6}(?: +│| {2,}|$)")
# What is tried again has not failed yet.
_AGAIN = re.compile(r"(?i)\b(?:backing off|retrying in|will retry|retry attempt)\b")
# Prompts and completions, as trainers print some: what stands in them is nobody's failure.
_SHOWS = re.compile(
    r"\s*(?:\[(?:prompt|response|ground_truth|question|Model Response)\]"
    r"|(?:Completion|Prompt|Question|Solution string|Generated text|Model output)s?: )"
)
_CHAT = (
    "<think>",
    "</think>",
    "<answer>",
    "</answer>",
    "<|im_start|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|endoftext|>",
)
_CHAT_WITHIN = 400
_RAISED = re.compile(r"[\w.]*(?:Error|Exception|Warning)\b")
_FAILURES = {"E", "F", "C", "ERROR", "CRITICAL", "FATAL", "EXCEPTION"}


@dataclass(frozen=True)
class Line:
    """A line without what was before its message.

    Attributes:
        text: The message, with its indentation.
        stream: Names who wrote it, by the prefixes; lines of one traceback share it.
        rank: The rank in the prefixes, or an empty string.
        level: The level that a logger put before it, or an empty string.
        clocks: How many times of day were before it.
        prefix: All that was before it.
    """

    text: str
    stream: str = ""
    rank: str = ""
    level: str = ""
    clocks: int = 0
    prefix: str = ""

    @property
    def error(self) -> bool:
        """A prefix says error or worse."""
        return self.level in _FAILURES

    @property
    def harmless(self) -> bool:
        """A prefix says that it is no more than a warning, or the line itself that it is passed over."""
        return (
            (bool(self.level) and not self.error)
            or self.text.startswith(_IGNORED)
            or (not self.error and bool(_AGAIN.search(self.text)))
        )

    @property
    def fine(self) -> bool:
        """It speaks of no failure, whatever words are in it."""
        return self.harmless or self.printed or self.around

    @property
    def around(self) -> bool:
        """It has the shape of code around a line that failed."""
        return bool(_AROUND.match(self.text))

    @property
    def printed(self) -> bool:
        """It is a prompt or a completion that a trainer shows."""
        if self.error:
            return False
        if _SHOWS.match(self.text):
            return True
        head = self.text[:_CHAT_WITHIN]
        return "<" in head and any(mark in head for mark in _CHAT) and not _RAISED.match(head)


def clean(raw: str) -> Line:
    """Takes prefixes, terminal codes, marks of quotations and carriage returns off a line."""
    text = _plain(raw)
    stream, rank, level, clocks = [], "", "", 0
    start = match.end() if (match := _QUOTED.match(text) or _INDENTED.match(text)) else 0
    for _ in range(_MOST_PREFIXES):
        match = _PREFIX.match(text, start)
        if match is None or match.end() == start:
            break
        start = match.end()
        kind = match.lastgroup or ""
        found = match.groupdict()
        if found["pid"]:
            stream.append(f"{found['actor'] or ''}:{found['pid']}")
            inner = _TENSOR_PARALLEL.search(found["actor"] or "")
            rank = rank or (inner[1] if inner else "")
        elif kind in {"container", "pdsh", "unit"}:
            stream.append(found[kind])
        elif kind in {"rank", "torchrun", "mpi", "srun"}:
            number = found[kind].strip()
            stream.append(number)
            rank = rank or number
        elif kind in _STATED:
            level = found[kind].upper()
        clocks += any(found[name] for name in _CLOCKS)
    return Line(text[start:].rstrip(), "/".join(stream), rank, level, clocks, text[:start])


def _plain(text: str) -> str:
    """A line as it was printed: without terminal codes, entities of HTML, and what a return wrote over."""
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    elif "m" in text and "[0m" in text:
        text = _BARE_ANSI.sub("", text)
    if "\r" in text:
        # What a terminal would show is what came after the last return; a progress bar is before it.
        text = next((part for part in reversed(text.split("\r")) if part.strip()), "")
    if "[repeated " in text:
        text = _REPEATED.sub("", text)
    if "&" in text:
        text = _ENTITY.sub(lambda match: _ENTITIES[match[0]], text)
    return text.removesuffix("```").lstrip("\ufeff")
