"""What tools of logs put before each line of a stack, found by what repeats before frames, not by a list of tools."""

from __future__ import annotations

import html
import re
from collections import Counter, defaultdict
from itertools import takewhile

from diagnostics.hang.read import notations

# A text that stands as one string of JSON, or whose lines were joined or broken on the way.
_ESCAPED = re.compile(r'\\n\s*(?:File \\*"|\\t|Thread |Traceback|#\d+ |[\w.<>]+ \()')
_ENTITY = re.compile(r"&(?:lt|gt|quot|amp|nbsp|#39|#x27);")
_BREAK = re.compile(r"(?i)<br ?/?>|\r\n?")
_BLANK = re.compile("[\u00a0\u2007\u202f\u3000]")
_INVISIBLE = re.compile("[\u200b\u200c\u200d\ufeff]")
_OPEN = re.compile(r'(File "[^"\n]{1,300})\n\s*([^"\n]{0,300}", line \d+)')
_SPLIT = re.compile(r'(File "[^"\n]{1,300}",?)[ \t]*\n\s*(line \d+)')
# A call and its place in columns; what somebody says of a frame behind it, which no tool has written.
_COLUMNS = re.compile(r"(?m)^([ \t]*[\w.<>:~]{1,200})[ \t]{2,}(?=\([^\s()]{1,300}:\d+\))")
_REMARK = re.compile(
    r"(?m)^([^\n]{0,400}?(?::\d+\)|\", line \d+,? in [\w.<>]+)|[ \t]*#\d+ [^\n]{1,400}?\S)"
    r"[ \t]+(?:<-+|<==+|\u2190|//|#(?= ))[^\n]*$"
)
# The heads of two stacks, one beside the other.
_HEADS = re.compile(r"^\S[^\n]{0,80}?:[ \t]{3,}(?=\S[^\n]{0,80}:\s*$)")
_NUMBERED = re.compile(r"(?<=\S)[ \t]{3,}(?=#\d+ +0x[0-9a-f]+ in )")
_ESCAPES = re.compile(r"\\(?=<(?:module|lambda|listcomp|genexpr)>)")
# Collapsed, as makers of flame graphs want them: a line a stack, outermost first.
_COLLAPSED = re.compile(r"(?m)^(?:[^;\n]{1,300};){2,}[^;\n]*$")
_CUT_IN = re.compile(r'(File "[^"\n]{1,300}", line \d+,?(?: in)?)[ \t]*\n\s*((?:in )?[\w<>.]+)[ \t]*(?=\n|$)')
_JOINED = re.compile(r'(?<=\S)[ \t]+(?=File "[^"\n]{1,300}", line \d+)')
# What tells a rank or a process is left to who parts the lines by it.
_TOLD = re.compile(r"\[(?:rank|default|RANK )\d+\]:|\((?:[\w:.\- ]+ )?pid=\d+")
# As `mpirun --tag-output` and `srun --label` number ranks.
_RANK = re.compile(r"^\s*(?:\[\d+,(\d+)\](?:<std\w+>)?:?|(\d+):)\s*$")
_DIGITS = re.compile(r"[0-9a-f]*\d[0-9a-f]*", re.IGNORECASE)
_FEWEST, _LONGEST = 2, 160
# Of how many lines two stacks side by side are at most.
_MOST = 200


def stripped(text: str) -> str:
    r"""The same, as the tool that took the stack had written it.

    >>> print(stripped('12:01 E | File "a.py", line 1, in f\n12:02 E |   g()\n12:02 E | File "b.py", line 2, in g'))
    File "a.py", line 1, in f
      g()
    File "b.py", line 2, in g
    """
    lines = _beside(_whole(text).splitlines())
    found = [(line, start) for line in lines if (start := notations.start(line[:_LONGEST]))]
    cut = [line[:start] for line, start in found]
    kept = [before for before in map(_own, cut) if before.strip()]
    counted = Counter(map(_shape, kept))
    shapes = {shape for shape, count in counted.items() if count >= _FEWEST}
    if not shapes:
        return "\n".join(lines)
    whole = re.compile("|".join(sorted(map(_pattern, shapes), key=len, reverse=True)))
    return "\n".join(_parted(lines, whole))


def _whole(text: str) -> str:
    """Without escapes of JSON or of a page, and a line a frame."""
    if _ESCAPED.search(text) and text.count("\n") < text.count("\\n"):
        text = text.replace("\\n", "\n").replace('\\"', '"').replace("\\t", "\t")
    text = _INVISIBLE.sub("", _BLANK.sub(" ", _BREAK.sub("\n", text)))
    if _ENTITY.search(text):
        text = html.unescape(text).replace("\u00a0", " ")
    text = _CUT_IN.sub(r"\1 \2", _SPLIT.sub(r"\1 \2", _OPEN.sub(r"\1\2", text)))
    text = _COLUMNS.sub(r"\1 ", _REMARK.sub(r"\1", text))
    text = _NUMBERED.sub("\n", _ESCAPES.sub("", text))
    text = _COLLAPSED.sub(_unfolded, text)
    return "\n".join(
        _JOINED.sub("\n  ", line) if line.count('File "') > 1 else line for line in text.splitlines()
    )


def _beside(lines: list[str]) -> list[str]:
    """Two stacks that stand side by side one below the other."""
    found, number = list[str](), 0
    while number < len(lines):
        heads = _HEADS.match(lines[number][:_LONGEST])
        rows = _columns(lines[number : number + _MOST], heads.end()) if heads else []
        if heads and len(rows) > _FEWEST:
            found += [row[: heads.end()].rstrip() for row in rows] + [row[heads.end() :] for row in rows]
        else:
            rows = lines[number : number + 1]
            found += rows
        number += len(rows)
    return found


def _columns(lines: list[str], at: int) -> list[str]:
    """The first lines that have two blanks before a column, or end before it."""
    return list(takewhile(lambda line: line.strip() and not line[at - 2 : at].strip(), lines))


def _unfolded(match: re.Match[str]) -> str:
    """The innermost last, as they stand there; a thread by itself."""
    parts = match[0].split(";")
    frames = [part for part in parts if notations.frame(part)]
    return "\n".join(["Thread:", *reversed(frames)]) if len(frames) > 2 else match[0]


def _own(before: str) -> str:
    """What stands before the mark of a rank or of a process."""
    match = _TOLD.search(before)
    return before[: match.start()] if match else before


def _shape(before: str) -> str:
    return _DIGITS.sub("0", before.rstrip())


def _pattern(shape: str) -> str:
    return re.escape(shape).replace("0", r"[0-9a-fA-F]+") + " ?"


def _parted(lines: list[str], whole: re.Pattern[str]) -> list[str]:
    """Without what stands before them; apart by it where that tells several writers."""
    rows = [(match[0] if (match := whole.match(line)) else "", line) for line in lines]
    said = Counter(before for before, _ in rows if before.strip())
    ranks = {before: match[1] or match[2] for before in said if (match := _RANK.match(before))}
    # Times differ from line to line; a writer's name stands before several.
    if len(said) < _FEWEST or set(ranks) != set(said) or min(said.values()) < _FEWEST:
        return [line[len(before) :] for before, line in rows]
    groups: dict[str, list[str]] = defaultdict(list)
    for before, line in rows:
        groups[ranks.get(before, "")].append(line[len(before) :])
    return [line for rank, some in groups.items() for line in ([f"rank {rank}"] if rank else []) + some]
