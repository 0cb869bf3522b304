"""Can the pair be installed together at all, from what it declares, at its date cut?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnostics.collect.secrets import cut
from diagnostics.matrix.ask.layer import Layer, infrastructure
from diagnostics.matrix.build import locks, pylock
from diagnostics.matrix.build.resolving import Resolution, declared, drift, packages, version_of
from diagnostics.matrix.plan.verdicts import Answer, EvidenceLevel, Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping

    from diagnostics.matrix.build.workplace import Workplace
    from diagnostics.matrix.plan.cells import Cell

# The packages whose versions a reader asks for first.
SHOWN = ("torch", "transformers", "accelerate", "ray", "numpy", "xgrammar")


def _inputs(workplace: Workplace, cell: Cell) -> Mapping[str, str]:
    return {
        "python": cell.python,
        "platform": workplace.matrix.platform,
        "exclude_newer": cell.exclude_newer.isoformat(),
        "lock": locks.digest(locks.read(workplace, cell, runs=False)),
    }


def _ask(workplace: Workplace, cell: Cell) -> Answer:
    workplace.say("resolving what it declares")
    found = declared(workplace, cell, timeout_s=workplace.matrix.layer("resolve").timeout_s)
    committed = locks.read(workplace, cell, runs=False)
    changes = drift(committed, found.pins) if committed else []
    if committed:
        note = (
            f"{len(changes)} lines differ from the committed lock"
            if changes
            else "as the committed lock says"
        )
    else:
        note = "no lock is committed" if cell.declares is None else ""
    return answer(found, note, tuple(changes))


def answer(found: Resolution, note: str = "", changes: tuple[str, ...] = ()) -> Answer:
    """Returns what a resolution says.

    Args:
        found: how resolving ended.
        note: added to the summary of a solution.
        changes: how it differs from a committed lock.
    """
    if found.infrastructure:
        return infrastructure(
            f"uv could not resolve: {cut(found.explanation, 200)}", EvidenceLevel.STATIC, found.explanation
        )
    where = place(found.platform)
    if not found.pins:
        reason = found.explanation.removeprefix("No solution found when resolving dependencies").lstrip(": ")
        return Answer(
            Outcome.UNRESOLVABLE,
            f"{cut(reason, 300)} (asked for {where})",
            EvidenceLevel.STATIC,
            signs=(found.explanation,),
            excerpt=found.explanation,
        )
    versions = [f"{name} {version}" for name in SHOWN if (version := version_of(found.pins, name))]
    summary = f"{len(found.pins)} packages on {where}: {', '.join(versions)}"
    summary += f"; of {len(found.archives)} only a source archive fits" if found.archives else ""
    if found.refused:
        summary += "; none on the matrix's older platform"
        changes = (*changes, f"on the matrix's own platform: {found.refused}")
    if found.archives:
        changes = (*changes, f"only a source archive fits: {', '.join(found.archives)}")
    return Answer(
        Outcome.PASS,
        f"{summary}; {note}" if note else summary,
        EvidenceLevel.STATIC,
        signs=tuple(versions),
        details=(*changes, f"lock: {pylock.digest(found.packages)}; {pylock.coverage(found.packages)}"),
        facts=(
            *packages(found.pins),
            ("lock", pylock.digest(found.packages), str(len(found.packages))),
            ("platform", found.platform),
            *(("archive", pin) for pin in found.archives),
        ),
        excerpt=found.text,
    )


def place(platform: str) -> str:
    """Returns a platform with its glibc, in words.

    >>> place("x86_64-manylinux_2_28"), place("x86_64-manylinux2014"), place("")
    ('x86_64 with glibc 2.28', 'x86_64-manylinux2014', 'this machine')
    """
    machine, found, minor = platform.partition("-manylinux_2_")
    return f"{machine} with glibc 2.{minor}" if found else platform or "this machine"


LAYERS = (
    Layer(
        name="resolve",
        order=10,
        group="read",
        question="Have the declared requirements of this pair a solution, with nothing newer than the date cut?",
        evidence=EvidenceLevel.STATIC,
        heavy=False,
        of_pairs=True,
        solves=True,
        inputs=_inputs,
        ask=_ask,
    ),
)
