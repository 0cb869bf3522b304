"""The breadth: every minor release of TRL beside the vLLM releases around what it declares, generated.

Which pairs there are follows from the table `[breadth]` of the matrix file and from the committed list of releases;
what is expected follows from the metadata and from rules over ranges of versions.
"""

from __future__ import annotations

import datetime
from dataclasses import replace
from typing import TYPE_CHECKING

from packaging.version import Version

from diagnostics.matrix.plan.cells import Cell
from diagnostics.matrix.plan.releases import fits, python_fits
from diagnostics.matrix.plan.verdicts import Expectation, Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from diagnostics.matrix.plan.cells import Matrix
    from diagnostics.matrix.plan.layers import Kind
    from diagnostics.matrix.plan.releases import Release, Releases
    from diagnostics.matrix.plan.rules import Breadth, BreadthRule

PROFILE = "breadth"


def cells(matrix: Matrix) -> tuple[Cell, ...]:
    """Returns the generated cells, by TRL and then vLLM; a written cell stands in for the one of its versions."""
    breadth, releases = matrix.breadth, matrix.releases
    if breadth is None or releases is None:
        return ()
    written = {cell.id: cell for cell in matrix.cells}
    engines = [
        item
        for item in releases.vllm
        if Version(item.version) >= Version(breadth.vllm_since) and python_fits(item, breadth.python)
    ]
    found = []
    for trainer in trainers(breadth, releases):
        near = neighbours(engines, trainer.vllm or "", breadth.aside)
        resolved = _thinned(near, trainer.vllm or "", breadth.resolved)
        found += [_cell(matrix, trainer, item, written, resolve=item in resolved) for item in near]
    return tuple(found)


def trainers(breadth: Breadth, releases: Releases) -> list[Release]:
    """Returns the newest release of each minor release of TRL."""
    lines: dict[tuple[int, int], Release] = {}
    for item in releases.trl:
        if Version(item.version) >= Version(breadth.trl_since) and python_fits(item, breadth.python):
            lines[item.line] = item
    return list(lines.values())


def neighbours(engines: Sequence[Release], declared: str, aside: int) -> list[Release]:
    """Returns the releases that a range allows and so many on each side; all lie in the order of versions."""
    inside = [position for position, item in enumerate(engines) if fits(declared, item.version)]
    if not inside:
        return []
    return list(engines[max(0, inside[0] - aside) : inside[-1] + 1 + aside])


def _thinned(near: Sequence[Release], declared: str, most: int) -> list[Release]:
    """Returns the forbidden ones, and of the allowed ones at most so many: the ends and some evenly between."""
    allowed = [item for item in near if fits(declared, item.version)]
    if len(allowed) > most:
        last = len(allowed) - 1
        places = {round(index * last / (most - 1)) for index in range(most)} if most > 1 else {last}
        allowed = [allowed[place] for place in sorted(places)]
    return [item for item in near if not fits(declared, item.version) or item in allowed]


def pair(matrix: Matrix, trainer: Release, engine: Release, layers: Sequence[str]) -> Cell:
    """Returns the cell of any two releases, asked these layers; nothing is expected of it but a pass.

    Raises:
        ValueError: the matrix file says nothing of generated cells.
    """
    breadth, releases = matrix.breadth, matrix.releases
    if breadth is None or releases is None:
        raise ValueError("no table [breadth], or no list of releases")
    declared = trainer.vllm or ""
    newest = max(trainer.uploaded, engine.uploaded) + datetime.timedelta(days=breadth.days)
    inside = "allows it" if fits(declared, engine.version) else "does not allow it"
    return Cell(
        id=f"vllm-{engine.version}+trl-{trainer.version}",
        vllm=engine.version,
        trl=trainer.version,
        python=breadth.python,
        exclude_newer=min(newest, releases.read),
        recipe=None,
        layers=tuple(layers),
        profiles=(PROFILE,),
        expectations=(),
        note=f"TRL {trainer.version} declares vllm{declared or ' without a bound'}, which {inside}.",
        declares=declared,
    )


def _cell(
    matrix: Matrix, trainer: Release, engine: Release, written: dict[str, Cell], *, resolve: bool
) -> Cell:
    assert matrix.breadth is not None
    asked = [kind for kind in matrix.layers if kind.of_pairs and (resolve or not kind.solves)]
    layers = tuple(kind.name for kind in asked)
    made = pair(matrix, trainer, engine, layers)
    expected = dict(_expected(matrix.breadth.rules, trainer, engine, asked))
    known = written.get(made.id)
    if known is None:
        return replace(made, expectations=tuple(expected.items()))
    own = {layer: item for layer, item in known.expectations if layer in layers}
    # What is written of a cell says all of its layers there; a rule speaks of those it isn't asked.
    rest = {layer: item for layer, item in expected.items() if layer not in known.layers}
    return replace(
        known,
        layers=layers,
        profiles=(PROFILE,),
        expectations=tuple({**rest, **own}.items()),
        declares=made.declares,
    )


def _expected(
    rules: Iterable[BreadthRule], trainer: Release, engine: Release, layers: Sequence[Kind]
) -> Iterable[tuple[str, Expectation]]:
    declared = trainer.vllm or ""
    forbidden = not fits(declared, engine.version)
    for layer in layers:
        if layer.solves and forbidden:
            reason = f"TRL {trainer.version} declares vllm{declared}."
            yield layer.name, Expectation(Outcome.UNRESOLVABLE, reason)
            continue
        for rule in rules:
            if rule.holds(layer.name, trainer.version, engine.version):
                yield layer.name, rule.expectation
                break


def allowed(cell: Cell) -> bool:
    """Tells whether the metadata of the cell's TRL allows its vLLM."""
    return fits(cell.declares or "", cell.vllm)
