"""Generate cells for pairs of TRL and vLLM from a committed list of their releases.

The list is next to the locks, so that every machine generates the same cells without a network; `lock --releases` reads
the index again. A pair's expectations follow from TRL's metadata and from the version rules of `[breadth]`.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct
from packaging.requirements import Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from diagnostics import safe_io
from diagnostics.matrix import wheels
from diagnostics.matrix.cells import Breadth, Cell, LayerKind, Matrix
from diagnostics.matrix.verdicts import Expectation, Outcome
from diagnostics.toml_source import TomlError

PROFILE = "breadth"
_SCHEMA = "grpo-doctor.releases.v1"


class Release(Struct, frozen=True, omit_defaults=True):
    """A final release with a wheel for x86_64 Linux that was not yanked."""

    version: str
    uploaded: datetime.date
    """Day of its first wheel, UTC."""
    python: str
    """Its Requires-Python; '' for any."""
    vllm: str | None = None
    """Of TRL: the range of its vllm extra, '' for any; None where it was not read."""


class ReleaseList(Struct, frozen=True, tag_field="schema", tag=_SCHEMA):
    """The releases, oldest version first."""

    read: datetime.date
    """The day on which the index was read (UTC)."""
    trl: tuple[Release, ...]
    vllm: tuple[Release, ...]

    def find(self, distribution: str, version: str) -> Release | None:
        """Return a release, None if there is none of that version."""
        releases: tuple[Release, ...] = getattr(self, distribution)
        return next((item for item in releases if Version(item.version) == Version(version)), None)

    def to_text(self) -> str:
        """Return the file: one line a release."""
        encode = msgspec.json.encode

        def block(items: Iterable[Release]) -> str:
            return ",\n  ".join(
                encode(item).decode().replace('":', '": ').replace(',"', ', "') for item in items
            )

        head = f'"schema": "{_SCHEMA}",\n "read": "{self.read.isoformat()}"'
        return f'{{{head},\n "trl": [\n  {block(self.trl)}\n ],\n "vllm": [\n  {block(self.vllm)}\n ]}}\n'


def releases_file(matrix: Matrix) -> Path:
    """Return the file of the committed list."""
    return matrix.path.parent / "locks" / "releases.json"


def load_releases(matrix: Matrix) -> ReleaseList | None:
    """Read the committed list; None if there is none.

    Raises:
        TomlError: one line, when the file is something else.
    """
    path = releases_file(matrix)
    try:
        return msgspec.json.decode(safe_io.read_bytes(path, safe_io.DOCUMENT), type=ReleaseList)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise TomlError(f"{path}: cannot be read ({error}): `lock --releases` writes it again") from None


def fetch_releases(environ: Mapping[str, str], today: datetime.date, breadth: Breadth) -> ReleaseList:
    """Read the index.

    Raises:
        WheelError: the index cannot be read.
    """
    trl = [
        msgspec.structs.replace(item, vllm=_vllm_extra(item.version, environ))
        for item in _listed("trl", environ, breadth.trl_since)
    ]
    return ReleaseList(today, tuple(trl), tuple(_listed("vllm", environ, breadth.vllm_since)))


def _listed(distribution: str, environ: Mapping[str, str], since: str) -> list[Release]:
    releases: dict[Version, Release] = {}
    for version, uploaded, python in wheels.uploads(distribution, environ):
        try:
            parsed = Version(version)
        except InvalidVersion:
            continue
        if parsed.is_prerelease or parsed < Version(since):
            continue
        if parsed not in releases or uploaded < releases[parsed].uploaded:
            releases[parsed] = Release(version, uploaded, python)
    return [releases[version] for version in sorted(releases)]


def _vllm_extra(version: str, environ: Mapping[str, str]) -> str:
    """Return the range of vLLM that the vllm extra of this TRL allows."""
    for text in wheels.requirements("trl", version, environ):
        item = Requirement(text)
        if item.name == "vllm" and (item.marker is None or item.marker.evaluate({"extra": "vllm"})):
            return str(item.specifier)
    return ""


def allows(specifier: str, version: str) -> bool:
    """Return whether a version lies within a specifier; '' allows all.

    >>> allows(">=0.7.0", "0.8.5.post1"), allows("==0.7.2", "0.7.3")
    (True, False)
    """
    try:
        return SpecifierSet(specifier).contains(version)
    except InvalidSpecifier:
        return False


def generated_cells(matrix: Matrix, kinds: Sequence[LayerKind], solving: frozenset[str]) -> list[Cell]:
    """Return the generated cells, by TRL and then vLLM; a written cell replaces the one of its versions.

    Args:
        matrix: The matrix file.
        kinds: All layers.
        solving: Layers that look for a solution of the declared requirements.

    Raises:
        TomlError: the file has no `[breadth]`, or no list of releases is committed.
    """
    breadth, releases = matrix.breadth, load_releases(matrix)
    if breadth is None:
        raise TomlError(f"{matrix.path}: expected a table [breadth] for the profile {PROFILE!r}")
    if releases is None:
        raise TomlError(f"{releases_file(matrix)}: no such file: `lock --releases` writes it")
    written = {cell.id: cell for cell in matrix.cells}
    engines = _supporting(releases.vllm, breadth.vllm_since, breadth.python)
    minors = {
        Version(item.version).release[:2]: item
        for item in _supporting(releases.trl, breadth.trl_since, breadth.python)
    }
    cells = []
    for trainer in minors.values():
        pairs = neighbours(engines, trainer.vllm or "", breadth.aside)
        resolved = thinned(pairs, trainer.vllm or "", breadth.resolved)
        for engine in pairs:
            layers = [
                kind.name
                for kind in kinds
                if kind.of_pairs and (engine in resolved or kind.name not in solving)
            ]
            cell = pair_cell(breadth, releases.read, trainer, engine, layers)
            expect = _expectations(breadth, trainer, engine, layers, solving)
            cells.append(_merge_written(cell, expect, written.get(cell.id)))
    return cells


def _supporting(releases: Iterable[Release], since: str, python: str) -> list[Release]:
    """Return the releases from a version on that some patch release of this Python can install."""
    return [
        item
        for item in releases
        if Version(item.version) >= Version(since) and allows(item.python, f"{python}.99")
    ]


def neighbours(engines: Sequence[Release], declared: str, aside: int) -> list[Release]:
    """Return the releases within a range and `aside` more on each side; all are in the order of versions."""
    allowed = [position for position, item in enumerate(engines) if allows(declared, item.version)]
    if not allowed:
        return []
    return list(engines[max(0, allowed[0] - aside) : allowed[-1] + 1 + aside])


def thinned(pairs: Sequence[Release], declared: str, most: int) -> list[Release]:
    """Return the forbidden releases, and at most `most` allowed ones: the ends and some evenly between."""
    allowed = [item for item in pairs if allows(declared, item.version)]
    if len(allowed) > most:
        last = len(allowed) - 1
        positions = {round(index * last / (most - 1)) for index in range(most)} if most > 1 else {last}
        allowed = [allowed[position] for position in sorted(positions)]
    return [item for item in pairs if not allows(declared, item.version) or item in allowed]


def pair_cell(
    breadth: Breadth, today: datetime.date, trainer: Release, engine: Release, layers: Sequence[str]
) -> Cell:
    """Return the cell of any two releases, without expectations."""
    declared = trainer.vllm or ""
    date_cut = max(trainer.uploaded, engine.uploaded) + datetime.timedelta(days=breadth.days)
    allowed = "allows it" if allows(declared, engine.version) else "does not allow it"
    return Cell(
        id=f"vllm-{engine.version}+trl-{trainer.version}",
        vllm=engine.version,
        trl=trainer.version,
        python=breadth.python,
        exclude_newer=min(date_cut, today),
        layers=tuple(layers),
        profiles=(PROFILE,),
        note=f"TRL {trainer.version} declares vllm{declared or ' without a bound'}, which {allowed}.",
        declares=declared,
    )


def _merge_written(cell: Cell, expect: dict[str, Expectation], written: Cell | None) -> Cell:
    """Return the generated cell; a written cell's own expectations win for the layers it runs."""
    if written is None:
        return msgspec.structs.replace(cell, expect=expect)
    expectations = {layer: item for layer, item in written.expect.items() if layer in cell.layers}
    rest = {layer: item for layer, item in expect.items() if layer not in written.layers}
    expect = {**rest, **expectations}
    return msgspec.structs.replace(
        written, layers=cell.layers, profiles=(PROFILE,), expect=expect, declares=cell.declares
    )


def _expectations(
    breadth: Breadth, trainer: Release, engine: Release, layers: Iterable[str], solving: frozenset[str]
) -> dict[str, Expectation]:
    declared = trainer.vllm or ""
    expect = {}
    for layer in layers:
        if layer in solving and not allows(declared, engine.version):
            reason = f"TRL {trainer.version} declares vllm{declared}."
            expect[layer] = Expectation(Outcome.UNRESOLVABLE, reason)
            continue
        for rule in breadth.rules:
            versions_match = rule.trl.contains(trainer.version) and rule.vllm.contains(engine.version)
            if rule.layer == layer and versions_match:
                expect[layer] = rule.expectation
                break
    return expect
