"""From a snapshot to a verdict: the end of the chains of waiting, and whether that is a hang. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from diagnostics.hang import waits
from diagnostics.hang.judge import advice, dumps, meetings, sentences, supposed
from diagnostics.hang.judge.sinks import End, end
from diagnostics.hang.judge.verdict import HANG, IDLE, PROGRESS, UNKNOWN, WAITING, HangVerdict
from diagnostics.hang.link import links
from diagnostics.hang.link.graph import Index
from diagnostics.hang.roles import SERVING

if TYPE_CHECKING:
    from diagnostics.hang.link.graph import Edge
    from diagnostics.hang.snapshot import Snapshot

PATIENCE_S = 60.0
BUSY_PATIENCE_S = 600.0
# Waits that the kernel knows the length of: one that is short is another one each time.
_ASKS = ("http", "socket")
# Below this a wait is one that any job has all the time.
_LEVELS = {"gone": 0, "cycle": 1, "stuck": 2, "busy": 3, "quiet": 4}


@dataclass(frozen=True)
class Patience:
    """How long waiting is nothing to worry about.

    Attributes:
        quiet_s: Where nobody on the way computes.
        busy_s: Where who is waited for computes.
    """

    quiet_s: float = PATIENCE_S
    busy_s: float = BUSY_PATIENCE_S


@dataclass(frozen=True)
class JudgedJob:
    """A verdict, with the tables that it was made from."""

    verdict: HangVerdict
    index: Index
    edges: dict[str, list[Edge]]


def judge(snapshot: Snapshot, patience: Patience | None = None) -> JudgedJob:
    """The verdict of a snapshot."""
    index = Index.of(snapshot)
    edges = links.edges(index)
    limits = patience or Patience()
    ends: dict[str, End] = {}
    for key, stand in index.stands.items():
        serves = stand.process.role in SERVING and stand.kind not in ("stopped", "dead", "kernel")
        if not serves and stand.kind != "unseen":
            ends[key] = end(index, edges, key)
    verdict = supposed.told(index, meetings.told(index, _verdict(index, ends, limits)))
    verdict = supposed.weighed(index, verdict)
    verdict = replace(
        verdict,
        unseen=snapshot.blind,
        excluded=(*verdict.excluded, *advice.excluded(index, verdict)),
        next=(*verdict.next, *advice.further(index, verdict)),
    )
    return JudgedJob(verdict, index, edges)


def _verdict(index: Index, ends: dict[str, End], limits: Patience) -> HangVerdict:
    blind = _blind(index)
    waiting = {
        k: one for k, one in ends.items() if (one.chain and one.level != "quiet") or _alone(index, k, one)
    }
    if not waiting:
        if blind:
            return HangVerdict(UNKNOWN, sentences.blind(index), certainty="hypothesis")
        busy = [key for key, one in ends.items() if one.level == "busy"]
        if dumps.undecided_rest(index, busy):
            return HangVerdict(UNKNOWN, dumps.rest(index, busy), certainty="hypothesis")
        outcome = PROGRESS if busy else IDLE
        return HangVerdict(outcome, sentences.calm(index, busy), certainty="supported")
    key, worst = min(waiting.items(), key=lambda item: _rank(index, item[1], waiting))
    victims = tuple(
        k for k, one in waiting.items() if set(one.culprits) & set(worst.culprits) and k not in worst.culprits
    )
    waited = _waited(index, worst, (key, *victims))
    verdict = HangVerdict(
        HANG,
        "",
        worst.cause,
        worst.certainty,
        worst.culprits,
        worst.chain,
        worst.level == "cycle" and worst.cause != "locks",
        victims=victims,
        waited_s=waited,
    )
    verdict = _timed(index, verdict, worst, limits)
    if (
        blind
        and verdict.outcome == HANG
        and worst.cause in ("absent", "lost_message", "native", "lost_answer", "elsewhere")
    ):
        verdict = replace(verdict, certainty="hypothesis")
    if verdict.outcome in (HANG, PROGRESS) and (routed := dumps.routed(index, worst)):
        return replace(verdict, outcome=HANG, cause="mismatch", certainty="hypothesis", culprits=(),
                       victims=(key, *victims), sentence=routed)  # fmt: skip
    if dumps.undecided(index, worst):
        verdict = replace(verdict, outcome=UNKNOWN, certainty="hypothesis")
    if _untold(index, worst):
        verdict = replace(verdict, outcome=UNKNOWN, certainty="hypothesis")
        if index.stands[key].kind in ("collective", "rendezvous"):
            together = tuple(k for k, one in ends.items() if index.stands[k].kind == index.stands[key].kind)
            said = sentences.together(index, together)
            return replace(verdict, sentence=said, culprits=(), victims=together)
    evidence = sentences.of_culprits(index, verdict)
    return replace(verdict, sentence=sentences.of(index, verdict), evidence=evidence)


def _alone(index: Index, key: str, one: End) -> bool:
    """Whether a process that waits for nobody we see is held up all the same, and is not merely at rest."""
    stand = index.stands[key]
    if one.level == "busy":
        # Who waits within the process makes it more than work.
        return one.cause == "spin_python" and (len(stand.steps) > 1 or dumps.interrupted(index, stand))
    if one.level == "quiet" or stand.kind in waits.IDLE:
        return stand.kind == "loop" and bool(index.asked(stand.process))
    if stand.kind in ("sleep", "child", "join") and any(
        index.stands[p.key].kind != "dead" for p in index.children(stand.process)
    ):
        return False  # it started the others, and waits for their end
    # Nobody waits for who is dead: its parent has only not asked for its exit code yet.
    return stand.kind != "dead"


def _rank(index: Index, one: End, waiting: dict[str, End]) -> tuple[int, int, int, bool, bool, int]:
    """The most telling end first; among equals the one that most wait for, then the longest chain."""
    same = sum(1 for other in waiting.values() if other.culprits == one.culprits)
    known = 0 if index.stands.keys() & set(one.culprits) else 1
    level = _LEVELS[one.level]
    if one.cause in ("native", "poll") and level == 2:
        level = 3  # what is least understood is the last to be held up as the cause
    # That somebody is not in a collective says less than what it was asked for, and a launcher's wait least of all.
    launcher = bool(one.chain) and one.chain[0].kind == "child"
    return level, known, -same, one.cause == "absent" or not one.chain, launcher, -len(one.chain)


def _waited(index: Index, one: End, keys: tuple[str, ...]) -> float | None:
    known: list[float] = []
    for key in keys:
        stand = index.stands.get(key)
        if stand is None:
            continue
        if stand.asleep_s is not None and stand.kind not in waits.IDLE:
            known.append(stand.asleep_s)
        fds = stand.thread.waits_fds if stand.thread else ()
        sockets = [index.socket(stand.process, fd) for fd in fds]
        known += [
            min(s.sent_s, s.received_s)
            for s in sockets
            if s and s.sent_s is not None and s.received_s is not None and stand.kind not in waits.IDLE
        ]
    for key in one.culprits:
        process = index.process(key)
        if process is not None:
            stand = index.stands[key]
            if stand.asleep_s is not None and stand.kind not in waits.IDLE:
                known.append(stand.asleep_s)
            known += [s.received_s for _, s in index.asked(process) if s.received_s is not None]
    # Who stood there in each sample may have asked again and again; many waits are loops themselves, as for a file.
    asks = any(index.stands[key].kind in _ASKS for key in one.culprits if key in index.stands)
    if index.snapshot.source == "live" and not (asks and known):
        known.append(index.snapshot.seconds)
    return max(known) if known else None


def _timed(index: Index, verdict: HangVerdict, one: End, limits: Patience) -> HangVerdict:
    """Whether it has lasted long enough; of a dump that is not known, and somebody posted it."""
    live = index.snapshot.source == "live"
    waited = verdict.waited_s
    if one.level == "busy":
        if one.cause == "spin_python":
            enough = not live or (waited is not None and waited >= limits.quiet_s)
            return verdict if enough else replace(verdict, outcome=PROGRESS)
        if waited is not None and waited >= limits.busy_s and live:
            return replace(verdict, cause=_spin(index, one), certainty="hypothesis")
        away = replace(verdict, cause="absent", certainty="hypothesis")
        return away if dumps.away(index, one) else replace(verdict, outcome=PROGRESS, cause="busy")
    if one.cause == "poll" and not one.chain:
        # It may be a loop that works a little and sleeps a little: that is how many healthy processes look.
        return replace(verdict, outcome=WAITING if live else UNKNOWN)
    if not one.patient or not live:
        return verdict
    return verdict if waited is not None and waited >= limits.quiet_s else replace(verdict, outcome=WAITING)


def _spin(index: Index, one: End) -> str:
    stand = index.stands.get(one.culprits[0])
    thread = stand.thread if stand else None
    return "spin_python" if thread and (thread.gil or not thread.steady) else "spin_native"


def _untold(index: Index, one: End) -> bool:
    """Whether the end of the chain says nothing: not seen, or in native code that Python knows nothing of."""
    stands = [index.stands[key] for key in one.culprits if key in index.stands]
    if one.cause == "native" and not one.chain:
        return True
    if one.cause == "native" and one.chain:
        return all(stand.kind in ("native", "collective", "join") for stand in stands)
    return bool(stands) and all(stand.kind == "unseen" for stand in stands) and one.level == "stuck"


def _blind(index: Index) -> bool:
    seen = [
        stand for stand in index.stands.values() if stand.process.role != "helper" and stand.process.python
    ]
    return bool(index.snapshot.missing) or any(stand.kind == "unseen" for stand in seen) or not seen
