"""What PyTorch itself says of ranks, in words: its checks of collectives, its store, torchfrtrace, NCCL's RAS.

And what a log says that no stack would say better: a question that nobody answers, a lock that is not to be had.
"""

from __future__ import annotations

import re
from dataclasses import replace

from diagnostics.hang.read import ranks, watchdog
from diagnostics.hang.snapshot import NOTICED, Collective, Process, Snapshot, StackFrame, Thread

LOCK_WORDS = "a log's words on the lock of a file"
# Said again and again while the lock of a file is not to be had, or once, as a log's last word.
_FILE_LOCK = re.compile(
    r"(?i)(?:still )?waiting to acquire lock on|Lock \d+ not acquired on|Lock file exists in build directory"
    r"|\bwaiting (?:for|on) (?:the )?(?:file |cache |build |package )?lock(?: file| on| at|:)"
    r"|Blocking waiting for file lock"
)
# Said of every file, and again and again only of one that is not to be had.
_SOFT_LOCK = re.compile(r"Falling back to SoftFileLock for (\S+)")
_AGAIN = 3
_LAST = 5
_WENT_ON = re.compile(r"(?i)(?<!not )acquired on|\d%|\bdownload(?:ed|ing)\b")
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
# NCCL's own guess, and what somebody says of a check's words: who is in what is not to be had from it.
_APART = re.compile(
    r"may be caused by a collective mismatch around rank \d+"
    r"|(?i:\brank \d+ (?:is|was) (?:in|at) (?:an? |the )?`?(?:\w+\.)?(?:barrier|all_?\w+|broadcast|reduce)\b`?"
    r" while (?:the )?(?:others?|other ranks|rank)\b[^.\n]{0,60}\b"
    r"(?:barrier|all_?reduce|all_?gather|broadcast|reduce\w*|gather)\b)"
)
_REACHED = re.compile(r"Rank (\d+) successfully reached monitoredBarrier")
_BARRIER = re.compile(r"Ranks? ([\d, ]+) failed to pass monitoredBarrier")
_STORE = re.compile(
    r"waiting for clients\. \d+/\d+ clients joined"
    r"|Timed out initializing process group in store based barrier"
    r"|retrieving ncclUniqueId from \[\d+\][^\n]{0,120}(?:got error|[Tt]imeout|[Tt]imed out)"
)
# NCCL's RAS, as its client prints it: a block a communicator, counts, and below each the ranks that have it.
_RAS = re.compile(
    r"(?m)^#\d+-\d+ \([0-9a-f]+\) (?P<kind>MISMATCH|INCOMPLETE)\n(?P<body>(?:[ \t]+\S.*\n?|[ \t]*\n)+)"
)
_RAS_COUNT = re.compile(r"(\d+) ranks? ha(?:s|ve) launched up to operation (\d+)|Missing communicator data")
_RAS_RANK = re.compile(r"^\s*Rank (\d+)\b")
# What it prints of a job's communicators above them, whether or not a block follows.
_RAS_SUMMARY = re.compile(r"(?m)^Communicators\.\.\.[^\n]*\n=+[ \t]*\n+Group +Comms +Nodes\b")
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
_CAME = re.compile(r"Completed store-based barrier")
_ENTRY = re.compile(r"['\"]profiling_name['\"]: *['\"](?:\w+:)?_?([a-z]\w*)")
_MOST_RANKS = 1024
# Where a terminal broke a line of PyTorch's: what goes on begins with no mark of a line of its own.
_WRAPPED = re.compile(r"\n(?!\s|\[(?:rank\d|[EWIF][\d ]|\d)|frame #|Traceback|Exception|```|$)")


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
        or (Snapshot(source="NCCL RAS") if _RAS_SUMMARY.search(text) else None)
    )


def _watched(text: str) -> Snapshot | None:
    """What the watchdog says, in lines that a terminal may have broken."""
    found = watchdog.read(text)
    return found if found and found.processes else watchdog.read(_WRAPPED.sub("", text)) or found


def decides(snapshot: Snapshot) -> bool:
    """Whether ranks are told apart by it, or a log says what no stack would say better."""
    return snapshot.source == LOCK_WORDS or ranks.apart(snapshot)


def _numbers(text: str) -> list[int]:
    return sorted({int(part) for part in re.findall(r"\d+", text)})


