"""Does TRL's source use what this vLLM's source doesn't serve? Read in both wheels, with rules of behaviour."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from packaging.version import Version

from diagnostics.matrix.ask.contract.compare import Contract, Missing, Undecided, compare
from diagnostics.matrix.ask.contract.surface import Surface
from diagnostics.matrix.ask.layer import Layer, infrastructure
from diagnostics.matrix.build.sources import WheelError, find_wheel
from diagnostics.matrix.plan.verdicts import Answer, EvidenceLevel, Outcome

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
    except WheelError as error:
        if error.absent:
            return Answer(Outcome.NOT_RUN, str(error), EvidenceLevel.STATIC)
        return infrastructure(str(error), EvidenceLevel.STATIC)
    return _answer(found)


def _answer(found: Contract) -> Answer:
    blocking = [item for item in found.missing if item.on_the_way]
    aside = [item for item in found.missing if not item.on_the_way]
    details = (
        *(f"missing: {_line(item)}" for item in blocking),
        *(f"not judged: {_open(item)}" for item in found.undecided),
        *(f"missing, with {item.use.option} only: {_line(item)}" for item in found.optional),
        *(f"missing, but not on the way of a GRPO run: {_line(item)}" for item in aside),
        *(f"missing, but guarded: {_line(item)}" for item in found.guarded),
        *(
            f"holds: {one.rule.says}; {one.case.why} ({one.trl}; {one.vllm})"
            for one in found.settled
            if one.case
        ),
        *(f"could not be told, off the way of a GRPO run: {text}" for text in dict.fromkeys(found.aside)),
    )
    facts = (
        *(_fact(item) for item in blocking),
        *(("undecided", item.what, item.would) for item in found.undecided),
    )
    if blocking:
        names = sorted({item.use.text for item in blocking})
        first = f"{len(names)} of {found.checked} things that TRL uses are not served by this vLLM: {', '.join(names)}"
        if found.undecided:
            first += f"; {len(found.undecided)} not judged"
        outcome = Outcome.FAIL
    elif found.undecided:
        names = list(dict.fromkeys(item.what for item in found.undecided))
        first = (
            f"{len(names)} of {found.checked} things that TRL uses not judged: {', '.join(names)}; "
            f"needed: {found.undecided[0].would}"
        )
        outcome = Outcome.NOT_JUDGED
    else:
        parts = [f"all {found.checked} things that TRL uses are served"]
        parts += [f"{len(found.settled)} of them by rules of behaviour"] if found.settled else []
        parts += [f"{len(found.optional)} missing with an option only"] if found.optional else []
        parts += [f"{len(found.guarded)} missing but guarded"] if found.guarded else []
        parts += [f"{len(aside)} missing in other trainers"] if aside else []
        first, outcome = "; ".join(parts), Outcome.PASS
    return Answer(
        outcome,
        first,
        EvidenceLevel.STATIC,
        signs=(*(_line(item) for item in blocking), *(_open(item) for item in found.undecided)),
        facts=facts,
        details=details,
    )


def _fact(item: Missing) -> tuple[str, ...]:
    return "missing", item.use.text, LATE if item.use.late else AT_IMPORT


def _line(item: Missing) -> str:
    when = LATE if item.use.late else AT_IMPORT
    return f"{item.use.text}: {item.why} ({item.where}, {when})"


def _open(item: Undecided) -> str:
    return f"{item.what}: {item.why}; needed: {item.would}"


LAYERS = (
    Layer(
        name="contract",
        order=30,
        group="read",
        question="Does this vLLM's source serve what TRL takes: names, arguments, routes, options, behaviour?",
        evidence=EvidenceLevel.STATIC,
        heavy=False,
        of_pairs=True,
        reads=True,
        ask=_ask,
    ),
)
