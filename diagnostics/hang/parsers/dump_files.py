"""Read dump files, or standard input, into one snapshot: bundles, stacks in text form, flight recorders, NCCL reports.

A bundle is a snapshot that `hang --save` wrote. `parse_dump` recognises the format by the content. `read_files` reads
all files as one job; an unreadable file is skipped and reported, unless no file can be read. Processes and threads
beyond limits are dropped and counted as missing.
"""

import contextlib
import itertools
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from diagnostics import safe_io
from diagnostics.cpu_limit import MB, CpuLimitError, cpu_limit
from diagnostics.fixes import count_of
from diagnostics.hang.collect import stacks
from diagnostics.hang.collect.discovery import role_of_title
from diagnostics.hang.parsers import ParseError, bundle, flight_recorder, nccl, stack_text
from diagnostics.hang.snapshot import Process, Snapshot, join_snapshots
from diagnostics.output.redact import truncate

MAX_BYTES = 256 << 20
MAX_LINE = 1000
MAX_PROCESSES, MAX_THREADS = 1024, 512
"""Limits of processes, and of threads in each; the report counts those beyond them."""
# Limit of processor time for a dump and for each megabyte of it; a real one needs up to 1 s.
_PARSE_S = 8.0
EXPECTED = (
    "expected a snapshot of hang --save, stacks of py-spy, faulthandler, gdb or pystack, "
    "a flight recorder's dump, NCCL RAS, or a log with 'Watchdog caught collective operation timeout'; "
    "triage reads other logs"
)
_COLOUR = re.compile(r"\x1b\[[0-9;]{0,20}[A-Za-z]")
# A launcher's or Ray's mark before each line.
_TAG = re.compile(
    r"\s{0,20}(?:\[(?:rank|default|RANK )?(?P<rank>\d{1,6})\]: ?"
    r"|\((?P<name>[\w:.\- ]{1,80} )?pid=(?P<pid>\d{1,9})(?:, ip=[\d.]{1,40})?\) ?)"
)
_WATCHDOG = re.compile(r"\[Rank \d|Watchdog|\[PG ")
_ROLE_OF_FUNCTION = {
    "_worker_loop": "data loader worker", "worker_busy_loop": "engine worker", "run_busy_loop": "engine core",
}  # fmt: skip


def read_files(names: Sequence[str]) -> Snapshot:
    """Read all files as one job.

    Raises:
        ParseError: None of the files could be read, or several are bundles.
        CpuLimitError: The only file needs too much processor time.
    """
    parts: list[Snapshot] = []
    errors: dict[str, str] = {}
    for name in names:
        try:
            data = _read_bytes(name)
            with cpu_limit(f"{name}: reading it", _PARSE_S * (1 + len(data) / MB)):
                parts.append(parse_dump(name, data))
        except (ParseError, CpuLimitError) as error:
            if len(names) == 1:
                raise
            errors[name] = str(error)
    if not parts:
        raise ParseError("; ".join(errors.values()))
    joined = _within_limits(_join_files(parts))
    blind = (*joined.blind, *(f"skipped {error}" for error in errors.values()))
    return replace(joined, blind=blind, missing=(*joined.missing, *errors))


def _read_bytes(name: str) -> bytes:
    try:
        if name != "-":
            return safe_io.read_bytes(Path(name), MAX_BYTES, pipes=True)
        data = sys.stdin.buffer.read(MAX_BYTES + 1)
    except OSError as error:
        raise ParseError(f"{name}: cannot be read: {error.strerror or error}") from None
    if len(data) > MAX_BYTES:
        raise ParseError(f"{name}: larger than any dump")
    return data


def parse_dump(name: str, data: bytes) -> Snapshot:
    """Parse a dump of any supported format.

    Raises:
        ParseError: The data is no known dump, or a broken one.
    """
    try:
        if data[:1] == b"\x80" and len(data) > 2 and data[1] <= 5:  # a pickle that Python can load
            return flight_recorder.to_snapshot(flight_recorder.load_pickle(data, name), name)
        text = data.decode("utf-8", errors="replace")
        with contextlib.suppress(json.JSONDecodeError):  # a log line can begin with a bracket too
            if text.lstrip()[:1] in ("{", "["):
                return _parse_document(safe_io.parse_json(text), name)
        return _parse_text(text, name)
    except ParseError:
        raise
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise ParseError(f"{name}: broken: {type(error).__name__}: {truncate(str(error), 120)}") from None


