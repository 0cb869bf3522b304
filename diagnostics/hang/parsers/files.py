"""Read dump files of any supported format into one snapshot. An unreadable file is skipped and reported by name."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import re
import sys
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from diagnostics import safe_io
from diagnostics.hang.collect import nccl_ras, stacks
from diagnostics.hang.collect.discovery import role_of_title
from diagnostics.hang.parsers import ParseError, bundle, flight_recorder, stack_text, watchdog
from diagnostics.hang.snapshot import WATCHDOG_DUMP, Process, Snapshot, join_snapshots
from diagnostics.output.redact import mask_and_cut

MAX_BYTES = 256 << 20
EXPECTED = (
    "expected a bundle, stacks of py-spy, faulthandler, gdb or pystack, a flight recorder's dump or NCCL RAS"
)
# A server that noticed that its own step does not end.
_WATCHDOG_MARKS = ("watchdog timeout", "watchdog_timeout", "Pyspy dump for PID")

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


def read_files(names: Sequence[str]) -> Snapshot:
    """Read all files as one job.

    Raises:
        ParseError: None of the files could be read.
    """
    parts: list[tuple[str, Snapshot]] = []
    errors: list[tuple[str, str]] = []
    for name in names:
        try:
            parts.append((name, parse_dump(name, _read_bytes(name))))
        except ParseError as error:
            errors.append((Path(name).name, str(error)))
    if not parts:
        raise ParseError(errors[0][1] if len(errors) == 1 else "; ".join(error for _, error in errors))
    joined = parts[0][1] if len(parts) == 1 else _join_files(parts)
    skipped = tuple(f"skipped {error}" for _, error in errors)
    return replace(
        joined, blind=(*joined.blind, *skipped), missing=(*joined.missing, *(name for name, _ in errors))
    )


def _read_bytes(name: str) -> bytes:
    try:
        if name == "-":
            data = sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            data = safe_io.read_bytes(Path(name), MAX_BYTES, pipes=True)
        if data[:2] == b"\x1f\x8b":
            with gzip.GzipFile(fileobj=io.BytesIO(data)) as packed:
                data = packed.read(MAX_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ParseError(f"{name}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(data) > MAX_BYTES:
        raise ParseError(f"{name}: larger than any dump")
    return data


def parse_dump(name: str, data: bytes) -> Snapshot:
    """Parse a dump of any kind.

    Raises:
        ParseError: It is none, or broken.
    """
    try:
        if flight_recorder.is_pickle(data):
            return flight_recorder.to_snapshot(flight_recorder.load_pickle(data, name), name)
        text = data.decode("utf-8", errors="replace")
        document = None
        if text.lstrip()[:1] in ("{", "["):
            with contextlib.suppress(json.JSONDecodeError):  # a log line can begin with a bracket too
                document = safe_io.parse_json(text)
        if document is not None:
            return _parse_document(document, name)
        return _parse_text(text, name)
    except ParseError:
        raise
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise ParseError(f"{name}: broken: {type(error).__name__}: {mask_and_cut(str(error), 120)}") from None


def _parse_document(document: Any, name: str) -> Snapshot:
    if isinstance(document, list):
        try:
            threads = stacks.parse_pyspy_json(document)
        except (KeyError, TypeError, ValueError):
            raise ParseError(f"{name}: a JSON list, but not of py-spy dump --json") from None
        return _with_roles([Process(pid, threads=items) for pid, items in threads.items()], "py-spy JSON")
    if flight_recorder.is_recorder(document):
        return flight_recorder.to_snapshot(document, name)
    if nccl_ras.is_ras_document(document):
        return watchdog.ras_snapshot(document, name)
    return bundle.load(document, name)


def _parse_text(text: str, name: str) -> Snapshot:
    lines = clean_lines(text)
    reports = watchdog.parse_lines(lines)
    if reports is not None and watchdog.ranks_differ(reports):
        return reports
    if processes := stack_text.parse_pyspy(lines):
        watched = any(mark in line for line in lines for mark in _WATCHDOG_MARKS)
        return _with_roles(processes, f"py-spy text{f' {WATCHDOG_DUMP}' if watched else ''}")
    if processes := stack_text.parse_stacks(lines):
        # Of a watchdog's report the stacks are those of the thread that only noticed.
        return reports if reports is not None and reports.processes else _with_roles(processes, "stacks")
    if reports is not None:
        return reports
    raise ParseError(f"{name}: {EXPECTED}")


def clean_lines(text: str) -> list[str]:
    r"""Return the lines of a text, cut and without colours and quote marks; interleaved lines are sorted by rank.

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


_ROLE_OF_FUNCTION = {"worker_busy_loop": "engine worker", "run_busy_loop": "engine core"}


def _with_roles(processes: Sequence[Process], source: str) -> Snapshot:
    """Add roles by process titles and frames, the only evidence in a dump."""
    labelled = []
    for process in processes:
        role, rank = role_of_title(process.title)
        functions = {frame.function for thread in process.threads for frame in thread.frames}
        if "_worker_loop" in functions:
            role = "data loader worker"
        elif role == "process":
            by_function = (name for function, name in _ROLE_OF_FUNCTION.items() if function in functions)
            role = next(by_function, process.role)
        labelled.append(replace(process, role=role, rank=process.rank if process.rank is not None else rank))
    return Snapshot(tuple(_distinct_pids(labelled)), source=source)


def _distinct_pids(processes: Sequence[Process]) -> list[Process]:
    """Make process ids unique: dumps may repeat one, or have none."""
    distinct, used = [], set()
    for process in processes:
        pid = process.pid
        while pid in used:
            pid += 1
        used.add(pid)
        distinct.append(replace(process, pid=pid))
    return distinct


def _join_files(parts: list[tuple[str, Snapshot]]) -> Snapshot:
    """Join bundles of several hosts, or one file per process."""
    bundles = sum(part.live for _, part in parts)
    placed = [_as_host(part, Path(name).stem) if bundles > 1 and part.live else part for name, part in parts]
    joined = join_snapshots(placed)
    return joined if bundles > 1 else replace(joined, processes=tuple(_distinct_pids(joined.processes)))


def _as_host(part: Snapshot, host: str) -> Snapshot:
    """Return the bundle of one host for a join. Each bundle numbers its addresses, so they get the host's name."""
    if any(process.host for process in part.processes):
        return part
    numbered = json.dumps(part.to_json()).replace('"address-', f'"{json.dumps(host)[1:-1]} address-')
    note = "addresses of different bundles are not joined: use --hosts or --ray for that"
    snapshot = Snapshot.from_json(json.loads(numbered)).on_host(host)
    return replace(snapshot, notes=(*snapshot.notes, note))
