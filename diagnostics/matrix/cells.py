"""Read and check `matrix.toml`: cells, recipes and settings of layers.

`load_matrix` returns a `Matrix`; its cells have their recipes, layers in running order, and expectations. A cell's
declared environment is what a user gets; its recipe describes another environment, which runs on CPUs. An unreadable or
invalid file raises TomlError; for an invalid key, the message has the line.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta, Struct

from diagnostics import safe_io
from diagnostics.matrix.verdicts import Expectation
from diagnostics.toml_source import Keys, TomlError, TomlSource, close_matches
from diagnostics.versions import is_release

if TYPE_CHECKING:
    from diagnostics.matrix.layers.layer import Layer

SCHEMA = "grpo-doctor.matrix.v1"
PROFILES = ("quick", "full")
TRAINERS = ("trl", "verl", "ms-swift", "openrlhf")
"""Distributions of the trainers that a cell may have, next to vLLM."""
_ID = re.compile(
    rf"vllm-(?P<vllm>[0-9][0-9a-z.]*)\+(?P<trainer>{'|'.join(TRAINERS)})-(?P<version>[0-9][0-9a-z.]*)"
)
_PLACEHOLDER = re.compile(r"\{(.*?)\}|[{}]")
_NotNegative = Annotated[float, Meta(ge=0)]


class Recipe(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Instructions for building a cell's environment for CPUs."""

    name: str
    about: str
    """Description for readers of the matrix."""
    requirements: tuple[str, ...]
    """Requirements that are resolved together; `{vllm}` and, say, `{trl}` stand for the cell's versions."""
    alone: tuple[str, ...] = ()
    """Requirements that are installed without their dependencies."""
    without: tuple[str, ...] = ()
    """Packages that are left out although another package requires them."""
    instead: tuple[str, ...] = ()
    """Overrides: requirements that replace those that packages declare."""
    named: str = ""
    """NAME==VERSION of an empty distribution to add, for code that looks up an installed version; '' for none."""
    glibcxx: str = ""
    """Version of libstdc++'s symbols that the wheels need, such as '3.4.32'; '' for any."""
    exclude_newer: datetime.date | None = None
    """Date cut of the environment; None for the cell's date cut."""
    imports: tuple[str, ...]
    """Modules that the layer `import` imports."""
    rollout: tuple[str, ...] = ()
    """Modules of the trainer's rollout worker, which the layer `rollout` imports."""
    differs: dict[str, str] = {}
    """Differences from the declared environment: package -> remark. They are in `ran_with` of executed answers."""
    environment: dict[str, str] = {}
    """Environment variables of programs in the cell."""
    disk_gb: float
    """Free disk required before building, in GB of 1e9 bytes."""

    def __post_init__(self) -> None:
        """Raise ValueError for a name in braces that stands for no version, and for a single brace."""
        if unknown := self.placeholders - {"vllm", *TRAINERS}:
            raise ValueError(f"{unknown}: expected no braces except {{vllm}} and {{trl}} or another trainer")

    @property
    def placeholders(self) -> set[str]:
        """The names in braces in `requirements`, `alone` and `named`, and '' if there is a single brace."""
        return set(_PLACEHOLDER.findall("\n".join((*self.requirements, *self.alone, self.named))))

    def requirements_for(self, cell: Cell) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the requirements of a cell's environment, and those to install without dependencies (`alone`)."""
        lines = tuple(line.format(**cell.versions) for line in self.requirements)
        return lines, tuple(line.format(**cell.versions) for line in self.alone)

    def additions(self, cell: Cell) -> tuple[str, ...]:
        """Return a line for each thing that is added to the environment besides the wheels of its lock."""
        requirement = self.named.format(**cell.versions)
        return tuple(
            f"{key} {value}" for key, value in (("named", requirement), ("glibcxx", self.glibcxx)) if value
        )


