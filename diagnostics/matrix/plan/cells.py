"""Cells, recipes and layer settings: what `matrix.toml` says, checked and frozen."""

from __future__ import annotations

import datetime
import re
import tomllib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from packaging.version import InvalidVersion, Version

from diagnostics import given
from diagnostics.matrix.plan import releases, rules
from diagnostics.matrix.plan.expectations import expectation_of
from diagnostics.matrix.plan.layers import family
from diagnostics.matrix.plan.needs import Needs
from diagnostics.tables import Table, TableError, TableSource, close_matches

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from diagnostics.matrix.plan.layers import Kind
    from diagnostics.matrix.plan.verdicts import Expectation

SCHEMA = "grpo-doctor.matrix.v1"
PROFILES = ("quick", "full")
_ID = re.compile(r"vllm-(?P<vllm>[0-9][0-9a-z.]*)\+trl-(?P<trl>[0-9][0-9a-z.]*)")


@dataclass(frozen=True)
class Recipe:
    """How the environment of a cell is built on a machine without a GPU."""

    name: str
    about: str
    requirements: tuple[str, ...]
    """Resolved together; `{vllm}` and `{trl}` stand for the cell's versions."""
    alone: tuple[str, ...]
    """Installed without their dependencies."""
    without: tuple[str, ...]
    """Packages left out although something asks for them."""
    instead: tuple[str, ...]
    """Requirements that replace what packages ask for under these names."""
    named: str
    """Distribution made up of a name and a version alone, for code that asks who is there; '' for none."""
    glibcxx: str
    """Version of libstdc++'s symbols that its wheels need, as '3.4.32'; '' for any."""
    exclude_newer: datetime.date | None
    """Date cut of the environment, if it isn't the cell's."""
    imports: tuple[str, ...]
    """Modules the `import` layer imports."""
    differs: tuple[tuple[str, str], ...]
    """What differs from the declared environment: (package, remark). Every executed verdict carries it."""
    environment: tuple[tuple[str, str], ...]
    """Environment variables set for programs run in the cell."""
    disk_gb: float
    """Free disk asked for before building, in GB of 1e9 bytes."""

    def filled(self, cell: Cell) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Returns (requirements, alone) with the cell's versions in them."""
        requirements = tuple(line.format(vllm=cell.vllm, trl=cell.trl) for line in self.requirements)
        return requirements, tuple(line.format(vllm=cell.vllm, trl=cell.trl) for line in self.alone)

    def additions(self, cell: Cell) -> tuple[str, ...]:
        """Returns what its environment holds besides the wheels of its lock, in words."""
        named = self.named.format(vllm=cell.vllm, trl=cell.trl)
        return tuple(
            f"{key} {value}" for key, value in (("named", named), ("glibcxx", self.glibcxx)) if value
        )


@dataclass(frozen=True)
class Cell:
    """One combination of versions, and the questions asked of it."""

    id: str
    vllm: str
    trl: str
    python: str
    exclude_newer: datetime.date
    """Nothing uploaded after this day (UTC) takes part in resolving the declared environment."""
    recipe: Recipe | None
    layers: tuple[str, ...]
    profiles: tuple[str, ...]
    expectations: tuple[tuple[str, Expectation], ...]
    note: str
    declares: str | None = None
    """Of a generated cell: the range of vLLM that its TRL declares, '' for any."""

    def expectation(self, layer: str) -> Expectation | None:
        """Returns what is expected of a layer, None for a pass."""
        return dict(self.expectations).get(layer)


@dataclass(frozen=True)
class LayerSettings:
    """What `matrix.toml` says about a layer in all cells."""

    timeout_s: float
    codes: tuple[str, ...]
    """Known issues asked about (`scheduler`)."""
    arguments: tuple[str, ...]
    """Given to the program in the cell (`train:*`, `engine`, `serve:*`)."""
    needs: Needs = field(default_factory=Needs)
    """What it asks of a machine: of a node of a cluster, of a CI runner."""


@dataclass(frozen=True)
class Matrix:
    """The whole file."""

    path: Path
    platform: str
    """uv's name of the platform for which declared environments are resolved."""
    cells: tuple[Cell, ...]
    settings: tuple[tuple[str, LayerSettings], ...]
    layers: tuple[Kind, ...]
    """Those that there are, in the order in which a cell is asked."""
    breadth: rules.Breadth | None = None
    """Which further cells are generated."""
    releases: releases.Releases | None = None
    """The releases they are generated from; None if no list is committed."""
    quick_without: tuple[str, ...] = ()
    """Layers that the profile `quick` leaves out; a name before a colon stands for all that begin with it."""

    def cell(self, name: str) -> Cell:
        """Returns the cell of that id; refuses an unknown one with what is close to it."""
        for cell in self.cells:
            if cell.id == name:
                return cell
        raise TableError(
            f"unknown cell {name!r}{close_matches(name, [cell.id for cell in self.cells])}; --list shows all"
        )

    def layer(self, name: str) -> LayerSettings:
        """Returns the settings of a layer."""
        return dict(self.settings)[name]


