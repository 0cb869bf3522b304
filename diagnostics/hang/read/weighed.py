"""A weaker look at a text: of which class of cause its words are, whatever its form. Only where no reader tells more.

All evidence of all mechanisms is gathered, weighed by where it stands, and a class is said only where it clearly leads.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from itertools import islice
from typing import TYPE_CHECKING

from diagnostics.collect.secrets import cut
from diagnostics.hang.mechanisms import (
    BESIDE,
    COMPUTES,
    DENIES,
    ERROR,
    FOLLOWS,
    LIMIT,
    ROOTS,
    ROWS,
    STANDS,
    UNSAID,
    WAITS,
    WELL,
    WENT_ON,
    WHY,
    words,
)
from diagnostics.hang.snapshot import Said

if TYPE_CHECKING:
    from collections.abc import Iterator

# What a piece is at most, in lines, and a line of it in characters: in what is longer words stand for many things.
_MOST = 100
_LONGEST = 600
# A line of a stack in any notation: what is said there stands for itself.
_FRAME = re.compile(
    r"^\s*(?:#\d+|File \"|\(C\)|at |frame #|\d+\s+0x|\S+ \([^)]*:\d+\))|line \d+,? in |^\s+\S+ \([^)]*\)$"
)
# How much more a word tells: at either end of a stack, in a line that says that something stands, in one that says why,
# among the last lines.
_END, _STANDS, _WHY, _LAST = 1.5, 1.5, 2.0, 1.25
_LINES = 3
# Of how many different words a cause's weight is made at least and at most; what it is at least, and how many times
# that of any other.
_FEWEST, _MOST_WORDS = 2, 4
_LEAST = 3.0
_LEAD = 1.5
_AGAIN = 3
_SHOWN, _WIDE = 3, 160
_DIGITS = re.compile(r"\d+")


def read(text: str) -> Said | None:
    """The class that leads, with the lines that say so; None where none does, or nothing is said to stand."""
    whole = list(islice((line for line in text.splitlines() if line.strip()), _MOST + 1))
    lines = [line[:_LONGEST] for line in whole]
    told = [words(line) for line in lines[:_MOST]]
    if not lines or len(lines) > _MOST or _over(lines, told):
        return None
    found: defaultdict[str, dict[str, tuple[float, int]]] = defaultdict(dict)
    for number, weight in enumerate(_weights(lines, told)):
        for cause, said, worth in _evidence(told[number]) if weight else ():
            found[cause][said] = max(found[cause].get(said, (0.0, 0)), (worth * weight, -number))
    cause = _leads({one: [weight for weight, _ in all_said.values()] for one, all_said in found.items()})
    if cause in ("", COMPUTES):
        return None
    best = dict.fromkeys(-number for _, number in sorted(found[cause].values(), reverse=True))
    return Said(cause, tuple(cut(whole[number].strip(), _WIDE) for number in [*best][:_SHOWN]))


def _over(lines: list[str], told: list[str]) -> bool:
    """Whether nothing is said to stand, or it went on, or ended in an error that is no limit of time."""
    stood = any(
        STANDS.search(UNSAID.sub("|", said)) and not _FRAME.search(line)
        for line, said in zip(lines, told, strict=True)
    )
    went_on = (WENT_ON.search(lines[-1]) or WELL.search(told[-1])) and not STANDS.search(told[-1])
    errors = [line for line in lines if ERROR.search(line)]
    return not stood or bool(went_on) or (bool(errors) and not any(LIMIT.search(line) for line in errors))


def _weights(lines: list[str], told: list[str]) -> Iterator[float]:
    """Of each line, by what it is and where it stands; nothing of one that denies."""
    frames = [bool(_FRAME.search(line)) for line in lines]
    often = Counter(_DIGITS.sub("0", line) for line in lines)
    for number, line in enumerate(lines):
        around = frames[max(number - 1, 0) : number + 2]
        if DENIES.search(told[number]):
            yield 0.0
        elif frames[number]:
            yield 1.0 if len(around) > 2 and all(around) else _END
        else:
            stands = often[_DIGITS.sub("0", line)] >= _AGAIN or WAITS.search(told[number])
            last = number >= len(lines) - _LINES
            yield (
                (_STANDS if stands else 1.0)
                * (_WHY if WHY.search(told[number]) else 1.0)
                * (_LAST if last else 1.0)
            )


def _evidence(told: str) -> list[tuple[str, str, float]]:
    """Causes, with the words that tell of them and their weight: the surest first, and no word twice."""
    found: list[tuple[str, str, float]] = []
    for worth, row in ROWS:
        found += [(match.lastgroup or "", match[0], worth) for match in row.finditer(told)]
        told = row.sub("|", told)
    return found


def _leads(told: dict[str, list[float]]) -> str:
    """The cause that outweighs all others but those that follow from it; empty if none does."""
    weights = {one: sum(sorted(told[one], reverse=True)[:_MOST_WORDS]) for one in told}
    top = max(weights, key=lambda one: weights[one], default="")
    top = next((one for one in ROOTS if weights.get(one, 0.0) >= _LEAST and top in FOLLOWS[one]), top)
    follow = FOLLOWS.get(top, ())
    rivals = [weight for one, weight in weights.items() if one != top and one not in follow]
    words_of = (
        [weight for one in (top, *follow) for weight in told.get(one, ())]
        if top in ROOTS
        else told.get(top, [])
    )
    if not top or len(words_of) < _FEWEST or (top in BESIDE and not weights.keys() & set(follow)):
        return ""
    return top if weights[top] >= max(_LEAST, _LEAD * max(rivals, default=0.0)) else ""
