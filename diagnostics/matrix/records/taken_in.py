"""What others wrote for a store, checked whole before any of it is used: events, and the logs that they name.

An event of another store or of a node is a stranger's text. Its log is `logs/CELL/NAME` below the folder of its store
and of ours, no link among the folders and files on either side; or nothing of it is taken.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import stat
from datetime import datetime
from typing import TYPE_CHECKING, Any

from diagnostics import given
from diagnostics.collect.names import names_a_package
from diagnostics.collect.shapes import problem
from diagnostics.matrix.plan.verdicts import EvidenceLevel, Outcome
from diagnostics.matrix.records.events import SCHEMA, Event, from_line

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LONGEST_LINE = 16 * given.MIB
LARGEST_LOG = 256 * given.MIB
# So much of a log's end a node sends.
LOG_BYTES = given.MIB
LOGS = "logs"
# What opening says of a link, or of a file where a folder should be.
_IN_THE_WAY = {errno.ELOOP, errno.ENOTDIR, errno.EISDIR}
# As cells, layers and their logs are called; a name that begins with a dot is none of ours.
_NAME = re.compile(r"[A-Za-z0-9_][\w.+:-]{0,200}", re.ASCII)
_IDENTITY = re.compile(r"[\w-]{1,128}", re.ASCII)
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", re.ASCII)
_CODE = re.compile(r"[A-Z]{1,8}\d{0,6}", re.ASCII)
_COUNTED = re.compile(r"[\w:.-]{1,128} \d{1,9}", re.ASCII)
# What each fact is -> how many texts it is made of; what is told of it takes them apart.
_FACTS = {
    "package": 2, "lock": 2, "missing": 2, "undecided": 2, "said": 3, "attempt": 5, "document": 1, "platform": 1,
    "archive": 1,
}  # fmt: skip
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PAIRS = [[str]]
_SHAPE = {
    "schema": str,
    "identity": str,
    "cell": str,
    "layer": str,
    "inputs": _PAIRS,
    "command": str,
    "started": str,
    "seconds": float,
    "run": str,
    "answer": {
        "outcome": str,
        "summary": str,
        "evidence": str,
        "codes?": [str],
        "signs?": [str],
        "facts?": _PAIRS,
        "details?": [str],
        "grids": [{"title": str, "columns": [str], "rows": [[str]]}],
        "curve?": [float],
        "ran_with": _PAIRS,
        "excerpt?": str,
        "log?": str,
    },
}


def _is_time(text: str) -> bool:
    try:
        return bool(_TIME.fullmatch(text) and datetime.fromisoformat(text))
    except ValueError:
        return False


_FORMS = (
    ("cell", _NAME.fullmatch, "a name"),
    ("layer", _NAME.fullmatch, "a name"),
    ("identity", _IDENTITY.fullmatch, "a digest"),
    ("started", _is_time, "a time as 2026-01-31T12:00:00Z"),
)


class NotTakenError(ValueError):
    """Raised when an event or a log of others can't be taken in; one line that says what was expected."""


def event_of(line: str) -> Event:
    """The event that a line of somebody else's holds.

    Raises:
        NotTakenError: It holds none, or one that no run of the matrix writes.
    """
    if len(line) > LONGEST_LINE:
        raise NotTakenError("longer than any event is")
    try:
        value: Any = given.parsed(line)
    except (ValueError, RecursionError):
        raise NotTakenError("no JSON") from None
    wrong = problem(value, _SHAPE) or _wrong(value)
    if wrong:
        raise NotTakenError(wrong)
    event = from_line(line)
    if event is None:
        raise NotTakenError("not an event as this release writes them")
    return event


def _wrong(value: dict[str, Any]) -> str:
    """What is wrong with an event whose fields are of the right types."""
    answer = value["answer"]
    if value["schema"] != SCHEMA:
        return f"schema: expected {SCHEMA}"
    if answer["outcome"] not in set(Outcome) or answer["evidence"] not in set(EvidenceLevel):
        return "answer: an outcome or a level of evidence that there is not"
    for key, fits, what in _FORMS:
        if not fits(value[key]):
            return f"{key}: {value[key][:60]!r}: expected {what}"
    pairs = (*value["inputs"], *answer["ran_with"])
    if any(len(pair) != 2 for pair in pairs) or not all(answer.get("facts", [[1]])):
        return "inputs, ran_with: expected pairs; facts: expected what each is first"
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return "half of a character in it"
    return _said(answer) or wrong_log(answer.get("log", ""))


