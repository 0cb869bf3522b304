"""What PyTorch itself says of ranks, in words: its watchdog of NCCL, its checks of collectives, torchfrtrace.

The watchdog names who waits. Who holds them up is said only of ranks whose own numbers, in the same group, say so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from diagnostics.hang.snapshot import Collective, Process, Snapshot, StackFrame, Thread

_C10D = "torch/distributed/distributed_c10d.py"
_TIMEOUT = re.compile(
    r"\[(?:PG (?:ID )?(?P<group>\w+)[^\]]{0,120}?)?Rank (?P<rank>\d+)\]\s*"
    r"Watchdog caught collective operation timeout: "
    r"WorkNCCL\((?:SeqNum=(?P<number>\d+), )?OpType=(?P<name>\w+)(?=[,)])(?:, (?P<sizes>NumelIn=\d+, NumelOut=\d+))?"
)
_COUNTS = re.compile(
    r"\[PG (?:ID )?(?P<group>\w+)[^\]]{0,120}?Rank (?P<rank>\d+)\][^\n]{0,300}?"
    r"[Ll]ast enqueued (?:NCCL )?work: (?P<begun>-?\d+), last completed (?:NCCL )?work: (?P<done>-?\d+)"
)
_WORK = re.compile(r"at work: (\d+)")
_TAG = re.compile(r"\[rank(\d+)\]")
_WATCHED = re.compile(
    r"ProcessGroupNCCL.{0,80}?(?:watchdog|Heartbeat monitor)|Watchdog caught collective", re.IGNORECASE
)
_RANKS = r"\{?\[?([\d, ]+)\]?\}?"
_MISSING = re.compile(rf"Not all ranks joining collective.{{0,3000}}?missing ranks:? *{_RANKS}", re.DOTALL)
_EXPECTED = re.compile(rf"expected ranks:? *{_RANKS}")
_ERRORS = re.compile(
    r"Culprit rank (\d+).{0,200}?(?:COLLECTIVE_TYPE|SIZE_OR_SYNTAX|COLLECTIVE_DTYPE)_MISMATCH", re.DOTALL
)
_NAMED = re.compile(r"(?m)\bcollective:? (?:\w+:)?_?([a-z]\w+)")
_FINGERPRINTS = re.compile(
    r"Rank (\d+) is running (?:\w+ )?collective: (?:CollectiveFingerPrint)?\((.{0,400}?)"
    r"(?:\)(?=,? ?but|[\s.,\"']|$)|\Z)",
    re.DOTALL,
)
_KIND = re.compile(r"OpType=(\w+)")
_MISMATCHED = "Detected mismatch between collectives on ranks"
_REACHED = re.compile(r"Rank (\d+) successfully reached monitoredBarrier")
_BARRIER = re.compile(r"Ranks? ([\d, ]+) failed to pass monitoredBarrier")
_STORE = re.compile(
    r"waiting for clients\. \d+/\d+ clients joined"
    r"|Timed out initializing process group in store based barrier"
    r"|retrieving ncclUniqueId from \[\d+\][^\n]{0,200}(?:[Tt]imeout|[Tt]imed out)"
)
# NCCL's RAS, as its client prints it: a block a communicator, counts, and below each the ranks that have it.
_RAS = re.compile(
    r"(?m)^#\d+-\d+ \([0-9a-f]+\) (?P<kind>MISMATCH|INCOMPLETE)\n(?P<body>(?:[ \t]+\S.*\n?|[ \t]*\n)+)"
)
_RAS_COUNT = re.compile(r"(\d+) ranks? ha(?:s|ve) launched up to operation (\d+)|Missing communicator data")
_RAS_RANK = re.compile(r"^\s*Rank (\d+)\b")
# A question that stands at the end of its line, and nobody's answer behind it.
_QUESTION = re.compile(
    r"(?mi)^[^\n]{0,200}?(?:\(3\) Don't visualize my results|Enter your choice:"
    r"|enter, or press ctrl\+c to quit:|\[y/n\]\s*:?|\(y/n\)\s*:?|\(yes/no(?:/\[fingerprint\])?\)\??"
    r"|\bpassword for [^\n:]{1,80}:|\(i?Pdb(?:\+\+)?\)|ipdb>)[ \t`]*$"
)
_ANSWERED = re.compile(r"(?i)You chose|logged in|W&B disabled|Enter your choice: *\S")
# What Ray says of an object that does not come: who should send it is not in it.
_NOT_LOCAL = re.compile(r"Objects \w+ are still not local after \d+s")
# Said every ten seconds: once it is a start like any other.
_WAITS = re.compile(r"Waiting in store based barrier to initialize process group")
_ENTRY = re.compile(r"['\"]profiling_name['\"]: *['\"](?:\w+:)?_?([a-z]\w*)")
# Operations whose sizes are the same on every rank; of the others a root's or a split's may differ.
_MOST_RANKS = 1024
_EVEN = ("ALLREDUCE", "BROADCAST", "_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE")
_NAMES = {
    "ALLREDUCE": "all_reduce", "ALLGATHER": "all_gather", "_ALLGATHER_BASE": "all_gather_into_tensor",
    "REDUCE_SCATTER": "reduce_scatter", "_REDUCE_SCATTER_BASE": "reduce_scatter_tensor", "BROADCAST": "broadcast",
    "REDUCE": "reduce", "ALLTOALL": "all_to_all", "ALLTOALL_BASE": "all_to_all_single", "BARRIER": "barrier",
    "GATHER": "gather", "SCATTER": "scatter", "SEND": "send", "RECV": "recv",
}  # fmt: skip


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
    return (
        _analysed(text)
        or _fingerprinted(text)
        or _barred(text)
        or _served(text)
        or _watched(text)
        or _excerpt(text)
        or _asked(text)
    )


def decides(snapshot: Snapshot) -> bool:
    """Whether ranks are told apart by it."""
    return (
        len({p.threads[0].frames for p in snapshot.processes} | {c.sizes for c in snapshot.collectives}) > 1
    )


def _rank(rank: int, frame: StackFrame) -> Process:
    thread = Thread(rank + 1, "MainThread", (frame,), samples=1, stem=1)
    return Process(rank + 1, rank=rank, role="trainer", job="told", threads=(thread,))


def _in(name: str) -> StackFrame:
    return StackFrame(_C10D, _NAMES.get(name.upper(), name if name in _NAMES.values() else "wait"))


def _out() -> StackFrame:
    return StackFrame("flight recorder", "between_collectives")


def _numbers(text: str) -> list[int]:
    return sorted({int(part) for part in re.findall(r"\d+", text)})


def _analysed(text: str) -> Snapshot | None:
    """What torchfrtrace says, which names ranks itself."""
    named = _NAMED.search(text)
    operation = _in(named[1] if named else "wait")
    if match := _MISSING.search(text):
        missing = _numbers(match[1])
        expected = _EXPECTED.search(text, match.start())
        inside = [rank for rank in _numbers(expected[1]) if rank not in missing] if expected else []
        return _ranks(dict.fromkeys(inside, operation) | dict.fromkeys(missing, _out()), "torchfrtrace")
    if (match := _ERRORS.search(text)) and (expected := _EXPECTED.search(text)):
        guilty = _numbers(match[1])
        rest = [rank for rank in _numbers(expected[1]) if rank not in guilty]
        return _ranks(
            dict.fromkeys(rest, operation) | dict.fromkeys(guilty, StackFrame(_C10D, "wait")), "torchfrtrace"
        )
    return None


def _fingerprinted(text: str) -> Snapshot | None:
    """What PyTorch's check says of ranks whose collectives differ."""
    prints = {int(found[1]): " ".join(found[2].split()) for found in _FINGERPRINTS.finditer(text)}
    if len(prints) > 1:
        told = tuple(Collective(rank, "", 0, -1, said) for rank, said in sorted(prints.items()))
        kinds = {rank: _KIND.search(said) for rank, said in sorted(prints.items())}
        processes = tuple(_rank(rank, _in(kind[1] if kind else "wait")) for rank, kind in kinds.items())
        return Snapshot(processes, collectives=told, source="TORCH_DISTRIBUTED_DEBUG")
    if _MISMATCHED not in text:
        return None
    # Cut after the first, or before it: whoever the others are, they are in something else.
    source = "TORCH_DISTRIBUTED_DEBUG"
    if not prints:
        return Snapshot((_unknown(1, "one"), _unknown(2, "another")), source=source)
    [rank] = prints
    kind = _KIND.search(prints[rank])
    first = _rank(rank, _in(kind[1])) if kind else replace(_unknown(rank + 1, "one"), rank=rank)
    return Snapshot((first, _unknown(rank + 2, "another")), source=source)


