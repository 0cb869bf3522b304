"""Reads files of any known kind into one snapshot."""

from __future__ import annotations

import gzip
import io
import json
import re
import sys
import zlib
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diagnostics import given
from diagnostics.collect.secrets import cut
from diagnostics.hang import frames, roles
from diagnostics.hang.read import (
    ReadError,
    apple,
    bundle,
    byhand,
    deaths,
    kernels,
    listed,
    logged,
    notations,
    pasted,
    prefixes,
    pyspy,
    ranks,
    recorder,
    served,
    several,
    told,
    tracebacks,
    weighed,
)
from diagnostics.hang.snapshot import DIED, NOTICED, SAID, WATCHED, Process, Snapshot

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diagnostics.hang.snapshot import Collective

MOST_BYTES = 256 * 2**20
# A document that somebody pasted among words, or between fences.
_FENCED = re.compile(r"(?ms)^```\w*\n(.*?)^```")
_BEGINS = re.compile(r"(?m)^[^\S\n]*(?=[{\[])")
_BLANKS = re.compile(r"\s*")
_TRIES = 20
# A server that found its own step to stand.
_WATCHDOG = re.compile(r"(?i)watchdog[ _]timeout|Pyspy dump for PID")
_LONGEST = 1000
# Who only noticed that something stands: others do, while one is dead.
_NOTICES = (NOTICED, "NCCL watchdog")
_NONE = "expected a bundle, stacks of py-spy, faulthandler, gdb or pystack, or a flight recorder's dump"


def read(names: Sequence[str]) -> Snapshot:
    """All that the files say, as one job.

    Raises:
        ReadError: A file can't be read, or nothing in it is a dump that is known.
    """
    parts = [(name, _understood(name, _bytes(name))) for name in names]
    if len(parts) == 1:
        return parts[0][1]
    return several.joined(parts)


