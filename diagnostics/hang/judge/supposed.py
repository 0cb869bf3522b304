"""What a dump of a part tells all the same: of which class its cause is, where the wait itself allows no other.

One look at one process names nobody: who a rank waits for in a collective is not in it. That a rank has not come is.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from diagnostics.hang import waits
from diagnostics.hang.judge import sentences
from diagnostics.hang.judge.verdict import HANG, UNKNOWN
from diagnostics.hang.mechanisms import PHRASES, RESTS
from diagnostics.hang.snapshot import DIED, FAILED, NOTICED, OWES, SAID, WATCHED

if TYPE_CHECKING:
    from diagnostics.hang.judge.verdict import HangVerdict
    from diagnostics.hang.link.graph import Index
    from diagnostics.hang.stands import Stand

# By what a process waits in: the cause's class, and what can be said of who would end it.
CLASSES = {
    "collective": ("absent", "a rank of its group has not come, is in another one, or is gone"),
    "device": ("device", "a kernel there, or a collective that a rank has not come to, does not end"),
    "shared": (
        "absent",
        "what it waits for there is of all ranks, and one has not come to it, or is in another one",
    ),
    "threads": ("lock", "a fork has none of its threads, and those of a library may hold a lock"),
    "step": ("device", "what it began on its device does not end"),
}
# A scheduler asks its first rank for requests in a collective: that is how the others rest.
_RESTS = ("recv_requests", "recv_requests_non_zmq")
# What a rank does on its device with the others: the collective has only been begun, and has no frame.
_SHARED = re.compile(
    r"across_processes|nested_gather|deepspeed/runtime/(?:zero|pipe)|fsdp|fully_shard|megatron/|full_tensor|redistribute"
    r"|clip_grad_norm|reduce_scatter|all_gather|all_reduce|barrier|synchronize_communication",
    re.IGNORECASE,
)
# Roles of what failed by the words of a log, and of which class that is; what others may be in then; causes that say
# no more than that these wait.
TOLD = {DIED: "dead", FAILED: "device", OWES: "lost_answer"}
_ON_OTHERS = (
    "collective", "rendezvous", "ray", "ring_read", "ring_write", "queue", "processes_queue", "pipe", "future", "pool",
    "data_loader", "socket", "http", "rpc", "child", "join", "device", "event",
)  # fmt: skip
_UNSAID = ("lost_message", "pending", "elsewhere", "rendezvous", "native", "poll")
# A step of a model, as engines call theirs.
_STEPS = (
    "execute_model", "run_batch", "forward_batch_generation", "forward_extend", "forward_decode", "_forward_raw",
    "process_batch_result",
)  # fmt: skip


def told(index: Index, verdict: HangVerdict) -> HangVerdict:
    """The verdict; where it is `unknown` of a dump, with the class that the waits in it allow, and nobody named."""
    if index.snapshot.source == "live":
        return verdict
    if died := _died(index, verdict):
        return died
    if verdict.outcome == HANG:
        return (
            replace(verdict, certainty="hypothesis") if index.snapshot.source in (NOTICED, SAID) else verdict
        )
    found = {key: kind for key, stand in index.stands.items() if (kind := _kind(index, stand))}
    if not found or (verdict.outcome != UNKNOWN and "step" not in found.values()):
        return verdict
    [(kind, _)] = Counter(found.values()).most_common(1)
    keys = tuple(key for key, one in found.items() if one == kind)
    cause, why = CLASSES[kind]
    sentence = sentences.supposed(index, keys, why)
    return replace(verdict, outcome=HANG, cause=cause, certainty="hypothesis", culprits=(), chain=(), cycle=False,
                   victims=keys, sentence=sentence, evidence=sentences.of_waiters(index, keys))  # fmt: skip


def weighed(index: Index, verdict: HangVerdict) -> HangVerdict:
    """The verdict; where nothing else tells of a dump what it is, with the class that its words are of."""
    said = index.snapshot.said
    stands = index.stands.values()
    rests = bool(stands) and all(stand.kind in waits.IDLE for stand in stands)
    if verdict.outcome != UNKNOWN or said is None or (rests and said.cause in RESTS):
        return verdict
    sentence = f"By its words alone: {PHRASES[said.cause]}. Who holds it up was not read from them."
    return replace(verdict, outcome=HANG, cause=said.cause, certainty="hypothesis", culprits=(), chain=(), cycle=False,
                   victims=(), sentence=sentence, evidence=said.lines)  # fmt: skip


def _died(index: Index, verdict: HangVerdict) -> HangVerdict | None:
    """The verdict where a log says that a process died, and others wait for what they do not say."""
    dead = tuple(key for key, stand in index.stands.items() if stand.process.role in TOLD)
    waiting = tuple(key for key, stand in index.stands.items() if stand.kind in _ON_OTHERS)
    # A device that its driver gave up holds up whoever works on it, an engine whoever asked it; of a process that died
    # that is not known.
    lost = dead and all(stand.process.role in (FAILED, OWES) for stand in index.stands.values())
    if (
        not dead
        or not (waiting or lost)
        or (verdict.outcome == HANG and (verdict.cause not in _UNSAID or verdict.chain))
    ):
        return None
    cause = TOLD[index.stands[dead[0]].process.role]
    found = replace(verdict, outcome=HANG, cause=cause, certainty="hypothesis", culprits=dead, chain=(), cycle=False,
                    victims=waiting)  # fmt: skip
    evidence = (*sentences.of_culprits(index, found), *sentences.of_waiters(index, waiting))
    return replace(found, sentence=sentences.of(index, found), evidence=evidence)


def _kind(index: Index, stand: Stand) -> str:
    """Of which row a process is; empty where what it is in may be how it rests, or works."""
    functions = {frame.function for frame in stand.thread.frames} if stand.thread else set()
    if functions & set(_RESTS):
        return ""
    if stand.kind == "device" and stand.thread and any(_SHARED.search(str(f)) for f in stand.thread.frames):
        return "shared"
    if stand.kind in CLASSES:
        return stand.kind
    watched = index.snapshot.source.endswith(WATCHED) and stand.kind in (*waits.BUSY, "native")
    return "step" if watched and functions & set(_STEPS) else ""