def _parse_document(document: Any, name: str) -> Snapshot:
    """Parse JSON: stacks of py-spy, a flight recorder, NCCL RAS, or a bundle."""
    flight_recorder.check_values(document)
    if isinstance(document, list):
        try:
            threads = stacks.parse_pyspy_json(document)
        except (KeyError, TypeError, ValueError):
            raise ParseError(f"{name}: a JSON list, but not of py-spy dump --json") from None
        return _with_roles([Process(pid, threads=items) for pid, items in threads.items()], "py-spy JSON")
    if flight_recorder.is_recorder(document):
        return flight_recorder.to_snapshot(document, name)
    if isinstance(document, dict) and isinstance(document.get("communicators"), list):
        return nccl.ras_snapshot(document, name)
    return bundle.load(document, name)


def _parse_text(text: str, name: str) -> Snapshot:
    """Parse stacks, or messages of NCCL's watchdog.

    If a text has stacks and messages, the messages count if their ranks differ, or if py-spy did not print the stacks.
    """
    lines = clean_lines(text)
    ranks = nccl.parse_watchdog(lines)
    if ranks is not None and nccl.ranks_differ(ranks):
        return ranks
    # The stacks in a watchdog's report are those of the thread that noticed the timeout, not of the blocked one.
    reader = stack_text.StackReader(lines)
    if (processes := reader.processes()) and (reader.is_pyspy or ranks is None):
        return _with_roles(processes, "py-spy text" if reader.is_pyspy else "stacks")
    if ranks is None:
        raise ParseError(f"{name}: {EXPECTED}")
    return ranks


def clean_lines(text: str) -> list[str]:
    r"""Return a text's lines, truncated, without colours, and grouped by the rank or process in their marks.

    >>> clean_lines("\x1b[1ma"), clean_lines("[rank1]: a\n[rank0]: b\n[rank1]: c")
    (['a'], ['rank 1', 'a', 'c', 'rank 0', 'b'])
    """
    groups: dict[str, list[str]] = {"": []}
    for raw in text.splitlines():
        line = truncate(raw, MAX_LINE).rstrip()
        line = _COLOUR.sub("", line) if "\x1b" in line else line
        tag = _TAG.match(line) if line and not _WATCHDOG.search(line) else None
        if tag is None:
            groups[""].append(line)
            continue
        head = f"rank {tag['rank']}" if tag["rank"] else f"Process {tag['pid']}: {tag['name'] or ''}".strip()
        groups.setdefault(head, [head]).append(line[tag.end() :])
    return [line for lines in groups.values() for line in lines]


def _with_roles(processes: Sequence[Process], source: str) -> Snapshot:
    """Return a snapshot of the processes, with roles by titles and frames, because a dump has no other evidence."""
    labelled = []
    for process in processes:
        role, rank = role_of_title(process.title)
        functions = {frame.function for thread in process.threads for frame in thread.frames}
        by_function = next((name for key, name in _ROLE_OF_FUNCTION.items() if key in functions), "")
        if role == "process" or by_function == "data loader worker":
            role = by_function or process.role
        labelled.append(replace(process, role=role, rank=process.rank if process.rank is not None else rank))
    return Snapshot(tuple(_distinct_pids(labelled)), source=source)


def _distinct_pids(processes: Sequence[Process]) -> list[Process]:
    """Make process ids unique, because dumps may repeat an id or have none."""
    unused = itertools.count(max((process.pid for process in processes), default=0) + 1)
    distinct: dict[int, Process] = {}
    for process in processes:
        if process.pid in distinct:
            process = replace(process, pid=next(unused), numbered=True)  # noqa: PLW2901
        distinct[process.pid] = process
    return list(distinct.values())


def _within_limits(snapshot: Snapshot) -> Snapshot:
    """Return the first processes and threads, and count the others as missing."""
    first = snapshot.processes[:MAX_PROCESSES]
    processes = tuple(map(_within_thread_limit, first))
    threads = sum(len(process.threads) for process in first) - sum(len(p.threads) for p in processes)
    counts = ((len(snapshot.processes) - len(first), "process"), (threads, "thread"))
    beyond = tuple(f"{count_of(count, name)} beyond the limit" for count, name in counts if count)
    blind, missing = (*snapshot.blind, *beyond), (*snapshot.missing, *beyond)
    return replace(snapshot, processes=processes, blind=blind, missing=missing)


def _within_thread_limit(process: Process) -> Process:
    if len(process.threads) <= MAX_THREADS:
        return process
    main = process.main
    main_first = sorted(process.threads, key=lambda thread: thread is not main)
    return replace(process, threads=tuple(main_first[:MAX_THREADS]))


def _join_files(parts: list[Snapshot]) -> Snapshot:
    """Join dumps of one job, usually one file per process."""
    if len(parts) == 1:
        return parts[0]
    if sum(part.live for part in parts) > 1:
        # Each bundle has its own process ids and numbers of addresses.
        raise ParseError("several bundles cannot be joined: observe all hosts at once with --hosts or --ray")
    joined = join_snapshots(parts)
    return replace(joined, processes=tuple(_distinct_pids(joined.processes)))
