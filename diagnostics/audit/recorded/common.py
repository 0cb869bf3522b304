"""Helpers of all readers: JSON lines, numbers, prompt texts, and read limits for large runs."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from diagnostics import safe_io
from diagnostics.audit.recorded.run_data import UnreadInputs

# Bytes of one file, of one run, of one line and of one text; samples and files of one run.
MAX_FILE, MAX_RUN, MAX_LINE = 64 * safe_io.MIB, 192 * safe_io.MIB, 32 * safe_io.MIB
MAX_TEXT, MAX_ROWS, MAX_FILES = 64 * safe_io.KIB, 60_000, 200
READ_ERRORS = (OSError, ValueError, KeyError, TypeError, RecursionError, OverflowError)
Item = TypeVar("Item")


class Reading:
    """Bytes and samples that may still be read of a run, and what was not read of it."""

    def __init__(self) -> None:
        self.bytes, self.rows, self.unread = MAX_RUN, MAX_ROWS, UnreadInputs()

    def spend(self, size: int) -> None:
        """Take bytes from the budget.

        Raises:
            ValueError: It is used up.
        """
        if size > self.bytes:
            raise ValueError("over the limit of bytes that are read of one run")
        self.bytes -= size


def choose_files(paths: Sequence[Item], most: int = MAX_FILES) -> list[Item]:
    """Choose files at both ends and neighbouring pairs between, because some checks compare neighbours.

    >>> choose_files(list(range(1000)), 8)
    [0, 1, 2, 3, 500, 501, 998, 999]
    """
    if len(paths) <= most:
        return list(paths)
    ends, pairs = most // 4, most // 4
    middle = paths[ends : len(paths) - ends]
    picked = [middle[len(middle) * place // pairs + more] for place in range(pairs) for more in (0, 1)]
    return [*paths[:ends], *picked, *paths[len(paths) - ends :]]


def read_json_lines(
    path: Path, unread: UnreadInputs, most: int = MAX_FILE
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield line numbers and objects of a file of JSON lines; other lines are left out.

    Raises:
        OSError: The file cannot be read at all.
    """
    size = 0
    with safe_io.open_regular(path) as file:
        for number, line in enumerate(iter(lambda: file.readline(MAX_LINE), b""), 1):
            size += len(line)
            complete = line.endswith(b"\n")
            if size > most or (not complete and len(line) == MAX_LINE):
                limit = f"over the size limit ({most // safe_io.MIB} MiB)"
                unread.add(path, f"line {number} and all after it: {limit}")
                return
            if not line.strip():
                continue
            if (value := parse_object(line)) is None:
                end = "" if complete else " (the file is cut off)"
                unread.add(path, f"line {number} is not a JSON object{end}")
            else:
                yield number, value


def parse_object(line: bytes) -> dict[str, Any] | None:
    """Parse a JSON object; None for anything else."""
    try:
        value = safe_io.parse_json(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def number(value: object) -> float | None:
    """Convert a number to float; None for anything else and for NaN.

    >>> number("1"), number(True), number(2), number(float("nan"))
    (None, None, 2.0, None)
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return None if math.isnan(value) else float(value)
    except OverflowError:
        return None


def numbers(value: object) -> tuple[float | None, ...]:
    """Convert a list's items, None for what is not a number; empty for anything but a list."""
    return tuple(map(number, value)) if isinstance(value, list) else ()


def whole_number(value: object) -> int | None:
    """Convert a whole number, also one written as text."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 12:
        return int(value)
    converted = number(value)
    is_whole = converted is not None and abs(converted) < 1e15 and converted == converted // 1
    return int(converted) if converted is not None and is_whole else None


def text_of(value: object) -> str:
    r"""Return a prompt or completion as text; messages are joined.

    >>> text_of([{"role": "user", "content": "2+2"}, {"role": "assistant", "content": "4"}])
    '2+2\\n4'
    """
    if isinstance(value, str):
        return value[:MAX_TEXT]
    if isinstance(value, dict):
        return text_of(value.get("content", value.get("text")))
    if isinstance(value, (list, tuple)):
        return "\n".join(filter(None, map(text_of, value[:1000])))[:MAX_TEXT]
    return ""


def step_in_name(path: Path) -> int:
    """Return the last number in a file's or folder's name; -1 if it has none.

    >>> step_in_name(Path("completions_00012.parquet")), step_in_name(Path("policy"))
    (12, -1)
    """
    digits = re.findall(r"[0-9]+", path.name.partition(".")[0][:255])
    return int(digits[-1][-12:]) if digits else -1