def _said(answer: dict[str, Any]) -> str:
    """What is wrong with what is told of an answer: a report takes it for words of our own."""
    codes = [code for code in answer.get("codes", []) if not _CODE.fullmatch(code)]
    facts = [fact for fact in answer.get("facts", []) if not _is_fact(*fact)]
    if codes:
        return f"codes: {codes[0][:60]!r}: expected a code"
    return f"facts: {str(facts[0])[:60]}: expected what a layer writes" if facts else ""


def _is_fact(what: str, *parts: str) -> bool:
    """Whether it is of so many texts as its kind, and these are what they are called."""
    if len(parts) != _FACTS.get(what, len(parts)):
        return False
    if what == "package":
        return names_a_package(*parts)
    if what == "document":
        try:
            return isinstance(given.parsed(parts[0]), dict)
        except (ValueError, RecursionError):
            return False
    return what != "lock" or bool(_COUNTED.fullmatch(" ".join(parts)))


def wrong_log(name: str) -> str:
    """Why a log's name leads anywhere but into the folder of logs; empty where it does not, or there is none."""
    parts = name.split("/")
    if not name or (parts[0] == LOGS and len(parts) == 3 and all(map(_NAME.fullmatch, parts))):
        return ""
    return f"log: {name[:80]!r}: expected {LOGS}/CELL/NAME, below the store"


def log_of(folder: Path, name: str) -> bytes | None:
    """A log of a store, None where it has none by that name.

    Raises:
        NotTakenError: A link is among its folders, or it is no regular file of a log's size.
    """
    if wrong := wrong_log(name):
        raise NotTakenError(wrong)
    with contextlib.ExitStack() as stack:
        try:
            where = stack.enter_context(_walked(folder, name, make=False))
            found = os.stat(name.rpartition("/")[2], dir_fd=where, follow_symlinks=False)
            if not stat.S_ISREG(found.st_mode) or found.st_size > LARGEST_LOG:
                raise NotTakenError(
                    f"log: {name}: expected a regular file of at most {LARGEST_LOG >> 20} MiB"
                )
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            file = stack.enter_context(os.fdopen(os.open(name.rpartition("/")[2], flags, dir_fd=where), "rb"))
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno not in _IN_THE_WAY:
                raise
            raise NotTakenError(
                f"log: {name}: {error.strerror}: expected folders and a file, no link"
            ) from None
        return file.read(LARGEST_LOG)


def keep_log(folder: Path, name: str, data: bytes, *, replace: bool) -> None:
    """Writes a log of others into a store.

    Args:
        folder: Of the store.
        name: As the event has it.
        data: The log.
        replace: Whether one that is there is replaced; else it stays.

    Raises:
        NotTakenError: It would lie elsewhere, or a link is in the way.
    """
    if wrong := wrong_log(name):
        raise NotTakenError(wrong)
    last = name.rpartition("/")[2]
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with _walked(folder, name, make=True) as where:
            if replace:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(last, dir_fd=where)
            with os.fdopen(os.open(last, flags, 0o644, dir_fd=where), "wb") as file:
                file.write(data)
    except FileExistsError:
        return
    except OSError as error:
        if error.errno not in _IN_THE_WAY:
            raise
        raise NotTakenError(f"log: {name}: {error.strerror}: expected folders and a file, no link") from None


@contextlib.contextmanager
def _walked(folder: Path, name: str, *, make: bool) -> Iterator[int]:
    """The folder of a log, gone to step by step, so that no link is followed below the store."""
    with contextlib.ExitStack() as stack:
        here = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        stack.callback(os.close, here)
        for part in name.split("/")[:-1]:
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, dir_fd=here)
            here = os.open(part, _FOLDER, dir_fd=here)
            stack.callback(os.close, here)
        yield here
