"""What all readers need: lines of JSON, numbers, texts of prompts, and how much of a large run is read."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeVar

from diagnostics import given
from diagnostics.audit.recorded.rows import Unread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from diagnostics.audit.recorded.rows import Row

# The most that is read of one file, of all of them together, and as rows: what a step of a large run comes to, many
# times over; three to five times as much of memory.
FILE, ALL, ROWS, LINE = 64 * given.MIB, 192 * given.MIB, 60_000, 32 * given.MIB
FILES = 200
# How far a trainer's log-prob may be from an engine's 0 that was sampled; and within the loss.
_SURE, _CUT = 1e-3, 0.5
One = TypeVar("One")
TEXT = 64 * given.KIB
UNREADABLE = (OSError, ValueError, KeyError, TypeError, RecursionError, OverflowError)


class Budget:
    """How much may still be read."""

    def __init__(self, most: int = ALL, rows: int = ROWS) -> None:
        self.left = most
        self.rows = rows

    def spend(self, size: int) -> bool:
        """Whether there was enough left; then it is less by that."""
        if size > self.left:
            return False
        self.left -= size
        return True


def chosen(paths: Sequence[One], most: int = FILES) -> list[One]:
    """Of many files those at both ends, and some in between; neighbours, since what a step leaves is seen in the next.

    >>> chosen(list(range(10)), 4), len(chosen(list(range(1000)), 100))
    ([0, 1, 8, 9], 100)
    """
    if len(paths) <= most:
        return list(paths)
    if most < 8:
        return [*paths[: most - most // 2], *paths[len(paths) - most // 2 :]]
    ends = most // 4
    between = paths[ends : len(paths) - ends]
    pairs = (most - 2 * ends) // 2
    kept = [between[len(between) * place // pairs + more] for place in range(pairs) for more in (0, 1)]
    return [*paths[:ends], *kept, *paths[len(paths) - ends :]]


def lines(path: Path, bad: Callable[[str], None], most: int = FILE) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a file of JSON lines, with their numbers; what is none is told, and left out.

    Raises:
        OSError: It can't be read at all.
    """
    read = 0
    with given.opened(path) as file:
        for number in range(1, 1 << 30):
            raw = file.readline(LINE)
            read += len(raw)
            if not raw:
                return
            if read > most:
                bad(f"line {number} and what follows was not read: more than {most // given.MIB} MiB")
                return
            if not raw.endswith(b"\n") and len(raw) == LINE:
                bad(f"line {number} is longer than {LINE // given.MIB} MiB")
                return
            if not raw.strip():
                continue
            try:
                value = given.parsed(raw)
                if not isinstance(value, dict):
                    raise TypeError("no object")  # noqa: TRY301 - what it is to be, told once
            except (ValueError, TypeError, RecursionError):
                cut = "" if raw.endswith(b"\n") else ", cut off"
                bad(f"line {number} is no JSON object{cut}")
                continue
            yield number, value


def rows_of(
    paths: Sequence[Path],
    budget: Budget,
    unread: list[Unread],
    is_one: Callable[[dict[str, Any]], bool],
    row: Callable[[dict[str, Any], Path, int], Row],
) -> tuple[tuple[Row, ...], int]:
    """The rows of files with an object a line, and how many files were read to their end.

    Args:
        paths: In the order in which they are read.
        budget: What may be read of the run; what is read is taken from it.
        unread: Takes what could not be read, and why.
        is_one: Whether an object is a row at all.
        row: What is made of one, its file and its line.
    """
    rows: list[Row] = []
    files = 0
    for path in chosen(paths):

        def bad(why: str, path: Path = path) -> None:
            unread.append(Unread(str(path), why))

        try:
            if not budget.spend(path.stat().st_size):
                bad("more than is read of one run")
                break
            for line, entry in lines(path, bad):
                if is_one(entry) and budget.rows > 0:
                    rows.append(row(entry, path, line))
                    budget.rows -= 1
        except UNREADABLE as error:
            bad(str(error))
            continue
        files += 1
    return tuple(rows), files


def number(value: object) -> float | None:
    """A finite or infinite number as float; None for what is none, NaN included.

    >>> number("1"), number(True), number(2), number(float("nan"))
    (None, None, 2.0, None)
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        made = float(value)
    except OverflowError:
        return None
    return None if math.isnan(made) else made


def numbers(value: object) -> tuple[float | None, ...]:
    """A list's numbers, None where there is none; empty for what is no list."""
    return tuple(number(each) for each in value) if isinstance(value, list) else ()


def sampled(
    engine: Sequence[float | None], trainer: Sequence[float | None], first: int, trained: Sequence[bool]
) -> tuple[float | None, ...]:
    """The engine's stream, None where nothing was sampled: before `first`, and 0 where the trainer is not sure.

    Within the loss a trainer may be less sure: a cut that leaves one id makes a 0 of it.
    """
    beside = [*trainer, *[None] * (len(engine) - len(trainer))]
    inside = [*trained, *[False] * (len(engine) - len(trained))]

    def nobodys(value: float | None, other: float | None, *, loss: bool) -> bool:
        return value == 0 and other is not None and abs(other) > (_CUT if loss else _SURE)

    return tuple(
        None if place < first or nobodys(value, other, loss=loss) else value
        for place, (value, other, loss) in enumerate(zip(engine, beside, inside, strict=False))
    )


def whole(value: object) -> int | None:
    """A whole number, also one written as text."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 12:
        return int(value)
    made = number(value)
    return int(made) if made is not None and math.isfinite(made) and made == int(made) else None


def text_of(value: object) -> str:
    r"""A prompt or completion as text: that of messages one behind the other, as they were said.

    >>> text_of([{"role": "user", "content": "2+2"}, {"role": "assistant", "content": "4"}])
    '2+2\\n4'
    """
    if isinstance(value, str):
        return value[:TEXT]
    if isinstance(value, dict):
        inner = value.get("content", value.get("text"))
        return text_of(inner) if inner is not None else ""
    if isinstance(value, (list, tuple)):
        return "\n".join(filter(None, map(text_of, value[:1000])))[:TEXT]
    return ""


def in_steps(path: Path) -> int:
    """The number of a file or folder by its name: the last one in it; -1 where there is none.

    >>> from pathlib import Path
    >>> in_steps(Path("completions_00012.parquet")), in_steps(Path("policy"))
    (12, -1)
    """
    digits, found = "", -1
    for letter in f"{path.name.partition('.')[0]}_":
        if letter.isascii() and letter.isdigit():
            digits += letter
        elif digits:
            found, digits = int(digits[-12:]), ""
    return found
