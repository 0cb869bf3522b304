"""Ranks that wait at a rendezvous: who of them has come to another one, and who is not there at all."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from diagnostics.hang.judge import sentences

if TYPE_CHECKING:
    from diagnostics.hang.judge.verdict import HangVerdict
    from diagnostics.hang.link.graph import Index


def told(index: Index, verdict: HangVerdict) -> HangVerdict:
    """The verdict by who is connected to whom: those who met wait, and are not the cause.

    Of a dump it is not known who is connected; who took it named the process.
    """
    if verdict.cause != "rendezvous" or index.snapshot.source != "live":
        return verdict
    waiting = [key for key, stand in index.stands.items() if stand.kind == "rendezvous"]
    apart = _apart(index, waiting)
    victims = tuple(dict.fromkeys(key for key in (*waiting, *verdict.victims) if key not in apart))
    chain = verdict.chain if apart == verdict.culprits else ()
    found = replace(verdict, culprits=apart, victims=victims, chain=chain)
    seen = sentences.of_culprits(index, replace(found, culprits=apart or tuple(waiting)))
    sentence = sentences.of(index, found) if apart else sentences.unmet(index, found, tuple(waiting))
    return replace(found, sentence=sentence, evidence=seen)


def _apart(index: Index, waiting: list[str]) -> tuple[str, ...]:
    """Those who are not connected to the most of them; where nobody is to anybody, the one that listens."""
    parts = _parts(index, waiting)
    sizes = sorted(map(len, parts), reverse=True)
    if len(sizes) > 1 and sizes[0] > sizes[1]:
        largest = max(parts, key=len)
        return tuple(key for key in waiting if key not in largest)
    alone = [key for key in waiting if index.listening(index.stands[key].process)]
    return tuple(alone) if sizes and sizes[0] == 1 < len(sizes) and len(alone) == 1 else ()


def _parts(index: Index, waiting: list[str]) -> list[set[str]]:
    parts = [{key} for key in waiting]
    for key in waiting:
        process = index.stands[key].process
        met = {peer.key for _, s in index.open_sockets(process) for peer in index.peers(process, s)} | {key}
        joined = [part for part in parts if part & met]
        parts = [part for part in parts if not part & met] + [set().union(*joined)]
    return parts
