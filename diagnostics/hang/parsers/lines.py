"""Split pasted text into lines: without colours and quote marks, each cut, and sorted by the rank that wrote it."""

from __future__ import annotations

import re

MAX_LINE = 1000
_COLOUR = re.compile(r"\x1b\[[0-9;]{0,20}[A-Za-z]")
_QUOTE = re.compile(r"(?: ?> ?){1,20}")
_BLANK = re.compile("[\u00a0\u2007\u202f\u3000]")
# A launcher's or Ray's mark before each line.
_TAG = re.compile(
    r"\s{0,20}(?:\[(?:rank|default|RANK )?(?P<rank>\d{1,6})\]: ?(?:\[[EWIF]\d+ [^\]]{0,80}\] ?)?"
    r"|\((?P<name>[\w:.\- ]{1,80} )?pid=(?P<pid>\d{1,9})(?:, ip=[\d.]{1,40})?\) ?)"
)
_WATCHDOG = re.compile(r"\[Rank \d|Watchdog|\[PG ")


def clean_lines(text: str) -> list[str]:
    r"""Return the lines of a text; what several ranks wrote in turns is sorted, each under a line with its rank.

    >>> clean_lines("> a"), clean_lines("[rank1]: a\n[rank0]: b\n[rank1]: c")
    (['a'], ['rank 1', 'a', 'c', 'rank 0', 'b'])
    """
    groups: dict[str, list[str]] = {"": []}
    blank = False
    for raw in text.splitlines():
        if not raw or raw.isspace():
            if not blank:
                groups[""].append("")
            blank = True
            continue
        blank = False
        line = _BLANK.sub(" ", _COLOUR.sub("", raw[:MAX_LINE]).rstrip())
        if quote := _QUOTE.match(line):
            line = line[quote.end() :]
        tag = None if _WATCHDOG.search(line) else _TAG.match(line)
        if not tag:
            groups[""].append(line)
            continue
        head = f"rank {tag['rank']}" if tag["rank"] else f"Process {tag['pid']}: {tag['name'] or ''}".strip()
        groups.setdefault(head, []).append(line[tag.end() :])
    return [line for head, lines in groups.items() if lines for line in ([head] if head else []) + lines]
