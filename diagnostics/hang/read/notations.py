"""A frame in whatever notation: a file, a line and a function tell it, not the tool that wrote them."""

from __future__ import annotations

import re

from diagnostics.hang.snapshot import NATIVE, StackFrame

_FILE = r"(?P<path>(?:[A-Za-z]:)?[^\s\"'`()\[\],;|<>:=]{0,300}\.pyx?|<(?:frozen [\w.]+|string|stdin)>)"
_NAME = r"(?P<name>(?:[A-Za-z_]\w*|<[a-z]+>)(?:\.(?:[A-Za-z_]\w*|<[a-z]+>))*)"
_LINE = r"(?P<line>\d{1,6})"
# Each by what parts its file, line and function; the first that fits. `True`: its tools begin with the outermost.
_END = r"(?: ?\([^()]*\))?(?:->.*)?[:;,]?\s*$"
_WAYS: tuple[tuple[str, bool | None], ...] = (
    (rf"File:? [\"'`]?{_FILE}[\"'`]?[,:]? line:? {_LINE},? (?:in|function) [\"'`]?{_NAME}", None),
    (rf"{_FILE}[\"'`]?,? (?:at )?line:? {_LINE},? in {_NAME}", None),
    (rf"{_NAME}(?:\(\))? ?\((?:\S+ )?{_FILE}(?::| line |, line ){_LINE}(?::\d+)?\)", False),
    (rf"{_NAME}(?:\(\))? ?\[{_FILE}:{_LINE}\]\s*$", False),
    (
        rf"{_NAME}(?:\([^()]*\))?,? (?:at|in|@|-|from)? ?[\"'`]?{_FILE}[\"'`]?(?::|, line | line ){_LINE}"
        r"(?::\d+)?[\])]?\s*$",
        False,
    ),
    (rf"{_NAME}\t+{_FILE}\t+{_LINE}\b", False),
    (rf"{_FILE}:{_NAME}:{_LINE}\b", None),
    (rf"{_FILE}[:(]{_LINE}\)?:? (?:in|-|\|) {_NAME}(?![\w.])", None),
    (rf"{_FILE} ?[:(]{_LINE}[):]? ?{_NAME}{_END}", None),
    # By hand, without lines; what somebody says of it behind an arrow.
    (rf"(?:^\s*){_FILE}[: ]{_NAME}(?:\(\))?(?=\s*$|\s+(?:\u2190|<-+|#|//))(?P<line>)", False),
)
WAYS = tuple((re.compile(rf"(?<![\w./\"'<~+@-]){way}"), outermost) for way, outermost in _WAYS)
# What a logger says of itself is no function.
_LEVEL = re.compile(r"[A-Z]+")
# What is longer is none, and would only take time.
_LONGEST = 500
_MAY = re.compile(r"\.pyx?\b|<frozen |<string>|<stdin>")
# What debuggers of Python's frames say of a call in C.
BUILT_IN = re.compile(
    r"^\s*(?:#\d+ )?(?:<built-in method (\w+) of|Waiting for (?:the GIL|a lock \(e\.g\. GIL\))\s*$)"
)
# As glibc, glog and the kernel print a frame.
_NATIVE = re.compile(
    r"^\s*(?:#?\d+[:.]? +)?(?:(?P<library>/?\S+?\.so\S*)\((?P<inner>[\w:~]+)\+0x[0-9a-f]+\) ?\[0x[0-9a-f]+\]"
    r"|>?\s*(?:\[Inline Frame\] )?[\w.]+\.(?:dll|exe|pyd)!(?P<visual>[\w:~]+)[<(`:].*"
    r"|@ +0x[0-9a-f]+ +(?:\(unknown\)|(?P<glog>[\w:~<>, ]+?)(?:\(.*)?)$"
    r"|\[<[0-9a-f]+>\] (?P<kernel>\w+)\+0x[0-9a-f]+/0x[0-9a-f]+)"
)
# What a tool's own notation begins with: nothing of it is what a log has put before.
_HEAD = re.compile(
    r"(?:\((?:C|Python)\) )?File:? \"|#\d+\s+(?:0x|\S+ \()|(?:frame #\d+|Frame 0x)|\* thread #"
    r"|(?:Current thread|Thread) (?:0x)?[0-9a-fA-F]+ [(\[]|Traceback \(most|Traceback for thread"
)


def start(line: str) -> int:
    """Where a frame or a stack's head begins in a line; 0 if there is none, or nothing before it."""
    ways = WAYS[:3] if _MAY.search(line) else ()
    found = [match.start() for pattern, _ in ways if (match := pattern.search(line))]
    if match := _HEAD.search(line):
        found.append(match.start())
    at = min(found, default=0)
    return at if line[:at].strip() else 0


def frame(line: str) -> tuple[StackFrame, bool | None] | None:
    """The frame on a line, and whether its notation begins with the outermost; None where there is none.

    >>> [str(frame(line)[0]) for line in ("> /job/train.py(12)step()", "step, train.py:12", "#3 step at train.py:12")]
    ['step (job/train.py:12)', 'step (train.py:12)', 'step (train.py:12)']
    >>> frame("no frame at all")
    """
    plain = line.replace("`", "")
    for pattern, outermost in WAYS if len(plain) <= _LONGEST and _MAY.search(plain) else ():
        if (match := pattern.search(plain)) and not _LEVEL.fullmatch(match["name"]):
            name = match["name"].rpartition(".")[2] or match["name"]
            return StackFrame(match["path"].replace("\\", "/"), name, int(match["line"] or 0)), outermost
    if match := BUILT_IN.match(line):
        return StackFrame(NATIVE, match[1] or "take_gil"), None
    if match := _NATIVE.match(line):
        function = match["inner"] or match["glog"] or match["kernel"] or match["visual"]
        return (StackFrame(match["library"] or NATIVE, function.strip()), False) if function else None
    return None


def many(lines: list[str]) -> bool:
    """Whether there are frames enough for a stack: what a log says of a place in a file is one alone."""
    last = -3
    for number, line in enumerate(line for line in lines if line.strip()):
        if frame(line) is not None:
            if number - last <= 2:  # a line of source may stand between two
                return True
            last = number
    return False