def _analysed(text: str) -> Snapshot | None:
    """What torchfrtrace says, which names ranks itself."""
    named = _NAMED.search(text)
    operation = ranks.inside(named[1] if named else "wait")
    if match := _MISSING.search(text):
        missing = _numbers(match[1])
        expected = _EXPECTED.search(text, match.start())
        inside = [rank for rank in _numbers(expected[1]) if rank not in missing] if expected else []
        return ranks.of(
            dict.fromkeys(inside, operation) | dict.fromkeys(missing, ranks.outside()), "torchfrtrace"
        )
    if (match := _ERRORS.search(text)) and (expected := _EXPECTED.search(text)):
        guilty = _numbers(match[1])
        rest = [rank for rank in _numbers(expected[1]) if rank not in guilty]
        return ranks.of(
            dict.fromkeys(rest, operation) | dict.fromkeys(guilty, StackFrame(ranks.C10D, "wait")),
            "torchfrtrace",
        )
    return None


def _fingerprinted(text: str) -> Snapshot | None:
    """What PyTorch's check says of ranks whose collectives differ."""
    prints = {int(found[1]): " ".join(found[2].split()) for found in _FINGERPRINTS.finditer(text)}
    if len(prints) > 1:
        told = tuple(Collective(rank, "", 0, -1, said) for rank, said in sorted(prints.items()))
        kinds = {rank: _KIND.search(said) for rank, said in sorted(prints.items())}
        processes = tuple(
            ranks.rank(rank, ranks.inside(kind[1] if kind else "wait")) for rank, kind in kinds.items()
        )
        return Snapshot(processes, collectives=told, source="TORCH_DISTRIBUTED_DEBUG")
    if _MISMATCHED not in text:
        both = (ranks.unnamed(1, "one"), ranks.unnamed(2, "another"))
        return Snapshot(both, source=NOTICED) if _APART.search(text) else None
    # Cut after the first, or before it: whoever the others are, they are in something else.
    source = "TORCH_DISTRIBUTED_DEBUG"
    if not prints:
        return Snapshot((ranks.unnamed(1, "one"), ranks.unnamed(2, "another")), source=source)
    [rank] = prints
    kind = _KIND.search(prints[rank])
    first = (
        ranks.rank(rank, ranks.inside(kind[1]))
        if kind
        else replace(ranks.unnamed(rank + 1, "one"), rank=rank)
    )
    return Snapshot((first, ranks.unnamed(rank + 2, "another")), source=source)


def _barred(text: str) -> Snapshot | None:
    """Who came to a barrier or to a store, and who did not."""
    if match := _BARRIER.search(text):
        missing = _numbers(match[1])
        waiting = next(rank for rank in range(len(missing) + 1) if rank not in missing)
        return ranks.of(
            {waiting: ranks.inside("barrier")} | dict.fromkeys(missing, ranks.outside()), "monitored barrier"
        )
    if reached := sorted({int(rank) for rank in _REACHED.findall(text)}):
        return ranks.of(dict.fromkeys(reached, ranks.inside("barrier")), "monitored barrier")
    waits = [match.end() for match in _WAITS.finditer(text)]
    if _STORE.search(text) or (len(waits) > 1 and not _CAME.search(text, waits[-1])):
        frame = StackFrame("torch/distributed/rendezvous.py", "rendezvous")
        return Snapshot(
            (Process(1, threads=(Thread(1, "MainThread", (frame,), samples=1),)),), source="c10d's store"
        )
    return None


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
            return ranks.of(
                dict.fromkeys(inside, ranks.inside("wait")) | dict.fromkeys(behind, ranks.outside()),
                "NCCL RAS",
            )
    # Of whom it heard nothing, is not where that rank is.
    return Snapshot(source="NCCL RAS") if _RAS.search(text) else None


def _asked(text: str) -> Snapshot | None:
    """A question that nobody answers, or an object that does not come."""
    end = max((match.end() for match in _QUESTION.finditer(text)), default=0)
    if end and not _ANSWERED.search(text, end):
        thread = Thread(1, "MainThread", (StackFrame("getpass.py", "prompt"),), samples=1, stem=1)
        return Snapshot((Process(1, threads=(thread,)),), source="a question in a log")
    locks = [match.end() for match in _FILE_LOCK.finditer(text)]
    after = text[locks[-1] :] if locks else ""
    last = len([line for line in after.splitlines() if line.strip()]) <= _LAST and not _WENT_ON.search(after)
    soft = _SOFT_LOCK.findall(text)
    if len(locks) > 1 or (locks and last) or (len(soft) >= _AGAIN and len(set(soft)) == 1):
        thread = Thread(1, "MainThread", (StackFrame("filelock/_api.py", "acquire"),), samples=1, stem=1)
        return Snapshot((Process(1, threads=(thread,)),), source=LOCK_WORDS)
    return Snapshot(source="Ray's words") if _NOT_LOCAL.search(text) else None


def _excerpt(text: str) -> Snapshot | None:
    """A piece of a flight recorder's document: what it recorded last, of a rank that is not known."""
    entries = _ENTRY.findall(text)
    if not entries:
        return None
    return Snapshot((ranks.rank(0, ranks.inside(entries[-1])),), source="flight recorder, a piece")
