"""Parse reports about NCCL's ranks: log messages of PyTorch's watchdog, and the JSON of NCCL's RAS (ncclras).

Ranks whose collective timed out are waiting. Another rank that the watchdog reports counts as blocking if it started
fewer collectives of the same process group, or if no timeout has a sequence number. `parse_watchdog` reads the
messages, `ras_snapshot` the JSON.
"""

import re
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any

from diagnostics.hang.collectives import normalized_operation
from diagnostics.hang.parsers import ParseError
from diagnostics.hang.parsers.flight_recorder import rank_process, to_int
from diagnostics.hang.snapshot import Collective, Snapshot

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
_POINT_TO_POINT = ("SEND", "RECV", "COALESCED")


@dataclass
class _RankReport:
    """The watchdog's report on one rank in one process group; None for numbers that it does not contain.

    Attributes:
        number: Sequence number of the collective that timed out.
        name: Operation of this collective.
        sizes: Input and output sizes of this collective.
        enqueued: Number of the last collective that the rank started.
        completed: Number of the last collective that the rank finished.
    """

    number: int | None = None
    name: str = ""
    sizes: str = ""
    enqueued: int | None = None
    completed: int | None = None

    @property
    def waits(self) -> bool:
        """Whether a collective of the rank timed out."""
        return self.number is not None or bool(self.name)


_Groups = dict[str, dict[int, _RankReport]]


def parse_watchdog(lines: list[str]) -> Snapshot | None:
    """Return the ranks of one process group: one whose ranks differ, or else the largest; None if no rank waits."""
    groups: _Groups = defaultdict(lambda: defaultdict(_RankReport))
    for line in lines:
        if "ast enqueued" in line:
            _read_counts(line, groups)
        if "Watchdog caught" in line:
            _read_timeout(line, groups)
    waiting = (group for group in groups.values() if any(report.waits for report in group.values()))
    parts = map(_group_snapshot, waiting)
    return max(parts, key=lambda part: (ranks_differ(part), len(part.processes)), default=None)


def ranks_differ(snapshot: Snapshot) -> bool:
    """Return whether ranks differ: in their collective or its sizes, or because some are in none."""
    frames = {process.threads[0].frames for process in snapshot.processes}
    return len(frames | {(c.sizes,) for c in snapshot.collectives}) > (2 if snapshot.collectives else 1)


def _read_counts(line: str, groups: _Groups) -> None:
    if match := _COUNTS.search(line):
        tag, work = _RANK_TAG.search(line), _WORK.search(line)
        report = groups[match["group"]][int(tag[1]) if tag else int(match["rank"])]
        if report.enqueued is None:
            report.enqueued, report.completed = int(match["enqueued"]), int(match["completed"])
        if work and report.number is None:
            report.number = int(work[1])


def _read_timeout(line: str, groups: _Groups) -> None:
    if match := _TIMEOUT.search(line):
        report = groups[match["group"] or ""][int(match["rank"])]
        number = int(match["number"]) if match["number"] else None
        if not report.name and report.number in (None, number):
            report.number, report.name, report.sizes = number, match["name"], match["sizes"] or ""


def _group_snapshot(reports: dict[int, _RankReport]) -> Snapshot:
    """Return a process group's ranks: timed-out ranks wait in their collective, others are in none or left out.

    A rank is in none if it has not started the first collective that timed out, or if no timeout has a sequence number.
    """
    waiting = {rank: r for rank, r in reports.items() if r.waits}
    first = min((r.number for r in waiting.values() if r.number is not None), default=None)
    names = {r.number: r.name for r in waiting.values() if r.name}
    for report in waiting.values():
        report.name = report.name or names.get(report.number, "")
    # Point-to-point operations (SEND, RECV) have separate sequence numbers.
    unclear = any(r.name in _POINT_TO_POINT or not r.name for r in waiting.values())
    sizes_known = all(r.sizes for r in waiting.values())
    processes, collectives = [], []
    for rank, report in sorted(reports.items()):
        if report.waits:
            processes.append(rank_process(rank, "wait" if unclear else normalized_operation(report.name)))
            if report.number is not None and report.number == first and not unclear:
                sizes = report.sizes if report.name in _SAME_SIZES and sizes_known else ""
                done = report.completed or -1
                collectives.append(Collective(rank, "", report.number, done, report.name, sizes))
        elif first is None or (report.enqueued is not None and report.enqueued < first):
            processes.append(rank_process(rank, ""))
    all_numbered = len(collectives) == len(waiting)
    return Snapshot(tuple(processes), collectives=tuple(collectives) if all_numbered else (), source=_SOURCE)


def ras_snapshot(document: dict[str, Any], name: str) -> Snapshot:
    """Return a RAS document as a snapshot: the ranks of one communicator, an uneven one or else the largest.

    Raises:
        ParseError: The document has no ranks.
        AttributeError, TypeError, ValueError: A value has another type.
    """
    parts = map(_communicator_snapshot, document["communicators"])
    best = max(parts, key=lambda part: (_is_uneven(part), len(part.processes)), default=Snapshot())
    if not best.processes:
        raise ParseError(f"{name}: RAS without ranks")
    return best


def _communicator_snapshot(communicator: dict[str, Any]) -> Snapshot:
    """Return the ranks of a communicator, each with the number of collectives that it has started."""
    ranks = [item for item in communicator.get("ranks", ()) if isinstance(item.get("rank"), int)]
    world = len(ranks) + len(communicator.get("missing_ranks", ()))
    processes, collectives = [], []
    for item in ranks:
        process = rank_process(item["rank"], "wait", job="localhost:ras")
        pid = to_int(item.get("pid"))
        processes.append(replace(process, pid=pid or process.pid, world=world, numbered=not pid))
        counts = item.get("collective_counts") or item.get("coll_op_counts") or {}
        collectives.append(Collective(item["rank"], "", to_int(sum(map(to_int, counts.values()))), -1))
    return Snapshot(tuple(processes), collectives=tuple(collectives), source="NCCL RAS")


def _is_uneven(part: Snapshot) -> bool:
    """Return whether some ranks of a communicator are missing, or started fewer collectives than others."""
    missing = any(process.world != len(part.processes) for process in part.processes)
    return missing or len({collective.enqueued for collective in part.collectives}) > 1
