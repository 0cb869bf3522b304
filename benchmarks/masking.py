"""What masking costs at worst, in CPU time for 100 kB: texts made of what each pattern begins with, against a goal.

python benchmarks/masking.py [--seed N] [--mixes N] [--worst N]

Texts are put together from every pattern that there is, so that a new one is tried without a word here: an example of
what it matches, cut where it hurts and repeated to the end; each sign and each beginning, repeated; and mixes of all of
them, drawn at random. Exit code 1 where a repeated one takes longer than the goal.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from pathlib import Path
from re import (
    _parser as parser,  # type: ignore[attr-defined]  # the only thing that knows what a pattern is made of
)
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from diagnostics.collect.sought import Run  # noqa: E402 - the same
from diagnostics.output import redact  # noqa: E402 - from this checkout

if TYPE_CHECKING:
    import re
    from collections.abc import Iterator

SIZE = 100_000
GOAL_S = 0.1
_KINDS = {"WORD": "a", "DIGIT": "1", "SPACE": " ", "NOT_SPACE": "a", "NOT_WORD": "-", "NOT_DIGIT": "a"}
_SEPARATORS = ("", " ", "\n")


def example(items: Any, numbers: random.Random) -> str:
    """Something that a pattern, or most of it, matches; what looks around is passed over."""
    return "".join(_one(str(kind), what, numbers) for kind, what in items)


def _one(kind: str, what: Any, numbers: random.Random) -> str:
    if kind == "LITERAL":
        return chr(what)
    if kind == "IN":
        return _letter(what, numbers)
    if kind in {"MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"}:
        least, most, inner = what
        times = min(int(most), int(least) + numbers.randint(0, 2))
        return "".join(example(inner, numbers) for _ in range(times))
    if kind == "BRANCH":
        return example(numbers.choice(what[1]), numbers)
    if kind in {"SUBPATTERN", "ATOMIC_GROUP"}:
        return example(what[-1] if kind == "SUBPATTERN" else what, numbers)
    return "" if kind.startswith(("ASSERT", "AT", "GROUPREF")) else "a"


def _letter(among: Any, numbers: random.Random) -> str:
    letters = []
    for kind, what in among:
        if str(kind) == "LITERAL":
            letters.append(chr(what))
        elif str(kind) == "RANGE":
            letters.append(chr(numbers.randint(*what)))
        elif str(kind) == "CATEGORY":
            letters.append(_KINDS[str(what).removeprefix("CATEGORY_")])
    if str(among[0][0]) == "NEGATE":
        return next(letter for letter in "a1A-x_q" if letter not in letters)
    return numbers.choice(letters)


def pieces(numbers: random.Random) -> dict[str, list[str]]:
    """Of each pattern, by how it begins: examples of it, of where it may begin, and its signs."""
    made: dict[str, list[str]] = {}
    for sought, _ in (*redact.EACH, *redact.EACH):
        found = [_piece(each, numbers) for each in [sought.pattern] * 3 + list(sought.starts)]
        found += [sign for signs in sought.signs for sign in signs]
        made[sought.pattern.pattern[:40]] = [piece for piece in dict.fromkeys(found) if piece]
    return made


def _piece(of: re.Pattern[str] | str | Run, numbers: random.Random) -> str:
    if isinstance(of, Run):
        return "".join(numbers.choices(of.letters, k=of.least))
    return of if isinstance(of, str) else example(parser.parse(of.pattern, of.flags), numbers)


def repeated(made: dict[str, list[str]]) -> Iterator[tuple[str, str]]:
    """Each piece, whole, without its last letter, and its first half, again and again."""
    for name, each in made.items():
        units = {
            piece[:cut] for piece in each for cut in (len(piece), len(piece) - 1, len(piece) // 2) if cut > 0
        }
        for unit in sorted(units):
            for separator in _SEPARATORS:
                text = unit + separator
                yield f"{name}: {text[:60]!r}", (text * (SIZE // len(text) + 1))[:SIZE]


def mixed(made: dict[str, list[str]], numbers: random.Random, count: int) -> Iterator[tuple[str, str]]:
    """Two to two hundred pieces of any pattern, whole or cut, in any order."""
    everything = [piece for each in made.values() for piece in each]
    for number in range(count):
        kinds = (2, 5, 20, 200)[number % 4]
        chosen = [piece[: numbers.randint(1, len(piece))] for piece in numbers.choices(everything, k=kinds)]
        text = ""
        while len(text) < SIZE:
            text += "".join(
                numbers.choice(chosen) + numbers.choice((*_SEPARATORS, ".", "/")) for _ in range(200)
            )
        yield f"a mix of {kinds}", text[:SIZE]


def cpu_s(text: str) -> float:
    """CPU seconds for a text: the least of a few looks, if the first was slow; a busy machine doubles them."""
    least = float("inf")
    for _ in range(7):
        began = time.process_time()
        redact.redact(text)
        least = min(least, time.process_time() - began)
        if least < GOAL_S / 2:
            break
    return least


def main() -> int:
    """Measures and prints one JSON document; 1 where the goal is missed."""
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--mixes", type=int, default=40)
    arguments.add_argument("--worst", type=int, default=8, help="how many of the slowest to print")
    arguments.add_argument(
        "--every", type=int, default=1, help="of the repeated texts, each so many-th alone"
    )
    options = arguments.parse_args()
    numbers = random.Random(options.seed)
    made = pieces(numbers)
    redact.redact("".join(each[0] for each in made.values()))  # all patterns are compiled
    figures: dict[str, Any] = {"load": os.getloadavg()[0], "goal_s": GOAL_S}
    kinds = {
        "repeated": list(repeated(made))[:: options.every],
        "mixed": list(mixed(made, numbers, options.mixes)),
    }
    for kind, texts in kinds.items():
        seen = sorted(((cpu_s(text), name) for name, text in texts), reverse=True)
        figures[kind] = {
            "texts": len(seen),
            "over_the_goal": sum(took > GOAL_S for took, _ in seen),
            "worst": [[round(took, 3), name] for took, name in seen[: options.worst]],
        }
    print(json.dumps(figures, indent=1))
    return 1 if figures["repeated"]["over_the_goal"] else 0


if __name__ == "__main__":
    sys.exit(main())
