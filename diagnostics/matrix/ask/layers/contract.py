"""Does TRL's source use names that this vLLM's source doesn't have? Read in both wheels."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from packaging.version import Version

from diagnostics.matrix.ask.contract.compare import Contract, Missing, compare
from diagnostics.matrix.ask.contract.surface import Surface
from diagnostics.matrix.ask.layer import Layer, infrastructure
from diagnostics.matrix.build.sources import SourceError, find_wheel
from diagnostics.matrix.plan.verdicts import Answer, Evidence, Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator

    from diagnostics.matrix.build.sources import WheelSources
    from diagnostics.matrix.build.workplace import Workplace
    from diagnostics.matrix.plan.cells import Cell


# Parsed sources of so many releases are kept: each takes tens of megabytes, and neighbours ask for the same.
KEPT = 2
LATE, AT_IMPORT = "when called", "at import"


class _Surfaces:
    """The releases read last, one reader at a time each."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[Surface, threading.Lock]] = {}
        self._lock = threading.Lock()

    @contextmanager
    def of(self, engine: WheelSources) -> Iterator[Surface]:
        """Yields what a wheel offers, parsed as far as anybody has asked."""
        with self._lock:
            found = self._held.pop(engine.sha256, None) or (Surface(engine, "vllm"), threading.Lock())
            self._held[engine.sha256] = found
            while len(self._held) > KEPT:
                del self._held[next(iter(self._held))]
        with found[1]:
            yield found[0]


_surfaces = _Surfaces()


def _ask(workplace: Workplace, cell: Cell) -> Answer:
    cache = workplace.folder("wheels")
    workplace.say("reading both wheels' source")
    try:
        trainer = find_wheel("trl", cell.trl, cache=cache, environ=workplace.environ)
        engine = find_wheel("vllm", cell.vllm, cache=cache, environ=workplace.environ)
        with _surfaces.of(engine) as surface:
            found = compare(trainer, surface, Version(cell.vllm))
    except SourceError as error:
        if error.absent:
            return Answer(Outcome.NOT_RUN, str(error), Evidence.STATIC)
        return infrastructure(str(error), Evidence.STATIC)
    return _answer(found)


def _answer(found: Contract) -> Answer:
    blocking = [item for item in found.missing if item.on_the_way]
    aside = [item for item in found.missing if not item.on_the_way]
    names = sorted({item.use.text for item in blocking})
    details = (
        *(f"missing: {_line(item)}" for item in blocking),
        *(f"missing, but not on the way of a GRPO run: {_line(item)}" for item in aside),
        *(f"missing, but guarded: {_line(item)}" for item in found.guarded),
        *(f"could not be followed to its end: {text}" for text in found.unfollowed),
    )
    if blocking:
        first = (
            f"{len(names)} of {found.checked} names that TRL uses are not in this vLLM: {', '.join(names)}"
        )
        return Answer(
            Outcome.FAIL,
            first,
            Evidence.STATIC,
            signs=tuple(_line(item) for item in blocking),
            facts=tuple(_fact(item) for item in blocking),
            details=details,
        )
    parts = [f"all {found.checked} names that TRL uses are there"]
    parts += [f"{len(found.guarded)} missing but guarded"] if found.guarded else []
    parts += [f"{len(aside)} missing in other trainers"] if aside else []
    parts += (
        [f"{len(found.unfollowed)} attribute paths not followed to their end"] if found.unfollowed else []
    )
    return Answer(Outcome.PASS, "; ".join(parts), Evidence.STATIC, details=details)


def _fact(item: Missing) -> tuple[str, ...]:
    return "missing", item.use.text, LATE if item.use.late else AT_IMPORT


def _line(item: Missing) -> str:
    when = LATE if item.use.late else AT_IMPORT
    return f"{item.use.text}: {item.why} ({item.where}, {when})"


LAYERS = (
    Layer(
        name="contract",
        order=30,
        group="read",
        question="Are the names, attributes and arguments that TRL takes from vLLM in this vLLM's source?",
        evidence=Evidence.STATIC,
        heavy=False,
        of_pairs=True,
        reads=True,
        ask=_ask,
    ),
)