class Cell(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One combination of versions, and the layers that run for it."""

    id: str
    vllm: str
    trainer: str
    """Distribution of the trainer, one of TRAINERS."""
    version: str
    """Release of the trainer."""
    python: Annotated[str, Meta(pattern=r"\A3\.[0-9]+\Z")]
    """Minor release of Python, such as '3.11'."""
    exclude_newer: datetime.date
    """Packages uploaded after this day (UTC) take no part in resolving the declared environment."""
    recipe: Recipe | None = None
    layers: tuple[str, ...]
    profiles: tuple[str, ...]
    expect: dict[str, Expectation] = {}
    note: str = ""

    @property
    def versions(self) -> dict[str, str]:
        """The versions of vLLM and the trainer, by distribution."""
        return {"vllm": self.vllm, self.trainer: self.version}


class LayerSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a layer, which are the same for all cells."""

    timeout_s: Annotated[float, Meta(gt=0)] = 600.0
    codes: tuple[str, ...] = ()
    """Known issues that `scheduler` tries to reproduce."""
    arguments: tuple[str, ...] = ()
    """Arguments that are added to the command line of the program in the cell."""
    cpus: _NotNegative = 1.0
    """CPUs that a Ray task reserves for the layer."""
    memory_gb: _NotNegative = 0.0
    """Memory that a Ray task reserves for the layer, in GB of 1e9 bytes; 0 for none."""


class Matrix(Struct, frozen=True, kw_only=True):
    """The contents of `matrix.toml`."""

    path: Path
    platform: str
    """uv's name of the platform for which declared environments are resolved."""
    cells: tuple[Cell, ...]
    settings: dict[str, LayerSettings]
    """Layer -> its settings."""


def load_matrix(path: Path, layers: Sequence[Layer]) -> Matrix:
    """Read and check a matrix file.

    Args:
        path: The file.
        layers: All layers, in the order in which they run.

    Raises:
        TomlError: The file cannot be read or is invalid; the message names the place and what was expected.
    """
    try:
        text = safe_io.read_bytes(path, safe_io.SOURCE_LIMIT).decode().replace("\r\n", "\n")
        document = safe_io.parse_toml(text)
    except (OSError, UnicodeDecodeError) as error:
        raise TomlError(f"{path}: cannot be read: {error}") from None
    except ValueError as error:
        raise TomlError(f"{path}: is not TOML: {error}") from None
    return _Reader(TomlSource(path, text), {layer.name: layer for layer in layers}).matrix(document)


class _Document(Struct, kw_only=True, forbid_unknown_fields=True):
    """A matrix file. Cells, recipes and layers are converted later, one by one, so that an error names the table."""

    schema: str
    platform: str
    cells: Annotated[dict[str, dict[str, Any]], Meta(min_length=1)]
    recipes: dict[str, dict[str, Any]] = {}
    layers: dict[str, dict[str, Any]] = {}


class _Reader:
    """Converts and checks the tables of a matrix file; errors name the line."""

    def __init__(self, source: TomlSource, layers: Mapping[str, Layer]) -> None:
        self.source, self.layers = source, layers

    def matrix(self, tables: dict[str, Any]) -> Matrix:
        """Convert and check the document of a matrix file."""
        document: _Document = self.source.convert((), tables, _Document)
        if document.schema != SCHEMA:
            raise self.source.error_at(("schema",), document.schema, repr(SCHEMA))
        self._check_names(document.layers, self.layers, ("layers",))
        recipes = {
            name: self.source.convert(("recipes", name), {**table, "name": name}, Recipe)
            for name, table in document.recipes.items()
        }
        settings = {
            name: self.source.convert(("layers", name), document.layers.get(name, {}), LayerSettings)
            for name in self.layers
        }
        return Matrix(
            path=self.source.path,
            platform=document.platform,
            cells=tuple(self._cell(name, table, recipes) for name, table in document.cells.items()),
            settings=settings,
        )

    def _cell(self, name: str, table: Mapping[str, Any], recipes: Mapping[str, Recipe]) -> Cell:
        """Convert and check the table of a cell; its layers get the running order."""
        keys = ("cells", name)
        versions = _ID.fullmatch(name)
        if versions is None or not all(map(is_release, versions.group("vllm", "version"))):
            raise self.source.error_at(
                keys, None, "an id of the form vllm-<version>+trl-<version>, or another trainer"
            )
        recipe: str | None = self.source.convert((*keys, "recipe"), table.get("recipe"), str | None)
        self._check_names([recipe] if recipe else (), recipes, (*keys, "recipe"))
        values = {**table, **versions.groupdict(), "id": name, "recipe": recipes.get(recipe or "")}
        cell: Cell = self.source.convert(keys, values, Cell)
        if cell.recipe and not cell.recipe.placeholders <= cell.versions.keys():
            raise self.source.error_at((*keys, "recipe"), recipe, f"a recipe for {cell.trainer}")
        applicable = [
            layer.name for layer in self.layers.values() if cell.trainer in (layer.trainers or TRAINERS)
        ]
        self._check_names(cell.layers, applicable, (*keys, "layers"))
        self._check_names(cell.profiles, PROFILES, (*keys, "profiles"))
        self._check_names(cell.expect, cell.layers, (*keys, "expect"))
        if cell.recipe is None and any(self.layers[layer].heavy for layer in cell.layers):
            expected = "a recipe, for layers that run in an environment"
            raise self.source.error_at((*keys, "layers"), None, expected)
        ordered = tuple(layer for layer in self.layers if layer in cell.layers)
        return msgspec.structs.replace(cell, layers=ordered)

    def _check_names(self, names: Iterable[str], allowed: Iterable[str], keys: Keys) -> None:
        """Raise TomlError for the first name that is not allowed; the message lists the allowed and similar names."""
        for name in names:
            if name not in allowed:
                listed = f"{', '.join(sorted(allowed))}{close_matches(name, allowed)}"
                key = f"{self.source.location((*keys, name))}: {'.'.join(map(str, keys))}"
                raise TomlError(f"{key}: {name!r}: expected one of {listed}")
