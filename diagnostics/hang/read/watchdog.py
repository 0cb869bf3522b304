"""What PyTorch's watchdog of NCCL says, and Horovod's: who waits, and in what.

The watchdog names who waits. Who holds them up is said only of ranks whose own numbers, in the same group, say so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from diagnostics.hang.read import ranks
from diagnostics.hang.snapshot import Collective, Snapshot

_TIMEOUT = re.compile(
    r"\[(?:PG (?:ID )?(?P<group>\w+)[^\]]{0,120}?)?Rank (?P<rank>\d+)\]\s*"
    r"Watchdog caught collective operation timeout: "
    r"WorkNCCL\((?:SeqNum=(?P<number>\d+), )?OpType=(?P<name>\w+)(?=[,)])(?:, (?P<sizes>NumelIn=\d+, NumelOut=\d+))?"
)
_COUNTS = re.compile(
    r"\[PG (?:ID )?(?P<group>\w+)[^\]]{0,120}?Rank (?P<rank>\d+)\][^\n]{0,300}?"
    r"[Ll]ast enqueued (?:NCCL )?work: (?P<begun>-?\d+), last completed (?:NCCL )?work: (?P<done>-?\d+)"
)
_WORK = re.compile(r"at work(?: sequence id)?: (\d+)")
_TAG = re.compile(r"\[rank(\d+)\]")
_WATCHED = re.compile(
    r"ProcessGroupNCCL.{0,80}?(?:watchdog|Heartbeat monitor)|Watchdog caught collective", re.IGNORECASE
)
# Horovod, of operations that some ranks alone have begun.
_STALLED = re.compile(r"tensors were submitted to be reduced, gathered or broadcasted by subset of ranks")
# A collective took longer than allowed, on whichever rank.
_LIMIT = re.compile(
    r"due to a collective timeout|Watchdog caught collective operation timeout|Timeout at NCCL work"
)
# Operations whose sizes are the same on every rank; of the others a root's or a split's may differ.
_EVEN = ("ALLREDUCE", "BROADCAST", "_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE")


@dataclass
class _Told:
    """What the watchdog said of one rank in one group; a number is None where it said none."""

    number: int | None = None
    name: str = ""
    sizes: str = ""
    begun: int | None = None
    done: int | None = None


def read(text: str) -> Snapshot | None:
    """What is said of ranks; None if nothing is."""
    groups = _groups(text)
    if _STALLED.search(text):
        return Snapshot((ranks.unnamed(1, "one"),), source="Horovod's words")
    late = Snapshot((ranks.unnamed(1, "one"),), source="NCCL watchdog")
    if not groups:
        if _LIMIT.search(text):
            return late
        return Snapshot(source="NCCL watchdog") if _WATCHED.search(text) else None
    # The group in which ranks are told apart; else the one of which most is said.
    parts = [_judged(name, told) for name, told in groups.items()]
    best = max(parts, key=lambda part: (ranks.apart(part), len(part.processes)))
    waits = any(p.threads[0].frames != (ranks.outside(),) for p in best.processes)
    # Of those alone that had nothing to wait for it is not said that they are who was late: there are other groups.
    return best if waits or not _LIMIT.search(text) else late


def _groups(text: str) -> dict[str, dict[int, _Told]]:
    """By group and rank, what was said first: later lines are what came of it."""
    found: dict[str, dict[int, _Told]] = {}
    loose: list[tuple[int, re.Match[str]]] = []
    for line in text.splitlines():
        tag = _TAG.search(line)
        if match := _COUNTS.search(line):
            rank = int(tag[1]) if tag else int(match["rank"])
            one = found.setdefault(match["group"], {}).setdefault(rank, _Told())
            if one.begun is None:
                one.begun, one.done = int(match["begun"]), int(match["done"])
            if (work := _WORK.search(line)) and one.number is None:
                one.number = int(work[1])
        elif match := _TIMEOUT.search(line):
            rank = int(tag[1]) if tag else int(match["rank"])
            loose.append((rank, match))
    for rank, match in loose:
        number = int(match["number"]) if match["number"] else None
        # Older ones say the group only in a later line: that of the same work.
        group = match["group"] or next(
            (name for name, told in found.items() if any(one.number == number for one in told.values())), ""
        )
        one = found.setdefault(group, {}).setdefault(rank, _Told(number))
        if not one.name and one.number in (None, number):
            one.number, one.name, one.sizes = number, match["name"], match["sizes"] or ""
    return found


def _judged(group: str, told: dict[int, _Told]) -> Snapshot:
    """Ranks that timed out wait there; one that has begun less than that has not come there."""
    waiting = {rank: one for rank, one in told.items() if one.number is not None or one.name}
    first = min((one.number for one in waiting.values() if one.number is not None), default=None)
    processes, collectives = [], []
    numbers = {one.number for one in waiting.values()}
    # Of pairs each has its own numbers; and where the group is not said, other numbers may be another group's.
    paired = any(one.name in ("SEND", "RECV", "COALESCED") for one in waiting.values()) or (
        not group and len(numbers) > 1
    )
    names = {one.number: one.name for one in waiting.values() if one.name}
    known = all(one.sizes for one in waiting.values())
    for one in waiting.values():
        one.name = one.name or names.get(one.number, "")
    paired = paired or not all(one.name for one in waiting.values())
    for rank, one in sorted(told.items()):
        if rank in waiting:
            processes.append(ranks.rank(rank, ranks.inside("wait" if paired else one.name)))
            if one.number is not None and one.number == first and one.name and not paired:
                sizes = one.sizes if one.name in _EVEN and known else ""
                collectives.append(Collective(rank, "", one.number, one.done or -1, one.name, sizes))
        elif first is None or (one.begun is not None and one.begun < first):
            processes.append(ranks.rank(rank, ranks.outside()))
    if len(collectives) < len(waiting):
        collectives = []
    return Snapshot(tuple(processes), collectives=tuple(collectives), source="NCCL watchdog")
