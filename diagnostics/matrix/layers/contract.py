"""Layer `contract`: does this vLLM's source provide what TRL's source uses? Read in both wheels."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from packaging.version import Version

from diagnostics.matrix.api.compare import Comparison, MissingUse, Undecided, compare_apis
from diagnostics.matrix.api.surface import Surface
from diagnostics.matrix.cells import Cell
from diagnostics.matrix.context import Context
from diagnostics.matrix.layers.base import Layer, infrastructure_fault
from diagnostics.matrix.verdicts import Answer, EvidenceLevel, Outcome
from diagnostics.matrix.wheels import WheelError, WheelSources, find_wheel

# Parsed sources of this many releases stay in memory: each takes tens of megabytes, and neighbours use the same.
CACHED_RELEASES = 2
WHEN_CALLED, AT_IMPORT = "when called", "at import"


class _SurfaceCache:
    """The releases read last, one reader at a time each."""

    def __init__(self) -> None:
        self._surfaces: dict[str, tuple[Surface, threading.Lock]] = {}
        self._lock = threading.Lock()

    @contextmanager
    def surface(self, engine: WheelSources) -> Iterator[Surface]:
        """Yield the API of a wheel, parsed as far as it was needed."""
        with self._lock:
            entry = self._surfaces.pop(engine.sha256, None) or (Surface(engine, "vllm"), threading.Lock())
            self._surfaces[engine.sha256] = entry
            while len(self._surfaces) > CACHED_RELEASES:
                del self._surfaces[next(iter(self._surfaces))]
        with entry[1]:
            yield entry[0]


_cache = _SurfaceCache()


def _check(context: Context, cell: Cell) -> Answer:
    cache = context.folder("wheels")
    context.say("reading the source of both wheels")
    try:
        trainer = find_wheel("trl", cell.trl, cache=cache, environ=context.environ)
        engine = find_wheel("vllm", cell.vllm, cache=cache, environ=context.environ)
        with _cache.surface(engine) as surface:
            return comparison_answer(compare_apis(trainer, surface, Version(cell.vllm)))
    except WheelError as error:
        if error.absent:
            return Answer(Outcome.NOT_RUN, str(error), EvidenceLevel.STATIC)
        return infrastructure_fault(str(error), EvidenceLevel.STATIC)


def comparison_answer(comparison: Comparison) -> Answer:
    """Return the answer of a comparison."""
    blocking = [item for item in comparison.missing if item.in_grpo]
    elsewhere = [item for item in comparison.missing if not item.in_grpo]
    outcome, summary = _conclusion(comparison, blocking, len(elsewhere))
    details = (
        *(f"missing: {_missing_line(item)}" for item in blocking),
        *(f"not checked: {_undecided_line(item)}" for item in comparison.undecided),
        *(f"missing, with {item.use.option} only: {_missing_line(item)}" for item in comparison.optional),
        *(f"missing, but not used by GRPO: {_missing_line(item)}" for item in elsewhere),
        *(f"missing, but guarded: {_missing_line(item)}" for item in comparison.guarded),
        *(
            f"holds: {ruling.rule.says}; {ruling.case.why} ({ruling.trl}; {ruling.vllm})"
            for ruling in comparison.holding
            if ruling.case
        ),
        *(f"not decided, but not used by GRPO: {text}" for text in dict.fromkeys(comparison.elsewhere)),
    )
    return Answer(
        outcome,
        summary,
        EvidenceLevel.STATIC,
        signs=(*map(_missing_line, blocking), *map(_undecided_line, comparison.undecided)),
        facts=(
            *(("missing", item.use.text, _moment(item)) for item in blocking),
            *(("undecided", item.subject, item.needed) for item in comparison.undecided),
        ),
        details=details,
    )


def _conclusion(comparison: Comparison, blocking: list[MissingUse], elsewhere: int) -> tuple[Outcome, str]:
    checked, undecided = comparison.checked, comparison.undecided
    if blocking:
        names = sorted({item.use.text for item in blocking})
        summary = (
            f"{len(names)} of {checked} things that TRL uses are missing in this vLLM: {', '.join(names)}"
        )
        return Outcome.FAIL, summary + (f"; {len(undecided)} not checked" if undecided else "")
    if undecided:
        names = list(dict.fromkeys(item.subject for item in undecided))
        summary = f"{len(names)} of {checked} things that TRL uses not checked: {', '.join(names)}"
        return Outcome.NOT_CHECKED, f"{summary}; needed: {undecided[0].needed}"
    counts = (
        (len(comparison.holding), "of them by rules of behaviour"),
        (len(comparison.optional), "missing with an option only"),
        (len(comparison.guarded), "missing but guarded"),
        (elsewhere, "missing in other trainers"),
    )
    parts = [f"all {checked} things that TRL uses are provided"]
    return Outcome.PASS, "; ".join([*parts, *(f"{count} {text}" for count, text in counts if count)])


def _moment(item: MissingUse) -> str:
    return WHEN_CALLED if item.use.late else AT_IMPORT


def _missing_line(item: MissingUse) -> str:
    return f"{item.use.text}: {item.why} ({item.location}, {_moment(item)})"


def _undecided_line(item: Undecided) -> str:
    return f"{item.subject}: {item.why}; needed: {item.needed}"


LAYERS = (
    Layer(
        name="contract",
        group="read",
        question="Does this vLLM's source provide what TRL uses: names, arguments, routes, options, behaviour?",
        evidence=EvidenceLevel.STATIC,
        check=_check,
        code=(__name__, "diagnostics.matrix.api"),
        heavy=False,
        of_pairs=True,
    ),
)