def _unknown(pid: int, which: str) -> Process:
    """A rank whose number and collective are not said."""
    frames = (_in("wait"), StackFrame("PyTorch's check", which))
    return Process(
        pid,
        role="trainer",
        job="told",
        threads=(Thread(pid, "MainThread", frames, samples=1, stem=2),),
    )


def _barred(text: str) -> Snapshot | None:
    """Who came to a barrier or to a store, and who did not."""
    if match := _BARRIER.search(text):
        missing = _numbers(match[1])
        waiting = next(rank for rank in range(len(missing) + 1) if rank not in missing)
        return _ranks({waiting: _in("barrier")} | dict.fromkeys(missing, _out()), "monitored barrier")
    if reached := sorted({int(rank) for rank in _REACHED.findall(text)}):
        return _ranks(dict.fromkeys(reached, _in("barrier")), "monitored barrier")
    if _STORE.search(text) or len(_WAITS.findall(text)) > 1:
        frame = StackFrame("torch/distributed/rendezvous.py", "rendezvous")
        return Snapshot(
            (Process(1, threads=(Thread(1, "MainThread", (frame,), samples=1),)),), source="c10d's store"
        )
    return None


def _ranks(frames: dict[int, StackFrame], source: str) -> Snapshot:
    return Snapshot(tuple(_rank(rank, frame) for rank, frame in sorted(frames.items())), source=source)


