"""NCCL's RAS as JSON: how many operations each rank of a communicator has begun. Read here and on hosts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Served:
    """A rank of a communicator, its process, and how many collectives it has begun."""

    rank: int
    begun: int
    pid: int


def is_ras(document: Any) -> bool:
    """Whether a JSON document looks like NCCL's RAS."""
    return isinstance(document, dict) and isinstance(document.get("communicators"), list)


def telling(document: dict[str, Any]) -> tuple[list[Served], list[int]]:
    """(ranks, ranks that give no answer) of the communicator that tells most: uneven ones first, then the largest."""
    best: tuple[tuple[bool, int], list[Served], list[int]] = ((False, 0), [], [])
    for communicator in document["communicators"]:
        ranks = []
        for item in communicator.get("ranks", ()):
            counts = item.get("collective_counts") or item.get("coll_op_counts") or {}
            if isinstance(item.get("rank"), int) and isinstance(counts, dict):
                begun = sum(int(count) for count in counts.values())
                ranks.append(Served(item["rank"], begun, int(item.get("pid", 0))))
        lost = [item.get("rank") for item in communicator.get("missing_ranks", ()) if isinstance(item, dict)]
        uneven = len({one.begun for one in ranks}) > 1 or bool(lost)
        if ranks and (uneven, len(ranks)) > best[0]:
            best = ((uneven, len(ranks)), ranks, [rank for rank in lost if isinstance(rank, int)])
    return best[1], best[2]
