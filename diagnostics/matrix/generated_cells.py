"""Generate cells for pairs of TRL and vLLM releases in the API index, by the table `[breadth]`.

The newest patch release of each minor TRL release is paired with the vLLM releases around the range that it declares. A
pair's expectations follow from TRL's metadata and from the version rules of the table `[breadth]`.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Struct
from packaging.version import Version

from diagnostics.api_index import query, store
from diagnostics.matrix.cells import BREADTH, Breadth, Cell, Matrix
from diagnostics.matrix.layers import LAYERS, SOLVING
from diagnostics.matrix.verdicts import Expectation, Outcome
from diagnostics.toml_source import TomlError
from diagnostics.versions import in_range


class Release(Struct, frozen=True):
    """A final release in the API index."""

    version: str
    uploaded: datetime.date
    """Day (UTC) on which the first file was uploaded."""
    python: str = ""
    """The release's Requires-Python; '' for any."""
    vllm: str = ""
    """For TRL, the range of vLLM that its vllm extra declares; '' for any."""


def indexed_releases(package: str) -> list[Release]:
    """Return the releases of a package in the API index, oldest first."""
    index = store.load(package)
    releases = []
    for number, item in enumerate(index.about["releases"] if index else ()):
        ranges = query.declared_ranges(query.Release(package, item["version"]), "vllm")
        extra = [str(specifier) for specifier, extra in ranges if extra in {"", "vllm"}]
        python = "".join(index.metadata("python", number)) if index else ""
        day = datetime.date.fromisoformat(item["day"])
        releases.append(Release(item["version"], day, python, extra[0] if extra else ""))
    return releases


def generated_cells(matrix: Matrix) -> list[Cell]:
    """Return the generated cells, by TRL and then vLLM release; a cell that the file also has keeps its settings.

    Raises:
        TomlError: The file has no table `[breadth]`.
    """
    breadth = matrix.breadth
    if breadth is None:
        raise TomlError(f"{matrix.path}: expected a table [breadth] for the profile {BREADTH!r}")
    written = {cell.id: cell for cell in matrix.cells}
    engines = _usable(breadth, "vllm", breadth.vllm_since)
    trainers = _usable(breadth, "trl", breadth.trl_since)
    newest_of_minor = {Version(item.version).release[:2]: item for item in trainers}
    cells = []
    for trainer in newest_of_minor.values():
        pairs = releases_around(engines, trainer.vllm, breadth.aside)
        resolved = thin_out(pairs, trainer.vllm, breadth.resolved)
        for engine in pairs:
            layers = [
                layer.name
                for layer in LAYERS
                if not layer.heavy and (engine in resolved or layer.name not in SOLVING)
            ]
            cell = _pair_cell(breadth, trainer, engine, layers)
            cells.append(_merge_written(cell, written.get(cell.id)))
    return cells


def _usable(breadth: Breadth, package: str, since: str) -> list[Release]:
    """Return the releases from version `since` to the day `until` that run on the breadth's Python."""
    return [
        item
        for item in indexed_releases(package)
        if Version(item.version) >= Version(since)
        and item.uploaded <= breadth.until
        and in_range(f"{breadth.python}.99", item.python)
    ]


def releases_around(engines: Sequence[Release], declared: str, aside: int) -> list[Release]:
    """Return the releases from the first to the last in the declared range, and `aside` more on each side.

    All lists are in version order.
    """
    allowed = [position for position, item in enumerate(engines) if in_range(item.version, declared)]
    if not allowed:
        return []
    return list(engines[max(0, allowed[0] - aside) : allowed[-1] + 1 + aside])


def thin_out(pairs: Sequence[Release], declared: str, most: int) -> list[Release]:
    """Return all releases outside the declared range, and of those inside at most `most`, evenly spaced.

    The first and the last release inside are among them; if `most` is 1, only the last.
    """
    allowed = [item for item in pairs if in_range(item.version, declared)]
    if len(allowed) > most:
        last = len(allowed) - 1
        positions = {round(index * last / (most - 1)) for index in range(most)} if most > 1 else {last}
        allowed = [allowed[position] for position in sorted(positions)]
    return [item for item in pairs if not in_range(item.version, declared) or item in allowed]


def _pair_cell(breadth: Breadth, trainer: Release, engine: Release, layers: Sequence[str]) -> Cell:
    """Return the cell of a pair, with the expectations that follow from its metadata and the version rules."""
    date_cut = max(trainer.uploaded, engine.uploaded) + datetime.timedelta(days=breadth.days)
    allowed = "allows it" if in_range(engine.version, trainer.vllm) else "does not allow it"
    return Cell(
        id=f"vllm-{engine.version}+trl-{trainer.version}",
        vllm=engine.version,
        trainer="trl",
        version=trainer.version,
        python=breadth.python,
        exclude_newer=min(date_cut, breadth.until),
        layers=tuple(layers),
        expect=_expectations(breadth, trainer, engine, layers),
        profiles=(BREADTH,),
        note=f"TRL {trainer.version} declares vllm{trainer.vllm or ' without a bound'}, which {allowed}.",
        declares=trainer.vllm,
    )


def _merge_written(cell: Cell, written: Cell | None) -> Cell:
    """Return the generated cell; if the file has the cell, its settings and expectations take precedence."""
    if written is None:
        return cell
    explicit = {layer: item for layer, item in written.expect.items() if layer in cell.layers}
    rest = {layer: item for layer, item in cell.expect.items() if layer not in written.layers}
    return msgspec.structs.replace(
        written, layers=cell.layers, profiles=(BREADTH,), expect={**rest, **explicit}, declares=cell.declares
    )


def _expectations(
    breadth: Breadth, trainer: Release, engine: Release, layers: Iterable[str]
) -> dict[str, Expectation]:
    """Return the expected outcomes: unresolvable if TRL forbids this vLLM, then those of the version rules."""
    forbidden = not in_range(engine.version, trainer.vllm)
    reason = f"TRL {trainer.version} declares vllm{trainer.vllm}."
    expect = {
        layer: Expectation(Outcome.UNRESOLVABLE, reason) for layer in layers if forbidden and layer in SOLVING
    }
    for rule in breadth.expect:
        applies = in_range(trainer.version, rule.trl) and in_range(engine.version, rule.vllm)
        if applies and rule.layer in layers:
            expect.setdefault(rule.layer, rule)
    return expect
