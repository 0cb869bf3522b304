"""Stacks of macOS, by `sample` and by its reports of a hang, written as its debugger writes them."""

from __future__ import annotations

import re

# A tree of calls, outermost first, each with how often it was seen.
_SAMPLE = re.compile(
    r"^(?P<indent>[\s+!:|]*)\d+ (?P<name>\S.*?) {2}\(in (?P<library>[^)]+)\)(?: \+ [\d,.]+)?"
)
_HEAD = re.compile(r"^[\s+!:|]*\d+ Thread_\w+")
_REPORT = re.compile(
    r"^(?P<number>\d{1,3})\s+(?P<library>\S+)\s+(?P<at>0x[0-9a-f]{8,16}) (?P<name>\S.*?) \+ \d+$"
)
_THREAD = re.compile(r"^Thread (\d+)(?: Crashed)?:")
_FEWEST = 2


def as_lldb(text: str) -> str:
    """The text, with stacks of these two notations as the debugger has them; the same text where there is none."""
    lines = text.splitlines()
    sampled = sum(bool(_SAMPLE.match(line)) for line in lines)
    reported = sum(bool(_REPORT.match(line)) for line in lines)
    if max(sampled, reported) < _FEWEST:
        return text
    return "\n".join(_sampled(lines) if sampled > reported else _reported(lines))


def _sampled(lines: list[str]) -> list[str]:
    """Of each thread the first branch, where it was seen most often."""
    found: list[str] = []
    stack: list[str] = []
    depth, number, ended = -1, 1, False
    for line in [*lines, ""]:
        match = _SAMPLE.match(line)
        if match and not _HEAD.match(line):
            ended = ended or len(match["indent"]) <= depth
            depth = len(match["indent"])
            if not ended:
                stack.append(f"{match['library']}`{match['name']}")
            continue
        if stack:
            found.append(f"thread #{number}")
            found += [f"    frame #{n}: 0x0 {frame}" for n, frame in enumerate(reversed(stack))]
            number += 1
        stack, depth, ended = [], -1, False
        found.append(line)
    return found


def _reported(lines: list[str]) -> list[str]:
    found = []
    for line in lines:
        if match := _REPORT.match(line):
            found.append(f"    frame #{match['number']}: {match['at']} {match['library']}`{match['name']}")
        elif match := _THREAD.match(line):
            found.append(f"thread #{int(match[1]) + 1}")
        else:
            found.append(line)
    return found
