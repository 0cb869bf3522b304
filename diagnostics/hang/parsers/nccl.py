"""Parse reports about NCCL's ranks: the messages of PyTorch's watchdog, and the JSON of NCCL's RAS client.

The watchdog reports each rank whose collective timed out: these ranks are the victims. Another rank is taken for the
blocking one only if the watchdog reports that it started fewer collectives of the same process group.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from diagnostics.hang.collectives import normalized_operation
from diagnostics.hang.parsers import ParseError
from diagnostics.hang.parsers.flight_recorder import BETWEEN, C10D
from diagnostics.hang.snapshot import Collective, Process, Snapshot, StackFrame, Thread

_SOURCE = "NCCL watchdog"
_TIMEOUT = re.compile(
    r"\[(?:PG (?:ID )?(?P<group>\w{1,40})[^\]]{0,120}?)?Rank (?P<rank>\d{1,6})\]\s{0,4}"
    r"Watchdog caught collective operation timeout: "
    r"WorkNCCL\((?:SeqNum=(?P<number>\d{1,9}), )?OpType=(?P<name>\w+)(?=[,)])(?:, (?P<sizes>NumelIn=\d+, NumelOut=\d+))?"  # noqa: E501
)
_COUNTS = re.compile(
    r"\[PG (?:ID )?(?P<group>\w{1,40})[^\]]{0,120}?Rank (?P<rank>\d{1,6})\].{0,300}?"
    r"[Ll]ast enqueued (?:NCCL )?work: (?P<enqueued>-?\d{1,9}), last completed (?:NCCL )?work: (?P<completed>-?\d{1,9})"
)
_WORK = re.compile(r"at work(?: sequence id)?: (\d{1,9})")
_RANK_TAG = re.compile(r"\[rank(\d{1,6})\]")
# Operations whose sizes are the same on every rank.
_SAME_SIZES = ("ALLREDUCE", "BROADCAST", "_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE")
_PAIRS = ("SEND", "RECV", "COALESCED")
_NAMES = {
    "_ALLGATHER_BASE": "all_gather_into_tensor", "_REDUCE_SCATTER_BASE": "reduce_scatter_tensor",
    "ALLTOALL_BASE": "all_to_all_single",
}  # fmt: skip


@dataclass
class _RankReport:
    """What the watchdog reports of one rank in one process group; None for numbers that it does not report.

    Attributes:
        number: Sequence number of the collective that timed out.
        name: Its operation.
        enqueued: Number of the last collective that the rank started.
        completed: Number of the last collective that the rank finished.
    """

    number: int | None = None
    name: str = ""
    sizes: str = ""
    enqueued: int | None = None
    completed: int | None = None


def parse_watchdog(lines: list[str]) -> Snapshot | None:
    """Return the ranks of the process group that differs most in the watchdog's messages; None if no rank waits."""
    groups: dict[str, dict[int, _RankReport]] = {}
    timeouts: list[re.Match[str]] = []
    for line in lines:
        if match := _COUNTS.search(line):
            _add_counts(line, match, groups)
        if match := _TIMEOUT.search(line):
            timeouts.append(match)
    for match in timeouts:
        _add_timeout(match, groups)
    parts = [_group_snapshot(name, reports) for name, reports in groups.items()]
    parts = [
        part for part in parts if any(process.threads[0].frames != (BETWEEN,) for process in part.processes)
    ]
    return max(parts, key=lambda part: (ranks_differ(part), len(part.processes)), default=None)


def ranks_differ(snapshot: Snapshot) -> bool:
    """Return whether ranks are in different collectives, or some are in none."""
    frames = {process.threads[0].frames for process in snapshot.processes}
    return len(frames | {(c.sizes,) for c in snapshot.collectives}) > (2 if snapshot.collectives else 1)


def _add_counts(line: str, match: re.Match[str], groups: dict[str, dict[int, _RankReport]]) -> None:
    tag = _RANK_TAG.search(line)
    rank = int(tag[1]) if tag else int(match["rank"])
    report = groups.setdefault(match["group"], {}).setdefault(rank, _RankReport())
    if report.enqueued is None:
        report.enqueued, report.completed = int(match["enqueued"]), int(match["completed"])
    if (work := _WORK.search(line)) and report.number is None:
        report.number = int(work[1])


