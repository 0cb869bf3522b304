"""Which node a question goes to: one that has what its layer asks for, by what this run has put there already."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from diagnostics.matrix.plan.needs import Needs, words

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

# Ray counts in ten-thousandths.
_EPSILON = 1e-4


@dataclass(frozen=True)
class RayNode:
    """A node of the cluster and all that it offers."""

    id: str
    name: str
    """For people: its host's name."""
    cpus: float
    memory_gb: float
    gpus: float

    @property
    def described(self) -> str:
        """What it offers, as '16 CPU, 128 GB, 1 GPU'."""
        return words(self.cpus, self.memory_gb, self.gpus)

    def offers(self, needs: Needs) -> bool:
        """Tells whether the node would be enough if nothing else ran there."""
        return (
            self.cpus + _EPSILON >= needs.cpus
            and self.memory_gb + _EPSILON >= needs.memory_gb
            and self.gpus + _EPSILON >= needs.gpus
        )


@dataclass
class Load:
    """What this run has on each node at the moment."""

    _put: dict[str, list[Needs]] = field(default_factory=dict)

    def put(self, node: RayNode, needs: Needs) -> None:
        """Counts a question in."""
        self._put.setdefault(node.id, []).append(needs)

    def take(self, node: RayNode, needs: Needs) -> None:
        """Counts it out."""
        self._put[node.id].remove(needs)

    def left(self, node: RayNode) -> RayNode:
        """Returns the node with what is left of it."""
        here = self._put.get(node.id, [])
        return RayNode(
            node.id,
            node.name,
            node.cpus - sum(needs.cpus for needs in here),
            node.memory_gb - sum(needs.memory_gb for needs in here),
            node.gpus - sum(needs.gpus for needs in here),
        )

    def choose(
        self, nodes: Sequence[RayNode], needs: Needs, whole: Needs, shy: Collection[str]
    ) -> RayNode | None:
        """Returns the node with the most room, None while none has enough.

        Args:
            nodes: those that may be chosen.
            needs: of the question.
            whole: of all the questions that will be asked where this one is.
            shy: ids of nodes taken only if no other would do, since something failed there.
        """
        able = [node for node in nodes if node.offers(whole)] or [
            node for node in nodes if node.offers(needs)
        ]
        calm = [node for node in able if node.id not in shy] or able
        free = [node for node in calm if self.left(node).offers(needs)]
        # A question that needs no GPU goes to a node without one if it can.
        return max(
            free, key=lambda node: (needs.gpus > 0 or node.gpus == 0, self.left(node).cpus), default=None
        )


def most(needs: Iterable[Needs]) -> Needs:
    """Returns what is enough for each of these, one at a time."""
    every = list(needs) or [Needs(0.0)]
    return Needs(
        max(item.cpus for item in every),
        max(item.memory_gb for item in every),
        max(item.gpus for item in every),
    )
