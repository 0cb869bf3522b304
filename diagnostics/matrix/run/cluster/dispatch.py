"""Hands out questions to nodes, takes in the answers as they fall, and asks elsewhere what a node failed to answer.

What runs in a cell's environment stays on one node while that node lives. A lost node and a fault of a machine are
never the cell's: the question goes to another node, so often and no oftener, then the fault itself is stored, and the
next run asks again.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from diagnostics.collect.shapes import problem
from diagnostics.matrix.ask.layer import infrastructure
from diagnostics.matrix.plan.needs import Needs
from diagnostics.matrix.plan.verdicts import Outcome
from diagnostics.matrix.records.events import Event
from diagnostics.matrix.records.taken_in import LOG_BYTES, NotTakenError, event_of, keep_log
from diagnostics.matrix.run.asking import now
from diagnostics.matrix.run.cluster.placement import Load, RayNode, most

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from diagnostics.matrix.run.board import Question
    from diagnostics.matrix.run.runner import MatrixRun

# So often a question is asked, each time of another node if there is one.
ATTEMPTS = 3
# So often it is looked whether nodes came or went, in seconds.
LOOK_S = 2.0
# So long a question waits for a node to come back that was there, in seconds.
PATIENCE_S = 60.0


class DispatchError(RuntimeError):
    """Raised when a cluster can't be used at all; the message is for the user."""


class GoneError(DispatchError):
    """Raised when the cluster itself is lost in the middle of a run."""


class LostError(RuntimeError):
    """Raised when a node, or the process on it, was gone before it answered."""


class FailedError(RuntimeError):
    """Raised when a node could not ask: it lacks something, or our own program failed there."""


class Cluster(Protocol):
    """What is asked of a cluster; `on_ray` does it with Ray."""

    def nodes(self) -> list[RayNode]:
        """Returns the living nodes."""

    def submit(self, node: RayNode, needs: Needs, job: dict[str, Any]) -> Any:
        """Starts `node.work(job)` on that node and no other; returns a handle."""

    def wait(self, handles: Sequence[Any], timeout_s: float) -> list[Any]:
        """Returns those that have ended; waits until one has, or so many seconds."""

    def result(self, handle: Any) -> dict[str, Any]:
        """Returns what the job returned; raises LostError or FailedError."""

    def cancel(self, handles: Sequence[Any]) -> None:
        """Ends these jobs and what they started, and returns when they have ended."""


@dataclass(frozen=True)
class _Flight:
    """A job that a node has at the moment."""

    node: RayNode
    needs: Needs
    item: Question | None
    """None for the removal of an environment."""
    started: str