def _served(text: str) -> Snapshot | None:
    """NCCL's RAS in words: who has begun less, in the block that tells ranks apart best.

    It lists the ranks of the smaller part, which may be those that are ahead: then those behind are all others.
    """
    for block in sorted(_RAS.finditer(text), key=lambda match: match["kind"] != "MISMATCH"):
        counts, listed, begun = dict[int, int](), dict[int, int](), -1
        for line in block["body"].splitlines():
            if count := _RAS_COUNT.search(line):
                begun = int(count[2] or 0)
                counts[begun] = int(count[1] or 0)
            elif (rank := _RAS_RANK.match(line)) and begun >= 0:
                listed.setdefault(int(rank[1]), begun)
        most, world = max(counts, default=0), min(sum(counts.values()), _MOST_RANKS)
        rest = next((begun for begun in counts if begun not in listed.values()), most)
        told = {rank: listed.get(rank, rest) for rank in set(range(world)) | set(listed)} if listed else {}
        behind = {rank for rank, number in told.items() if number < max(most, 1)}
        if behind and len(behind) < len(told):
            inside = sorted(set(told) - behind)
            return _ranks(dict.fromkeys(inside, _in("wait")) | dict.fromkeys(behind, _out()), "NCCL RAS")
    return None


def _watched(text: str) -> Snapshot | None:
    groups = _groups(text)
    if not groups:
        return Snapshot(source="NCCL watchdog") if _WATCHED.search(text) else None
    # The group in which ranks are told apart; else the one of which most is said.
    parts = [_judged(name, told) for name, told in groups.items()]
    return max(parts, key=lambda part: (decides(part), len(part.processes)))


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
            processes.append(_rank(rank, _in("wait" if paired else one.name)))
            if one.number is not None and one.number == first and one.name and not paired:
                sizes = one.sizes if one.name in _EVEN and known else ""
                collectives.append(Collective(rank, "", one.number, one.done or -1, one.name, sizes))
        elif first is None or (one.begun is not None and one.begun < first):
            processes.append(_rank(rank, _out()))
    if len(collectives) < len(waiting):
        collectives = []
    return Snapshot(tuple(processes), collectives=tuple(collectives), source="NCCL watchdog")


def _asked(text: str) -> Snapshot | None:
    """A question that nobody answers, or an object that does not come."""
    end = max((match.end() for match in _QUESTION.finditer(text)), default=0)
    if end and not _ANSWERED.search(text, end):
        thread = Thread(1, "MainThread", (StackFrame("getpass.py", "prompt"),), samples=1, stem=1)
        return Snapshot((Process(1, threads=(thread,)),), source="a question in a log")
    return Snapshot(source="Ray's words") if _NOT_LOCAL.search(text) else None


def _excerpt(text: str) -> Snapshot | None:
    """A piece of a flight recorder's document: what it recorded last, of a rank that is not known."""
    entries = _ENTRY.findall(text)
    if not entries:
        return None
    return Snapshot((_rank(0, _in(entries[-1])),), source="flight recorder, a piece")