def load(path: Path, layers: Sequence[Kind]) -> Matrix:
    """Reads and checks a matrix file.

    Args:
        path: Of the file.
        layers: Those that there are, in order.

    Raises:
        TableError: one line naming file, line, key, value and what was expected.
    """
    try:
        text = given.read(path, given.SOURCE).decode().replace("\r\n", "\n")
    except (OSError, UnicodeDecodeError) as error:
        raise TableError(f"{path}: cannot be read: {error}") from None
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise TableError(f"{path}: is not TOML: {error}") from None
    top = Table(TableSource(path, text), (), document)
    if top.take("schema", str, required=True) != SCHEMA:
        raise top.refuse("schema", repr(SCHEMA))
    platform = top.take("platform", str, required=True)
    recipes = {name: _recipe(name, table) for name, table in top.table("recipes").tables()}
    names = [layer.name for layer in layers]
    settings = _settings(top.table("layers"), names)
    cells = tuple(_cell(name, table, recipes, layers) for name, table in top.table("cells").tables())
    breadth = rules.settings(top.table("breadth"), [layer.name for layer in layers if layer.of_pairs])
    families = dict.fromkeys((*names, *map(family, names)))
    quick_without = top.choices("quick_without", families)
    top.close()
    if not cells:
        raise TableError(f"{path}: cells: expected at least one")
    known = releases.load(path.parent / "locks" / releases.FILE)
    return Matrix(path, platform, cells, settings, tuple(layers), breadth, known, quick_without)


def _recipe(name: str, table: Table) -> Recipe:
    recipe = Recipe(
        name=name,
        about=table.take("about", str, required=True),
        requirements=table.strings("requirements", required=True),
        alone=table.strings("alone"),
        without=table.strings("without"),
        instead=table.strings("instead"),
        named=table.take("named", str, ""),
        glibcxx=table.take("glibcxx", str, ""),
        exclude_newer=table.take("exclude_newer", datetime.date),
        imports=table.strings("imports", required=True),
        differs=_pairs(table.table("differs")),
        environment=_pairs(table.table("environment")),
        disk_gb=table.take("disk_gb", float, required=True),
    )
    table.close()
    for key, lines in (
        ("requirements", recipe.requirements),
        ("alone", recipe.alone),
        ("named", (recipe.named,)),
    ):
        for line in lines:
            try:
                line.format(vllm="0", trl="0")
            except (KeyError, IndexError, ValueError):
                raise table.refuse(key, "no braces but {vllm} and {trl}") from None
    return recipe


def _pairs(table: Table) -> tuple[tuple[str, str], ...]:
    return tuple((key, table.take(key, str)) for key in table.values)


def _settings(table: Table, names: Sequence[str]) -> tuple[tuple[str, LayerSettings], ...]:
    found = []
    for name in names:
        layer = table.table(name)
        timeout_s = layer.take("timeout_s", float, 600.0)
        if timeout_s <= 0:
            raise layer.refuse("timeout_s", "seconds above zero")
        codes, arguments = layer.strings("codes"), layer.strings("arguments")
        found.append((name, LayerSettings(timeout_s, codes, arguments, _needs(layer))))
        layer.close()
    table.close()
    return tuple(found)


def _needs(layer: Table) -> Needs:
    usual = Needs()
    needs = Needs(
        cpus=layer.take("cpus", float, usual.cpus),
        memory_gb=layer.take("memory_gb", float, usual.memory_gb),
        gpus=layer.take("gpus", float, usual.gpus),
    )
    for key in ("cpus", "memory_gb", "gpus"):
        if getattr(needs, key) < 0:
            raise layer.refuse(key, "zero or more")
    if needs.gpus > 1 and needs.gpus % 1:
        raise layer.refuse("gpus", "a whole number, or a part of one GPU")
    return needs


def _cell(name: str, table: Table, recipes: dict[str, Recipe], known: Sequence[Kind]) -> Cell:
    versions = _ID.fullmatch(name)
    if versions is None:
        raise table.source.refuse(table.keys, None, "an id of the form vllm-<version>+trl-<version>")
    for package, version in versions.groupdict().items():
        try:
            Version(version)
        except InvalidVersion:
            raise table.source.refuse(
                table.keys, None, f"a version of {package} where {version!r} stands"
            ) from None
    layers = table.choices("layers", [kind.name for kind in known], required=True)
    wanted = table.take("recipe", str)
    if wanted is not None and wanted not in recipes:
        raise table.refuse("recipe", f"one of {', '.join(recipes)}{close_matches(wanted, recipes)}")
    if wanted is None and any(kind.heavy for kind in known if kind.name in layers):
        raise table.refuse("layers", "a recipe beside layers that run in an environment")
    python = table.take("python", str, required=True)
    if not re.fullmatch(r"3\.\d+", python):
        raise table.refuse("python", "a minor release, as 3.11")
    cell = Cell(
        id=name,
        vllm=versions["vllm"],
        trl=versions["trl"],
        python=python,
        exclude_newer=table.take("exclude_newer", datetime.date, required=True),
        recipe=recipes[wanted] if wanted else None,
        layers=tuple(kind.name for kind in known if kind.name in layers),
        profiles=table.choices("profiles", PROFILES, required=True),
        expectations=_expectations(table.table("expect"), layers),
        note=table.take("note", str, ""),
    )
    table.close()
    return cell


def _expectations(table: Table, layers: tuple[str, ...]) -> tuple[tuple[str, Expectation], ...]:
    found = []
    for layer, expect in table.tables():
        if layer not in layers:
            raise table.source.refuse(expect.keys, None, f"one of the cell's layers ({', '.join(layers)})")
        found.append((layer, expectation_of(expect)))
        expect.close()
    return tuple(found)