def _bytes(name: str) -> bytes:
    try:
        piped = name == "-"
        data = (
            sys.stdin.buffer.read(MOST_BYTES + 1) if piped else given.read(Path(name), MOST_BYTES, pipes=True)
        )
        if data[:2] == b"\x1f\x8b":
            with gzip.GzipFile(fileobj=io.BytesIO(data)) as packed:
                data = packed.read(MOST_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ReadError(f"{name}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(data) > MOST_BYTES:
        raise ReadError(f"{name}: larger than any dump")
    return data


def _understood(name: str, data: bytes) -> Snapshot:
    """Of the right kind, a dump may still hold something else anywhere: none of its readers expects that."""
    try:
        return _one(name, data)
    except ReadError:
        raise
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise ReadError(f"{name}: broken: {type(error).__name__}: {cut(str(error), 120)}") from None


def _one(name: str, data: bytes) -> Snapshot:
    if recorder.is_pickle(data):
        return _recorded(name, recorder.flight_recorder(data, name))
    if data[:_LONGEST].lstrip()[:1] in (b"{", b"["):
        _bounded(data, name)  # before it becomes a text, which takes as long as all else
    whole = data.decode("utf-8", errors="replace")
    # As it is, first: what a bundle quotes may look like a page's escapes.
    document = _json(whole, name)
    text = pasted.bare(whole) if document is None else ""
    document = _json(text, name) if document is None else document
    if document is not None:
        return _document(document, name)
    return _with_dead(text, name, _told(text, name))


def _told(text: str, name: str) -> Snapshot | None:
    words = told.read(text)
    if words is not None and told.decides(words):
        return words
    found = _stacks(text)
    if (
        found
        and words
        and words.processes
        and words.source == "NCCL watchdog"
        and not _tells(found.processes)
    ):
        return words  # frames of who ended it
    if found and found.processes:
        return found
    others = [_pasted(text, name) or words, logged.read(text), found]
    told_of = next((one for one in others if one and (one.processes or one.collectives)), None)
    return told_of or _sentences(text) or next((one for one in others if one), None)


def _sentences(text: str) -> Snapshot | None:
    found = byhand.said(text)
    return _roled(found, SAID) if found else None


def _with_dead(text: str, name: str, found: Snapshot | None) -> Snapshot:
    """What was read, and who died by the words beside it."""
    dead, said = deaths.read(text), weighed.read(text)
    if found is None and not dead and not said:
        raise ReadError(f"{name}: {_NONE}")
    found = replace(found or Snapshot(source="a log"), said=said)
    if dead and not found.processes and found.source in _NOTICES:
        found = replace(found, processes=(ranks.unnamed(1, "one"),))
    seen = {process.pid for process in found.processes}
    if any(process.state in ("Z", "X") for process in found.processes):
        return found
    # Beside stacks, who is dead by a list of processes or by a log; these have no stack.
    beside = [one for one in listed.processes(text) if one.state == "Z" and one.pid not in seen]
    dead += [replace(one, role=DIED) for one in beside]
    return replace(found, processes=(*found.processes, *dead))


def _document(document: Any, name: str) -> Snapshot:
    if isinstance(document, list):
        return _spied(document, name)
    if recorder.is_recorder(document):
        return _recorded(name, recorder.of_document(document, name))
    return recorder.ras(document, name) if served.is_ras(document) else bundle.read(document, name)


def _stacks(text: str) -> Snapshot | None:
    """Stacks, and what else tells of processes; None if there are none."""
    text = apple.as_lldb(pasted.untagged(prefixes.stripped(text)))
    if pyspy.is_text(text):
        return _spied_text(text)
    if found := kernels.slept(text):
        return _roled(found, "/proc's stacks")
    if found := _in_any_notation(text):
        return _roled(found, "stacks")
    if tracebacks.is_text(text):
        found = tracebacks.from_text(text)
        note = ("what is there is of errors that were raised: python -m diagnostics triage reads them",)
        return replace(_roled(found, "tracebacks"), notes=() if found else note)
    if found := pyspy.bare(text):
        return _roled(found, "py-spy text")
    return _processes(text)


def _spied_text(text: str) -> Snapshot:
    """py-spy's, or the native stacks beside them, where these alone say what is waited for."""
    spied = pyspy.from_text(text)
    native = [] if _tells(spied) else tracebacks.from_text(text)
    if _tells(native):
        return _roled(native, "stacks")
    watched = f" {WATCHED}" if _WATCHDOG.search(text) else ""
    return _roled(spied, f"py-spy text{watched}")


def _processes(text: str) -> Snapshot | None:
    """What is told of processes where there is no stack."""
    if found := byhand.read(text):
        return _roled(found, "calls that somebody wrote down")
    if found := listed.processes(text):
        return Snapshot(tuple(found), source="a list of processes")
    if found := pasted.straced(text):
        return _roled(found, "strace")
    if found := pasted.traced(text):
        return _roled(found, "a trace of lines")
    # Of none of them it says that it stands.
    return Snapshot(source="a list of processes") if listed.headed(text) else None


def _in_any_notation(text: str) -> list[Process]:
    """Stacks of no known tool; none where a known one's notation is the better part of what is there."""
    lines = [line[:_LONGEST] for line in text.splitlines()]
    if not notations.many(lines):
        return []
    known, found = tracebacks.from_text(text), tracebacks.from_text(text, loose=True)
    return found if 2 * _size(found) > 3 * _size(known) else []


def _tells(found: Sequence[Process]) -> bool:
    """Whether a frame says of a process what it waits for."""
    seen = [frame for process in found for thread in process.threads for frame in thread.frames]
    return any(frames.kinds(frame.path, frame.function) for frame in seen)


def _size(found: list[Process]) -> int:
    return sum(len(thread.frames) for process in found for thread in process.threads)


def _pasted(text: str, name: str) -> Snapshot | None:
    """The first document of a known kind among other words; None if there is none."""
    starts = [_BLANKS.match(text, match.start(1)) for match in islice(_FENCED.finditer(text), _TRIES)]
    starts += islice(_BEGINS.finditer(text), _TRIES)
    for start in starts:
        assert start is not None
        try:
            given.bounded(text, start.end())
            return _document(json.JSONDecoder().raw_decode(text, start.end())[0], name)
        except (ValueError, RecursionError, ReadError):
            continue
    return None


def _recorded(name: str, found: tuple[Process, Collective] | None) -> Snapshot:
    if found is None:
        empty = f"{name}: the recorder is empty (is TORCH_FR_BUFFER_SIZE 0?)"
        return Snapshot(source="flight recorder", blind=(empty,))
    return Snapshot((found[0],), collectives=(found[1],), source="flight recorder")


def _json(text: str, name: str) -> Any:
    if text.lstrip()[:1] not in ("{", "["):
        return None
    _bounded(text, name)
    try:
        return given.parsed(text)
    except ValueError:
        return None


def _bounded(document: bytes | str, name: str) -> None:
    try:
        given.bounded(document)
    except given.TooMuchError as error:
        raise ReadError(f"{name}: {error}") from None


def _spied(document: list[Any], name: str) -> Snapshot:
    try:
        found = pyspy.threads(document)
    except (KeyError, TypeError, ValueError):
        raise ReadError(f"{name}: a JSON list, but not of py-spy dump --json") from None
    return _roled([Process(pid, threads=threads) for pid, threads in found.items()], "py-spy JSON")


def _roled(processes: list[Process], source: str) -> Snapshot:
    """Roles by titles and frames: of a dump nothing else is known."""
    found = []
    for process in processes:
        role, rank = roles.by_title(process.title)
        names = {f.function for t in process.threads for f in t.frames}
        if role == "process":
            role = (
                "engine worker"
                if "worker_busy_loop" in names
                else "engine core"
                if "run_busy_loop" in names
                else process.role
            )
        if "_worker_loop" in names:
            role = "data loader worker"
        found.append(replace(process, role=role, rank=process.rank if process.rank is not None else rank))
    return Snapshot(several.apart(found), source=source)
