"""Which known issue a verdict is: the entries of the catalogue say how each shows in a graph of who waits for whom."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from diagnostics import catalog
from diagnostics.catalog import offers
from diagnostics.hang.judge.verdict import HANG

if TYPE_CHECKING:
    from collections.abc import Iterable

    from diagnostics.catalog.model import Frame as Wanted
    from diagnostics.catalog.model import Shape
    from diagnostics.hang.judge.decide import JudgedJob
    from diagnostics.hang.snapshot import StackFrame
    from diagnostics.output.findings import Finding

_load = cache(catalog.load)


def named(judged: JudgedJob) -> JudgedJob:
    """The same, with the code of the known issue that fits it best: what asks for the most frames."""
    verdict = judged.verdict
    if verdict.outcome != HANG:
        return judged
    culprits = list(_frames(judged, verdict.culprits))
    waiters = list(_frames(judged, verdict.victims))
    fitting = [
        (len(shape.culprit) > 0, len(shape.waiter) > 0, issue.code)
        for issue in _load().values()
        for shape in issue.hang
        if verdict.cause in shape.causes and _fits(shape, culprits, waiters)
    ]
    if not fitting:
        return judged
    best = max(fitting, key=lambda item: (item[0] + item[1], item[0], item[2]))
    return replace(judged, verdict=replace(verdict, code=best[2]))


def _frames(judged: JudgedJob, keys: Iterable[str]) -> Iterable[StackFrame]:
    for key in keys:
        stand = judged.index.stands.get(key)
        for thread, _ in stand.steps if stand else ():
            yield from thread.frames


def _fits(shape: Shape, culprits: list[StackFrame], waiters: list[StackFrame]) -> bool:
    return _any(shape.culprit, culprits) and _any(shape.waiter, waiters or culprits)


def _any(wanted: tuple[Wanted, ...], seen: list[StackFrame]) -> bool:
    return not wanted or any(
        one.function in ("*", frame.function) and one.path in frame.path for one in wanted for frame in seen
    )


def finding(document: dict[str, Any]) -> Finding | None:
    """The known issue that a verdict is, with what to do first; None where it is none."""
    if not document["code"]:
        return None
    names = {one["key"]: one["label"] for one in document["processes"]}
    who = ", ".join(names[key] for key in document["culprits"][:1] if key in names) or document["source"]
    # What was seen last of the one that holds up the others says most: its stack, a question that it owes.
    seen = [(line, who) for line in reversed(document["evidence"])]
    seen += [(line, names.get(edge["source"], "")) for edge in document["chain"] for line in edge["evidence"]]
    return offers.as_finding(_load()[document["code"]], document["certainty"], seen)


def helps(code: str) -> dict[str, Any]:
    """What the catalogue says of a code: title, cause and mitigations, each in the words of the frameworks."""
    return {"code": code, **offers.told(_load()[code])} if code else {}
