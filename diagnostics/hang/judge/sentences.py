"""A verdict in words: one sentence for what holds the job up, and what the end of its chain was seen in."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from diagnostics.hang import waits
from diagnostics.hang.judge.verdict import CAUSES, PROGRESS, UNKNOWN, WAITING
from diagnostics.hang.snapshot import DIED, FAILED, OWES, UNNAMED

if TYPE_CHECKING:
    from diagnostics.hang.judge.verdict import HangVerdict
    from diagnostics.hang.link.graph import Edge, Index
    from diagnostics.hang.stands import Stand

_MANY = 4


def of(index: Index, verdict: HangVerdict) -> str:
    """The sentence."""
    names = [_label(index, key, verdict) for key in verdict.culprits]
    who = _joined(names) if len(names) <= _MANY else f"{len(names)} processes"
    if verdict.cycle and verdict.cause == "deadlock":
        steps = [f"{_label(index, e.source, verdict)} {e.text} {e.label}" for e in _cycle(verdict)]
        return f"Deadlock: {'; '.join(steps)}."
    holds = "hold" if len(names) > 1 else "holds"
    held = f", and {holds} up {_victims(index, verdict)}" if verdict.victims else ""
    what = _what(index, verdict)
    since = f" (for {_span(verdict.waited_s)})" if verdict.waited_s and verdict.waited_s >= 1 else ""
    waits_for = "waits" if len(verdict.victims) == 1 else "wait"
    for_it = f", and {_victims(index, verdict)} {waits_for} for it" if verdict.victims else ""
    if verdict.outcome == PROGRESS:
        ended = any(index.stands[key].kind == "dead" for key in verdict.culprits if key in index.stands)
        return f"No hang so far: {who} {'has just ended' if ended else what}{for_it}{since}."
    if verdict.outcome == WAITING:
        return f"Too early to say: {who} {what}{held}{since}."
    if verdict.outcome == UNKNOWN:
        # Who is waited for is known, and not that it is the cause.
        return f"Not known what holds it up: {who} {what}{for_it}{since}."
    return f"{_upper(who)} {what}{held}{since}."


def _what(index: Index, verdict: HangVerdict) -> str:
    """What the culprits are in, with the function that says it."""
    stands = [index.stands[key] for key in verdict.culprits if key in index.stands]
    cause = verdict.cause
    if not stands:
        return _NOT_SEEN.get(cause) or CAUSES.get(cause, cause)
    if cause == "mismatch":
        return _apart(index, verdict, stands)
    if cause == "absent" and len(stands) > 1:
        return "are not in the collective that the others wait in"
    stand = stands[0]
    last = verdict.chain[-1] if verdict.chain else None
    if cause == "lost_message" and last and last.source in verdict.culprits:
        return f"{_doing(stand)}, and who should give it has nothing to do: what was asked is lost"
    shared = last and last.kind == "processes_lock"
    if (cause == "lock" and not shared) or (cause in ("full_pipe", "file_lock") and not last):
        return _doing(stand)
    said = _TOLD.get(stand.process.role) or _SAID.get(cause, "{doing}")
    return said.format(
        doing=_doing(stand), where=stand.wait.detail or "unknown where", locked=len(stand.locked),
        collectives=len(stand.collectives),
    )  # fmt: skip


# Who is waited for, and is none of those that were seen.
_NOT_SEEN = {
    "elsewhere": "does not answer, and was not looked at",
    "missing": "has no process among those that were seen",
}
# What failed by the words of a text alone.
_TOLD = {
    DIED: "died, by what the text says",
    FAILED: "has failed or lost what was on it, by what the driver says in the text",
    OWES: "makes no token for the requests that it has, by what its log says",
}
# Where a cause says more than what its process is in.
_SAID = {
    "stopped": CAUSES["stopped"],
    "dead": CAUSES["dead"],
    "kernel": "sleeps in the kernel ({where})",
    "two_threads": "has {collectives} threads in collectives at once, which order their operations as they like",
    "locks": "has {locked} threads that wait for each other's locks",
    "lost_answer": CAUSES["lost_answer"],
    "file_lock": "holds the lock of the file and {doing}",
    "full_pipe": "does not read what others write to it: it {doing}",
    "lock": "holds a lock that others wait for, and {doing}",
    "pool": "has a task in a pool of threads that waits for another task of the same pool: it {doing}",
    "blocked_loop": "has its event loop blocked: it {doing}",
    "absent": "is not in the collective that the others wait in: it {doing}",
    "pending": "waits for Ray, which runs nothing that it waits for",
}


def _apart(index: Index, verdict: HangVerdict, stands: list[Stand]) -> str:
    """Where ranks are in different collectives: which is whose."""
    other = _first_victim(index, verdict)
    if len(stands) == 1 and other:
        return f"is in {_asked(stands[0])} while the others are in {_asked(other)}"
    return "are in different collectives: " + "; ".join(f"{_brief(s)} in {_asked(s)}" for s in stands)


def _doing(stand: Stand) -> str:
    text = waits.KINDS[stand.kind]
    frame = stand.wait.place or stand.wait.frame
    if stand.kind == "native" and stand.wait.detail:
        text = f"waits in the system call {stand.wait.detail}"
    return f"{text} in {frame}" if frame else text


def _asked(stand: Stand) -> str:
    name = stand.wait.operation or stand.kind
    return f"{name} asked for by {stand.wait.place}" if stand.wait.place else name


def _first_victim(index: Index, verdict: HangVerdict) -> Stand | None:
    """One in a collective, not the launcher that waits for them all."""
    stands = [index.stands[key] for key in verdict.victims if key in index.stands]
    return next((s for s in stands if s.kind == "collective"), stands[0] if stands else None)


def of_culprits(index: Index, verdict: HangVerdict) -> tuple[str, ...]:
    """What was seen of who holds it up."""
    told = []
    for key in verdict.culprits[:_MANY]:
        stand = index.stands.get(key)
        if stand is None:
            continue
        process = stand.process
        if process.state:
            told.append(f"/proc/{process.pid}/stat: state {process.state}")
        for thread, wait in stand.steps:
            frames = " ← ".join(str(frame) for frame in thread.frames[:_MANY])
            name = f" thread {thread.name!r}" if len(stand.steps) > 1 else ""
            seen = frames or thread.wchan or "no stack"
            told.append(f"pid {process.pid}{name} {waits.KINDS[wait.kind]}: {seen}")
        # Ranks that wait for each other have bytes that nobody took on many of their connections.
        if verdict.cause in _OWED and stand.kind not in ("collective", "rendezvous"):
            told += [
                f"fd/{item.fd}: asked by {s.remote} {s.received_s:.0f} s ago, not answered since"
                for item, s in index.asked(process)[:_MANY]
                if s.received_s is not None
            ]
    return tuple(told)


_OWED = ("lost_answer", "blocked_loop", "lost_message", "pool")


def calm(index: Index, busy: list[str]) -> str:
    """Where nobody waits for anybody."""
    if busy:
        names = _some([f"{_name(index, key)} {_doing(index.stands[key])}" for key in busy])
        return f"Nothing hangs: {names}."
    count = f"{len(index.stands)} process{'es' if len(index.stands) != 1 else ''}"
    return f"Nothing hangs: {count} at rest, and nobody waits for an answer."


def unmet(index: Index, verdict: HangVerdict, waiting: tuple[str, ...]) -> str:
    """Where ranks wait at a rendezvous for one that was not seen: who waits is not the cause."""
    who = _upper(_victims(index, replace(verdict, victims=waiting)))
    verb = "waits" if len(waiting) == 1 else "wait"
    since = f" (for {_span(verdict.waited_s)})" if verdict.waited_s and verdict.waited_s >= 1 else ""
    begin = "Too early to say: " if verdict.outcome == WAITING else ""
    return (
        f"{begin}{who} {verb} at the rendezvous for ranks that do not come, and who is missing is not among the "
        f"{len(index.stands)} processes that were seen{since}."
    )


def together(index: Index, keys: tuple[str, ...]) -> str:
    """Where all ranks that were seen are in the same collective: Python knows no more."""
    stand, who = index.stands[keys[0]], _those(index, keys)
    if len(keys) == 1:
        return (
            f"Not known what holds it up: {who} is in {_asked(stand)}; another rank has not come to it, is in another "
            "group or brings another size, or a link or a device between them stands. Python's stacks tell none of it."
        )
    return (
        f"Not known what holds it up: {who} are all in {_asked(stand)}; who is missing from it is not among them, "
        "they are in different groups or bring different sizes, or a link or a device between them stands. Python's "
        "stacks tell none of it."
    )


def supposed(index: Index, keys: tuple[str, ...], why: str) -> str:
    """Where only the class of the cause can be told, and nobody is named."""
    stand, who = index.stands[keys[0]], _those(index, keys)
    said = f"waits in {_asked(stand)}" if stand.kind == "collective" else _doing(stand)
    if stand.wait.place and stand.wait.place.path == UNNAMED:
        who, said = "a rank", "waits in a collective"
    if len(keys) > 1:
        said = said.replace("waits", "wait", 1)
    return f"{_upper(who)} {said}: {why}. Which process holds it up was not read from what was given."


def of_waiters(index: Index, keys: tuple[str, ...]) -> tuple[str, ...]:
    """What was seen of those that wait."""
    told = []
    for key in keys[:_MANY]:
        stand = index.stands[key]
        seen = " ← ".join(str(frame) for frame in (stand.thread.frames if stand.thread else ())[:_MANY])
        told.append(f"pid {stand.process.pid} {waits.KINDS[stand.kind]}: {seen}")
    return tuple(told)


def blind(index: Index) -> str:
    """Where too little was seen."""
    unseen = [
        s.process.label for s in index.stands.values() if s.kind == "unseen" and s.process.role != "helper"
    ]
    unseen += index.snapshot.missing
    if not unseen:
        return "Not known: nothing in it tells where a process stands."
    return f"Not known: {_some(unseen)} could not be seen."


def _cycle(verdict: HangVerdict) -> tuple[Edge, ...]:
    last = verdict.chain[-1].target
    start = next((n for n, edge in enumerate(verdict.chain) if edge.source == last), 0)
    return verdict.chain[start:]


def _name(index: Index, key: str) -> str:
    process = index.process(key)
    return process.label if process else key


def _label(index: Index, key: str, verdict: HangVerdict) -> str:
    process = index.process(key)
    if process:
        return process.label
    return next((edge.label for edge in verdict.chain if edge.target == key), key)


def _brief(stand: Stand) -> str:
    process = stand.process
    return f"rank {process.rank}" if process.rank is not None else f"pid {process.pid}"


def _victims(index: Index, verdict: HangVerdict) -> str:
    return _those(index, tuple(key for key in verdict.victims if key in index.stands))


def _those(index: Index, keys: tuple[str, ...]) -> str:
    if len(keys) <= _MANY:
        return _joined([_brief(index.stands[key]) for key in keys])
    return f"{len(keys)} processes"


def _joined(names: list[str]) -> str:
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + f" and {names[-1]}" if names else "nobody"


def _some(names: list[str]) -> str:
    """The first of them, and how many more there are."""
    rest = len(names) - _MANY
    return _joined([*names[:_MANY], f"{rest} more"] if rest > 0 else names)


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]