class Dispatch:
    """One run on a cluster."""

    def __init__(
        self, going: MatrixRun, due: Sequence[Question], cluster: Cluster, *, patience_s: float = PATIENCE_S
    ) -> None:
        self._going = going
        self._cluster = cluster
        self._patience_s = patience_s
        self._open = {_name(item): item for item in due}
        self._cells: dict[str, dict[str, Question]] = {}
        """The open questions of each cell, in order."""
        for item in due:
            self._cells.setdefault(item.cell.id, {})[item.layer.name] = item
        self._flying: dict[Any, _Flight] = {}
        self._load = Load()
        self._home: dict[str, str] = {}
        """Of a cell: the node on which its environment is."""
        self._been: dict[str, dict[str, RayNode]] = {}
        """Of a cell: the nodes on which it may have left an environment."""
        self._tried: dict[tuple[str, str], list[str]] = {}
        self._lost: set[str] = set()
        self._seen: dict[str, RayNode] = {}
        self._missed: dict[tuple[str, str], float] = {}
        """Since when a question waits for a node that was there once."""

    def finish(self) -> None:
        """Asks until nothing is open; an interrupt ends what the nodes are doing."""
        try:
            while self._open or self._flying:
                self._hand_out()
                for handle in (
                    self._cluster.wait(list(self._flying), LOOK_S) if self._open or self._flying else []
                ):
                    self._land(handle)
        except GoneError:
            raise  # nobody is left who could cancel
        except BaseException:
            self._cluster.cancel(list(self._flying))
            raise

    def _hand_out(self) -> None:
        nodes = self._cluster.nodes()
        alive = {node.id for node in nodes}
        self._seen.update((node.id, node) for node in nodes)
        self._lost &= alive
        flying = {_name(flight.item) for flight in self._flying.values() if flight.item}
        full: set[Needs] = set()
        for name, item in list(self._open.items()):
            # A thousand light questions wait for the same room: one of them is asked whether there is any.
            if name in flying or (not item.layer.heavy and self._needs(item) in full) or self._waits(item):
                continue
            if not self._going.is_due(item):
                self._settle(item)
                continue
            node = self._node(item, nodes)
            if node is not None:
                self._submit(item, node)
            else:
                self._miss(item, nodes)
                full.update([] if item.layer.heavy else [self._needs(item)])

    def _waits(self, item: Question) -> bool:
        """Tells whether a question that this one needs, or that goes before it in its environment, is still open."""
        before = True
        for layer, other in self._cells[item.cell.id].items():
            if layer == item.layer.name:
                before = False
            elif layer in item.layer.needs or (before and item.layer.heavy and other.layer.heavy):
                return True
        return False

    def _node(self, item: Question, nodes: Sequence[RayNode]) -> RayNode | None:
        needs, shy = self._needs(item), {*self._lost, *self._tried.get(_name(item), ())}
        if not item.layer.heavy:
            return self._load.choose(nodes, needs, needs, shy)
        home = self._home.get(item.cell.id)
        for node in nodes:
            if node.id == home and node.id not in shy and node.offers(needs):
                return node if self._load.left(node).offers(needs) else None
        whole = most(self._needs(other) for other in self._cells[item.cell.id].values() if other.layer.heavy)
        return self._load.choose(nodes, needs, whole, shy)

    def _needs(self, item: Question) -> Needs:
        return self._going.workplace.matrix.layer(item.layer.name).needs

    def _submit(self, item: Question, node: RayNode) -> None:
        options = self._going.options
        if item.layer.heavy:
            self._home[item.cell.id] = node.id
            self._been.setdefault(item.cell.id, {})[node.id] = node
        job = {
            "task": "ask",
            "cell": item.cell.id,
            "layer": item.layer.name,
            "inputs": [list(pair) for pair in item.inputs],
            "run": self._going.name,
            "afresh": _name(item) in options.fresh and item.layer.name == "install",
            "make_room": options.keep == "auto" or options.budget_gb is not None,
            "budget_gb": options.budget_gb,
        }
        self._tried.setdefault(_name(item), []).append(node.id)
        self._missed.pop(_name(item), None)
        self._going.begin(item, node.name)
        self._fly(_Flight(node, self._needs(item), item, now()), job)

    def _fly(self, flight: _Flight, job: dict[str, Any]) -> None:
        self._load.put(flight.node, flight.needs)
        self._flying[self._cluster.submit(flight.node, flight.needs, job)] = flight

    def _land(self, handle: Any) -> None:
        flight = self._flying.pop(handle)
        self._load.take(flight.node, flight.needs)
        item, node = flight.item, flight.node
        try:
            reply = self._cluster.result(handle)
        except LostError as error:
            self._lost.add(node.id)
            if item is not None:
                self._fault(item, flight, f"node {node.name} was lost while it was asked: {error}")
            return
        except FailedError as error:
            if item is not None:
                self._fault(item, flight, f"node {node.name} could not ask: {error}")
            return
        for text in map(str, reply.get("notes", ())):
            self._going.progress.note(f"{node.name}: {text}")
        if item is not None:
            self._answered(item, flight, reply)

    def _answered(self, item: Question, flight: _Flight, reply: dict[str, Any]) -> None:
        try:
            event = _event(item, reply)
        except NotTakenError as error:
            self._fault(item, flight, f"node {flight.node.name} did not answer: {error}")
            return
        event = replace(event, started=flight.started)
        if event.answer.outcome is Outcome.INFRA_ERROR and self._tries_left(item):
            self._retry(item, f"{flight.node.name}: {event.answer.summary}")
            return
        log = reply.get("log")
        if event.answer.log and log is not None:
            try:
                keep_log(self._going.workplace.store.folder, event.answer.log, log, replace=True)
            except NotTakenError as error:
                self._fault(item, flight, f"node {flight.node.name}: its log is not kept: {error}")
                return
        self._record(item, event)

    def _fault(self, item: Question, flight: _Flight, why: str) -> None:
        """Asks elsewhere what a node failed to answer, or stores the fault once that was tried often enough."""
        if self._tries_left(item):
            self._retry(item, why)
        else:
            tries = len(self._tried[_name(item)])
            self._record(item, self._fault_event(item, f"{why} (tried {tries} times)", flight.started))

    def _tries_left(self, item: Question) -> bool:
        return len(self._tried.get(_name(item), ())) < ATTEMPTS

    def _retry(self, item: Question, why: str) -> None:
        self._home.pop(item.cell.id, None)
        self._going.progress.note(f"asking {item.cell.id} {item.layer.name} again elsewhere: {why[:300]}")

    def _miss(self, item: Question, nodes: Sequence[RayNode]) -> None:
        """Waits for a node that is big enough, where there is one or was one; else says that there is none."""
        needs = self._needs(item)
        if any(node.offers(needs) for node in nodes):
            return
        since = self._missed.setdefault(_name(item), time.monotonic())
        was_there = any(node.offers(needs) for node in self._seen.values())
        if was_there and time.monotonic() - since < self._patience_s:
            return
        offered = "; ".join(f"{node.name}: {node.described}" for node in nodes) or "no node is left"
        why = f"no node of the cluster has what the layer asks for ({needs.described}): {offered}"
        self._record(item, self._fault_event(item, why, now()))

    def _fault_event(self, item: Question, summary: str, started: str) -> Event:
        return Event(
            identity=item.identity,
            cell=item.cell.id,
            layer=item.layer.name,
            answer=infrastructure(summary, item.layer.evidence),
            inputs=item.inputs,
            command=item.command,
            started=started,
            seconds=0.0,
            run=self._going.name,
        )

    def _record(self, item: Question, event: Event) -> None:
        self._going.record(item, event)
        self._settle(item)

    def _settle(self, item: Question) -> None:
        """Takes a question off the list; after a cell's last one its environments go, where that is asked for."""
        del self._open[_name(item)]
        cell = item.cell.id
        del self._cells[cell][item.layer.name]
        last = item.layer.heavy and not any(other.layer.heavy for other in self._cells[cell].values())
        if last and self._going.options.keep == "never":
            for node in self._been.pop(cell, {}).values():
                if node.id not in self._lost:
                    self._fly(_Flight(node, Needs(0.0), None, now()), {"task": "drop", "cell": cell})


def _event(item: Question, reply: Mapping[str, Any]) -> Event:
    """The event of a node's answer to a question.

    Raises:
        NotTakenError: It refused, or what it sent is no answer to this question.
    """
    if reply.get("refused"):
        raise NotTakenError(str(reply["refused"]))
    wrong = problem(reply, {"line": str, "log": (bytes, None)})
    if wrong or len(reply["log"] or b"") > 2 * LOG_BYTES:
        raise NotTakenError(f"its answer can't be read: {wrong or 'its log is longer than a node sends'}")
    try:
        event = event_of(reply["line"])
    except NotTakenError as error:
        raise NotTakenError(f"its answer can't be read: {error}") from None
    if (event.identity, event.cell, event.layer) != (item.identity, *_name(item)):
        raise NotTakenError("its answer can't be read: it is one to another question")
    return event


def _name(item: Question) -> tuple[str, str]:
    return item.cell.id, item.layer.name
