"""What a dump that others took cannot decide: it is one look, without times, sockets and counters, often of a part."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from diagnostics.hang import frames

if TYPE_CHECKING:
    from diagnostics.hang.judge.sinks import End
    from diagnostics.hang.link.graph import Index
    from diagnostics.hang.stands import Stand

# What a reader of stacks tells by names, not by a guess whether a thread runs.
_SURE = ("compile", "load", "import")
# Causes that are a thread's own wait: of a thread that serves beside the main one they may be how it rests.
_OWN = ("lost_message", "lock", "poll", "elsewhere", "native", "full_pipe", "connect", "pending")
# Waits by which a worker rests; who begins a stack; how deep in code of its own a thread no longer only waits for work.
_RESTS = ("processes_queue", "processes_lock", "pipe")
_BEGINS = ("<module>", "main", "_main", "_bootstrap", "_bootstrap_inner", "_start", "clone", "clone3")
_WORKS = 4
_STARTED = re.compile(r"_bootstrap(_inner)?|_{0,2}clone3?|start_thread|thread_start")
_EXPERTS = re.compile(
    r"moe|mixtral|experts?\b|dbrx|deepseek_v[23]|switch_transformers|granitemoe", re.IGNORECASE
)


def _of_others(index: Index) -> bool:
    return index.snapshot.source != "live"


def interrupted(index: Index, stand: Stand) -> bool:
    """Whether an endless computation is what somebody shows: a thread that had not come through when they looked."""
    return _of_others(index) and stand.kind in ("symbolic", "regex")


def undecided_rest(index: Index, busy: list[str]) -> bool:
    """Whether nobody waits for anybody, but that may be because who does is not in the dump."""
    return _of_others(index) and not any(index.stands[key].kind in _SURE for key in busy)


def rest(index: Index, busy: list[str]) -> str:
    """The sentence for that."""
    many = f"{len(index.stands)} process{'es' if len(index.stands) != 1 else ''}"
    if busy:
        return f"Not known: {len(busy)} of {many} may compute, which one look does not tell; none waits for another."
    return f"Not known: {many} at rest; whether somebody waits for an answer, a dump of them alone does not tell."


def undecided(index: Index, one: End) -> bool:
    """Whether a wait of a dump is one whose other end, or whose main thread, is not in it."""
    if not _of_others(index) or one.chain or one.level != "stuck":
        return False
    stands = [index.stands[key] for key in one.culprits if key in index.stands]
    named = index.snapshot.source.startswith("py-spy")  # what it calls the main thread is it
    if one.cause == "elsewhere" or any(
        _of_nobody(stand) and not (named and stand.steps[0][0].name == "MainThread") for stand in stands
    ):
        return True
    return one.cause in _OWN and bool(stands) and not any(_main(stand) for stand in stands)


def _of_nobody(stand: Stand) -> bool:
    """Whether the text is a piece in which nothing asks: it may be a worker's, which rests so."""
    seen = stand.thread.frames if stand.thread else ()
    return stand.kind in _RESTS and stand.wait.place is None and seen[-1].function not in _BEGINS


def _main(stand: Stand) -> bool:
    """Whether the way to what it waits for begins at the main thread."""
    if not stand.steps:
        return False
    first = stand.steps[0][0]
    named = first.name == "MainThread" or first.tid == stand.process.pid
    own = [frame for frame in first.frames if not frames.LIBRARY.search(frame.path)]
    return named or len(own) >= _WORKS or not (first.frames and _STARTED.fullmatch(first.frames[-1].function))


def away(index: Index, one: End) -> bool:
    """Whether a rank is elsewhere in its own code while others wait in a collective: who took the dump had waited."""
    stands = [index.stands[key] for key in one.culprits if key in index.stands]
    last = one.chain[-1].kind if one.chain else ""
    return _of_others(index) and last == "collective" and any(s.kind == "compute" for s in stands)


def routed(index: Index, one: End) -> str:
    """A sentence, where a rank gathers one layer of a model of experts: ranks that run other experts gather others."""
    if one.chain or one.cause != "native":
        return ""
    for key in one.culprits:
        stand = index.stands[key]
        seen = stand.thread.frames if stand.thread and stand.kind == "collective" else ()
        zero = any(f.function == "fetch_sub_module" and "deepspeed/runtime/zero" in f.path for f in seen)
        if zero and any(_EXPERTS.search(f"{f.path} {f.function}") for f in seen):
            who = f"{stand.process.label[:1].upper()}{stand.process.label[1:]}"
            return (
                f"{who} waits in ZeRO-3's gather of one layer, in a model of experts: ranks whose tokens go to other "
                "experts gather other layers."
            )
    return ""
