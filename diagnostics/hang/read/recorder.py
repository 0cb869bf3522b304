"""What recorders of collectives say: PyTorch's flight recorder (its pickles, NCCL and gloo), and NCCL's RAS as JSON.

A pickle runs whatever it names when it is read; ours are read by `pickled`, which knows numbers, texts and containers:
that is all that a flight recorder writes.
"""

from __future__ import annotations

import re
from typing import Any

from diagnostics import given
from diagnostics.collect.secrets import cut
from diagnostics.hang.read import ReadError, pickled, served
from diagnostics.hang.snapshot import Collective, Process, Snapshot, StackFrame, Thread

_RANK = re.compile(r"(\d+)(?:\.\w+)?$")
_OPERATION = re.compile(r"(?:\w+:)?_?([a-z_]+)", re.IGNORECASE)
MOST_BYTES = 256 * 2**20


def is_pickle(data: bytes) -> bool:
    """Whether it may be one: they begin with their protocol's number."""
    return data[:1] == b"\x80" and len(data) > 2 and data[1] <= 5


def flight_recorder(data: bytes, name: str) -> tuple[Process, Collective] | None:
    """One rank's recorder; None if it recorded nothing.

    Raises:
        ReadError: It is none.
    """
    try:
        document = pickled.load(data)
    except pickled.PickledError as error:
        raise ReadError(f"{name}: no flight recorder's pickle: {cut(str(error), 120)}") from None
    if not is_recorder(document):
        raise ReadError(f"{name}: a pickle, but not of PyTorch's flight recorder")
    return of_document(document, name)


def is_recorder(document: Any) -> bool:
    """Whether a document, of a pickle or of JSON, looks like PyTorch's flight recorder."""
    return isinstance(document, dict) and isinstance(document.get("entries"), list)


def of_document(document: dict[str, Any], name: str) -> tuple[Process, Collective] | None:
    """One rank's recorder, as a document; None if it recorded nothing.

    Raises:
        ReadError: It does not say whose it is.
    """
    entries = [entry for entry in document["entries"] if isinstance(entry, dict)]
    match = _RANK.search(name.rpartition("/")[2].removesuffix(".pickle").removesuffix(".pkl"))
    rank = document.get("rank", int(match[1]) if match else None)
    if not isinstance(rank, int):
        raise ReadError(f"{name}: which rank? Its file's name should end with the rank's number")
    status = document.get("pg_status") or {}
    first: dict[str, Any] = next(iter(status.values()), {}) if isinstance(status, dict) else {}
    if not entries:
        return None
    last = entries[-1]
    begun = int(first.get("last_enqueued_collective", last.get("collective_seq_id", 0)) or 0)
    done = int(first.get("last_completed_collective", -1) or 0)
    told = str(last.get("profiling_name") or "")
    matched = _OPERATION.match(told.rpartition(":")[2])
    operation = matched[1].lower() if matched else "collective"
    frames = (
        StackFrame("torch/distributed/distributed_c10d.py", operation),
        *map(_frame, last.get("frames") or ()),
    )
    pending = str(last.get("state")) != "completed" or done < begun
    if not pending:
        frames = (StackFrame("flight recorder", "between_collectives"), *frames[1:])
    process = Process(
        pid=rank + 1,
        rank=rank,
        role="trainer",
        world=_world(document),
        job="recorded",
        threads=(Thread(rank + 1, "MainThread", frames, samples=1, stem=len(frames)),),
    )
    return process, Collective(
        rank, str(last.get("process_group", "")), begun, done, told, str(last.get("input_sizes", ""))
    )


def _frame(item: Any) -> StackFrame:
    return StackFrame(
        str(item.get("filename", "")),
        str(item.get("name", "")).rpartition(".")[2],
        int(item.get("line", 0) or 0),
    )


def _world(document: dict[str, Any]) -> int | None:
    for config in (document.get("pg_config") or {}).values():
        try:
            return len(given.parsed(str(config["ranks"]).replace("'", '"')))
        except (ValueError, KeyError, TypeError):
            continue
    return None


def ras(document: dict[str, Any], name: str) -> Snapshot:
    """NCCL's RAS: operations begun by each rank, of the largest communicator whose counts differ.

    Raises:
        ReadError: It has no ranks.
    """
    best, missing = served.telling(document)
    if not best:
        raise ReadError(f"{name}: RAS without ranks")
    frame = StackFrame("torch/distributed/distributed_c10d.py", "wait")
    processes = tuple(
        Process(
            pid=one.pid or one.rank + 1,
            rank=one.rank,
            role="trainer",
            job="localhost:ras",
            world=len(best) + len(missing),
            threads=(Thread(one.pid or one.rank + 1, "MainThread", (frame,), samples=1, stem=1),),
        )
        for one in best
    )
    return Snapshot(
        processes,
        collectives=tuple(Collective(one.rank, "", one.begun, -1) for one in best),
        source="NCCL RAS",
    )
