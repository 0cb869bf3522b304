"""Parse the messages of PyTorch's NCCL watchdog, and the output of NCCL's RAS client.

The watchdog reports each rank whose collective timed out: these ranks are the victims. Another rank is taken for the
blocking one only if the watchdog reports that it started fewer collectives of the same process group.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from diagnostics.hang.collect import nccl_ras
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
_WATCHDOG = re.compile(
    r"ProcessGroupNCCL.{0,80}?(?:[wW]atchdog|Heartbeat monitor)|Watchdog caught collective"
)
_TIMED_OUT = re.compile(
    r"due to a collective timeout|Watchdog caught collective operation timeout|Timeout at NCCL work"
)
# Operations whose sizes are the same on every rank.
_SAME_SIZES = ("ALLREDUCE", "BROADCAST", "_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE")
_PAIRS = ("SEND", "RECV", "COALESCED")
_NAMES = {
    "_ALLGATHER_BASE": "all_gather_into_tensor", "_REDUCE_SCATTER_BASE": "reduce_scatter_tensor",
    "ALLTOALL_BASE": "all_to_all_single",
}  # fmt: skip
# RAS: one block per communicator, with operation counts and their ranks.
_RAS_BLOCK = re.compile(r"#\d{1,4}-\d{1,4} \([0-9a-f]{1,20}\) (MISMATCH|INCOMPLETE)")
_RAS_COUNT = re.compile(
    r"(\d{1,6}) ranks? ha(?:s|ve) launched up to operation (\d{1,9})|Missing communicator data"
)
_RAS_RANK = re.compile(r"\s{0,20}Rank (\d{1,6})\b")
_RAS_SUMMARY = re.compile(r"Communicators\.\.\.")
_MAX_RANKS = 1024


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


def parse_lines(lines: list[str]) -> Snapshot | None:
    """Return the ranks in watchdog messages or RAS output; None if the lines have neither."""
    groups: dict[str, dict[int, _RankReport]] = {}
    timeouts: list[re.Match[str]] = []
    is_watchdog = timed_out = False
    for line in lines:
        if not any(word in line for word in ("rank", "Rank", "Watchdog", "NCCL")):
            continue
        is_watchdog = is_watchdog or bool(_WATCHDOG.search(line))
        timed_out = timed_out or bool(_TIMED_OUT.search(line))
        if match := _COUNTS.search(line):
            _add_counts(line, match, groups)
        if match := _TIMEOUT.search(line):
            timeouts.append(match)
    for match in timeouts:
        _add_timeout(match, groups)
    unnamed = Snapshot((_rank_process(None, "wait"),) if timed_out else (), source=_SOURCE)
    if not groups:
        return _parse_ras_text(lines) or (unnamed if is_watchdog else None)
    parts = [_group_snapshot(name, reports) for name, reports in groups.items()]
    best = max(parts, key=lambda part: (ranks_differ(part), len(part.processes)))
    some_wait = any(process.threads[0].frames != (BETWEEN,) for process in best.processes)
    # Ranks that wait for nothing in this group may wait in another group.
    return best if some_wait or not timed_out else unnamed


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


def _rank_process(rank: int | None, operation: str = "") -> Process:
    """Return a rank that waits in a collective operation, or is in none."""
    pid = 1 if rank is None else rank + 1
    frame = StackFrame(C10D, operation) if operation else BETWEEN
    return Process(
        pid, rank=rank, role="trainer", job="reported", threads=(Thread(pid, "MainThread", (frame,)),)
    )


def _parse_ras_text(lines: list[str]) -> Snapshot | None:
    """Parse the text of NCCL's RAS client, which reports how many operations each rank of a communicator has started.

    RAS lists only the smaller set of ranks, which may be those that are ahead.
    """
    blocks: list[tuple[str, list[str]]] = []
    for line in lines:
        if match := _RAS_BLOCK.match(line):
            blocks.append((match[1], []))
        elif blocks:
            blocks[-1][1].append(line)
    for _, body in sorted(blocks, key=lambda block: block[0] != "MISMATCH"):
        ranks = _parse_ras_counts(body)
        most = max([*ranks.values(), 1])
        behind = {rank for rank, started in ranks.items() if started < most}
        if behind and len(behind) < len(ranks):
            processes = [_rank_process(rank, "" if rank in behind else "wait") for rank in sorted(ranks)]
            return Snapshot(tuple(processes), source="NCCL RAS")
    summary = blocks or any(_RAS_SUMMARY.match(line) for line in lines)
    return Snapshot(source="NCCL RAS") if summary else None


def _parse_ras_counts(body: list[str]) -> dict[int, int]:
    counts, listed, started = dict[int, int](), dict[int, int](), -1
    for line in body:
        if count := _RAS_COUNT.search(line):
            started = int(count[2] or 0)
            counts[started] = int(count[1] or 0)
        elif (rank := _RAS_RANK.match(line)) and started >= 0:
            listed.setdefault(int(rank[1]), started)
    world = min(sum(counts.values()), _MAX_RANKS)
    rest = next((number for number in counts if number not in listed.values()), max(counts, default=0))
    return {rank: listed.get(rank, rest) for rank in {*range(world), *listed}} if listed else {}


def ras_snapshot(document: dict[str, Any], name: str) -> Snapshot:
    """Return a RAS document as a snapshot: operations started by each rank of the most uneven communicator.

    Raises:
        ParseError: It has no ranks.
    """
    ranks, missing = nccl_ras.uneven_communicator(document)
    if not ranks:
        raise ParseError(f"{name}: RAS without ranks")
    world = len(ranks) + len(missing)
    processes = [
        replace(
            _rank_process(rank.rank, "wait"), pid=rank.pid or rank.rank + 1, job="localhost:ras", world=world
        )
        for rank in ranks
    ]
    collectives = tuple(Collective(rank.rank, "", rank.started, -1) for rank in ranks)
    return Snapshot(tuple(processes), collectives=collectives, source="NCCL RAS")