def _add_timeout(match: re.Match[str], groups: dict[str, dict[int, _RankReport]]) -> None:
    number = int(match["number"]) if match["number"] else None
    # Older releases print the group only in a later line: that of the same work.
    group = match["group"] or next(
        (name for name, ranks in groups.items() if any(r.number == number for r in ranks.values())), ""
    )
    report = groups.setdefault(group, {}).setdefault(int(match["rank"]), _RankReport(number))
    if not report.name and report.number in (None, number):
        report.number, report.name, report.sizes = number, match["name"], match["sizes"] or ""


def _group_snapshot(group: str, reports: dict[int, _RankReport]) -> Snapshot:
    """Return the ranks of a group: those that timed out wait, those that started fewer collectives are missing."""
    waiting = {rank: r for rank, r in reports.items() if r.number is not None or r.name}
    numbers = {r.number for r in waiting.values()}
    first = min((number for number in numbers if number is not None), default=None)
    names = {r.number: r.name for r in waiting.values() if r.name}
    for report in waiting.values():
        report.name = report.name or names.get(report.number, "")
    # Pairs have numbers of their own, and without a group other numbers may belong to another group.
    unclear = any(r.name in _PAIRS or not r.name for r in waiting.values()) or (
        not group and len(numbers) > 1
    )
    sizes_known = all(r.sizes for r in waiting.values())
    processes, collectives = [], []
    for rank, report in sorted(reports.items()):
        if rank in waiting:
            processes.append(_rank_process(rank, "wait" if unclear else _operation(report.name)))
            if report.number is not None and report.number == first and not unclear:
                sizes = report.sizes if report.name in _SAME_SIZES and sizes_known else ""
                done = report.completed or -1
                collectives.append(Collective(rank, "", report.number, done, report.name, sizes))
        elif first is None or (report.enqueued is not None and report.enqueued < first):
            processes.append(_rank_process(rank))
    all_numbered = len(collectives) == len(waiting)
    return Snapshot(tuple(processes), collectives=tuple(collectives) if all_numbered else (), source=_SOURCE)


def _operation(name: str) -> str:
    return _NAMES.get(name.upper(), normalized_operation(name))


def _rank_process(rank: int, operation: str = "") -> Process:
    """Return a rank that waits in a collective operation, or is in none."""
    pid = rank + 1
    frame = StackFrame(C10D, operation) if operation else BETWEEN
    return Process(
        pid, rank=rank, role="trainer", job="reported", threads=(Thread(pid, "MainThread", (frame,)),)
    )


@dataclass(frozen=True)
class _RasRank:
    rank: int
    started: int
    pid: int


def is_ras_document(document: Any) -> bool:
    """Return whether a JSON document looks like NCCL's RAS."""
    return isinstance(document, dict) and isinstance(document.get("communicators"), list)


def ras_snapshot(document: dict[str, Any], name: str) -> Snapshot:
    """Return a RAS document as a snapshot: the ranks of the most uneven communicator, else of the largest.

    Raises:
        ParseError: It has no ranks.
    """
    communicators = [
        (_ras_ranks(item), len(item.get("missing_ranks", ()))) for item in document["communicators"]
    ]
    ranks, missing = max(
        communicators, key=lambda item: (len({rank.started for rank in item[0]}) > 1 or item[1] > 0, len(item[0])),
        default=([], 0),
    )  # fmt: skip
    if not ranks:
        raise ParseError(f"{name}: RAS without ranks")
    processes = tuple(
        replace(
            _rank_process(rank.rank, "wait"),
            pid=rank.pid or rank.rank + 1,
            job="localhost:ras",
            world=len(ranks) + missing,
        )
        for rank in ranks
    )
    collectives = tuple(Collective(rank.rank, "", rank.started, -1) for rank in ranks)
    return Snapshot(processes, collectives=collectives, source="NCCL RAS")


def _ras_ranks(communicator: dict[str, Any]) -> list[_RasRank]:
    """Return the ranks of a communicator, each with the number of collectives that it has started."""
    ranks = []
    for item in communicator.get("ranks", ()):
        counts = item.get("collective_counts") or item.get("coll_op_counts") or {}
        if isinstance(item.get("rank"), int) and isinstance(counts, dict):
            ranks.append(_RasRank(item["rank"], sum(map(int, counts.values())), int(item.get("pid", 0))))
    return ranks
