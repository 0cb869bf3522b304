"""Read `matrix.toml`: cells, recipes, layer settings and the rules for generated cells."""

from __future__ import annotations

import datetime
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec
from msgspec import Struct
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from diagnostics import safe_io
from diagnostics.matrix.verdicts import Expectation, Outcome
from diagnostics.toml_source import Keys, TomlError, TomlSource, close_matches

SCHEMA = "grpo-doctor.matrix.v1"
PROFILES = ("quick", "full")
_ID = re.compile(r"vllm-(?P<vllm>[0-9][0-9a-z.]*)\+trl-(?P<trl>[0-9][0-9a-z.]*)")
_EXPECTED_OUTCOMES = (Outcome.FAIL, Outcome.NOT_RUN, Outcome.UNRESOLVABLE)


class LayerKind(Protocol):
    """The part of a layer that the matrix file refers to."""

    @property
    def name(self) -> str:
        """Name of the layer, as `train:async`."""

    @property
    def heavy(self) -> bool:
        """Whether it runs in the cell's own environment."""

    @property
    def of_pairs(self) -> bool:
        """Whether it also runs for generated cells, which have only a pair of versions and no environment."""


class Recipe(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Instructions for building a cell's environment on a machine without a GPU."""

    name: str
    about: str
    requirements: tuple[str, ...]
    """Resolved together; `{vllm}` and `{trl}` stand for the cell's versions."""
    alone: tuple[str, ...] = ()
    """Installed without their dependencies."""
    without: tuple[str, ...] = ()
    """Packages left out although something requires them."""
    instead: tuple[str, ...] = ()
    """Overrides: requirements that replace those that packages declare."""
    named: str = ""
    """Requirement of an empty distribution to add, for code that checks whether that name is installed; '' for none."""
    glibcxx: str = ""
    """Version of libstdc++'s symbols that its wheels need, as '3.4.32'; '' for any."""
    exclude_newer: datetime.date | None = None
    """Date cut of the environment, if it differs from the cell's."""
    imports: tuple[str, ...]
    """Modules that the layer `import` imports."""
    differs: dict[str, str] = {}
    """Differences from the declared environment: package -> remark. Every executed verdict carries them."""
    environment: dict[str, str] = {}
    """Environment variables of programs in the cell."""
    disk_gb: float
    """Free disk required before building, in GB of 1e9 bytes."""

    def requirements_for(self, cell: Cell) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return (requirements, alone) with the cell's versions filled in."""
        values = {"vllm": cell.vllm, "trl": cell.trl}
        lines = tuple(line.format(**values) for line in self.requirements)
        return lines, tuple(line.format(**values) for line in self.alone)

    def additions(self, cell: Cell) -> tuple[str, ...]:
        """Return what is installed in the environment besides the wheels of its lock."""
        requirement = self.named.format(vllm=cell.vllm, trl=cell.trl)
        return tuple(
            f"{key} {value}" for key, value in (("named", requirement), ("glibcxx", self.glibcxx)) if value
        )


class Cell(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One combination of versions, and the layers that run for it."""

    id: str
    vllm: str
    trl: str
    python: str
    exclude_newer: datetime.date
    """Packages uploaded after this day (UTC) take no part in resolving the declared environment."""
    recipe: Recipe | None = None
    layers: tuple[str, ...]
    profiles: tuple[str, ...]
    expect: dict[str, Expectation] = {}
    note: str = ""
    declares: str | None = None
    """Of a generated cell: the range of vLLM that its TRL declares, '' for any."""


class LayerSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a layer for all cells."""

    timeout_s: float = 600.0
    codes: tuple[str, ...] = ()
    """Known issues that `scheduler` tries to reproduce."""
    arguments: tuple[str, ...] = ()
    """Added to the command line of the program in the cell."""
    cpus: float = 1.0
    memory_gb: float = 0.0
    """GB of 1e9 bytes; 0 for no claim."""
    gpus: float = 0.0


class VersionRule(Struct, frozen=True):
    """The expected outcome of a layer in all generated cells whose TRL and vLLM are in these ranges."""

    layer: str
    trl: SpecifierSet
    vllm: SpecifierSet
    expectation: Expectation


class Breadth(Struct, frozen=True, kw_only=True):
    """The table `[breadth]`: rules for generating cells, one for each pair of TRL and vLLM releases."""

    python: str
    trl_since: str
    vllm_since: str
    aside: int = 2
    """Releases of vLLM tried on each side of the range that TRL allows."""
    resolved: int = 6
    """Allowed releases of a TRL that are resolved at most; the API comparison reads all of them."""
    days: int = 14
    """Days from the later upload of a pair to its date cut."""
    rules: tuple[VersionRule, ...] = ()


class Matrix(Struct, frozen=True, kw_only=True):
    """The contents of `matrix.toml`."""

    path: Path
    platform: str
    """uv's name of the platform for which declared environments are resolved."""
    cells: tuple[Cell, ...]
    settings: dict[str, LayerSettings]
    breadth: Breadth | None = None
    quick_without: tuple[str, ...] = ()
    """Layers that the profile `quick` leaves out; `repro` stands for all `repro:CODE`."""

    def cell(self, name: str) -> Cell:
        """Return the cell of that id; an unknown one is refused with similar ids."""
        names = [cell.id for cell in self.cells]
        if name not in names:
            raise TomlError(f"unknown cell {name!r}{close_matches(name, names)}; --list shows all")
        return self.cells[names.index(name)]

    def layer(self, name: str) -> LayerSettings:
        """Return the settings of a layer."""
        return self.settings[name]


def family(layer: str) -> str:
    """Return the name for all layers of a kind: `train` for `train:async`."""
    return layer.partition(":")[0]


def load_matrix(path: Path, kinds: Sequence[LayerKind]) -> Matrix:
    """Read and check a matrix file.

    Args:
        path: The file.
        kinds: All layers, in the order in which they run.

    Raises:
        TomlError: one line naming file, line, key, value and what was expected.
    """
    try:
        text = safe_io.read_bytes(path, safe_io.SOURCE).decode().replace("\r\n", "\n")
        document = tomllib.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        raise TomlError(f"{path}: cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise TomlError(f"{path}: is not TOML: {error}") from None
    return _Reader(TomlSource(path, text), kinds).matrix(document)


class _Reader:
    """Converts the tables of one file into structs; errors name the line."""

    def __init__(self, source: TomlSource, kinds: Sequence[LayerKind]) -> None:
        self.source = source
        self.kinds = {kind.name: kind for kind in kinds}

    def matrix(self, document: dict[str, Any]) -> Matrix:
        keys = {"schema", "platform", "recipes", "layers", "cells", "breadth", "quick_without"}
        self._choices(document, keys, ())
        if document.get("schema") != SCHEMA:
            raise self.source.refuse(("schema",), document.get("schema"), repr(SCHEMA))
        if not isinstance(document.get("platform"), str):
            raise self.source.refuse(("platform",), document.get("platform"), "a string")
        recipes = {name: self.recipe(name, item) for name, item in self._tables(document, "recipes")}
        settings = dict.fromkeys(self.kinds, LayerSettings()) | {
            name: self.settings(name, item) for name, item in self._tables(document, "layers")
        }
        cells = tuple(self.cell(name, item, recipes) for name, item in self._tables(document, "cells"))
        if not cells:
            raise TomlError(f"{self.source.path}: cells: expected at least one")
        quick_without = self.convert(document.get("quick_without", ()), tuple[str, ...], ("quick_without",))
        self._choices(quick_without, {*self.kinds, *map(family, self.kinds)}, ("quick_without",))
        return Matrix(
            path=self.source.path,
            platform=document["platform"],
            cells=cells,
            settings=settings,
            breadth=self.breadth(document["breadth"]) if document.get("breadth") else None,
            quick_without=quick_without,
        )

    def convert(self, value: Any, kind: Any, keys: Keys) -> Any:
        """Convert a value; an error names the key inside it."""
        try:
            return msgspec.convert(value, kind, builtin_types=(datetime.date, datetime.datetime))
        except msgspec.ValidationError as error:
            message, _, place = str(error).partition(" - at `$")
            inner = tuple(re.findall(r"\w+", re.sub(r"\[\.*\d*\]", "", place)))
            unknown = re.search(r"unknown field `(\w+)`", message)
            if unknown:
                names = [field.name for field in msgspec.structs.fields(kind)]
                message = f"unknown key {unknown[1]!r}{close_matches(unknown[1], names)}"
                inner = (*inner, unknown[1])
            raise TomlError(
                f"{self.source.place((*keys, *inner))}: {_dotted((*keys, *inner))}: {message}"
            ) from None

    def recipe(self, name: str, table: Mapping[str, Any]) -> Recipe:
        keys = ("recipes", name)
        recipe: Recipe = self.convert({**table, "name": name}, Recipe, keys)
        for key, lines in (
            ("requirements", recipe.requirements),
            ("alone", recipe.alone),
            ("named", (recipe.named,)),
        ):
            for line in lines:
                try:
                    line.format(vllm="0", trl="0")
                except (KeyError, IndexError, ValueError):
                    raise self.source.refuse(
                        (*keys, key), line, "no braces except {vllm} and {trl}"
                    ) from None
        return recipe

    def settings(self, name: str, table: Mapping[str, Any]) -> LayerSettings:
        keys = ("layers", name)
        self._choices((name,), self.kinds, keys)
        settings: LayerSettings = self.convert(table, LayerSettings, keys)
        if settings.timeout_s <= 0:
            raise self.source.refuse((*keys, "timeout_s"), settings.timeout_s, "seconds above zero")
        for key in ("cpus", "memory_gb", "gpus"):
            if getattr(settings, key) < 0:
                raise self.source.refuse((*keys, key), getattr(settings, key), "zero or more")
        return settings

    def cell(self, name: str, table: Mapping[str, Any], recipes: Mapping[str, Recipe]) -> Cell:
        keys = ("cells", name)
        versions = _ID.fullmatch(name)
        if versions is None or not all(map(_is_version, versions.groups())):
            raise self.source.refuse(keys, None, "an id of the form vllm-<version>+trl-<version>")
        recipe = table.get("recipe")
        if recipe is not None and recipe not in recipes:
            close = close_matches(str(recipe), recipes)
            raise self.source.refuse((*keys, "recipe"), recipe, f"one of {', '.join(recipes)}{close}")
        values = {**table, **versions.groupdict(), "id": name, "recipe": recipes[recipe] if recipe else None}
        cell: Cell = self.convert(values, Cell, keys)
        self._choices(cell.layers, self.kinds, (*keys, "layers"))
        self._choices(cell.profiles, PROFILES, (*keys, "profiles"))
        self._choices(cell.expect, cell.layers, (*keys, "expect"))
        for layer, expectation in cell.expect.items():
            self._check_expectation(expectation, (*keys, "expect", layer))
        if recipe is None and any(self.kinds[layer].heavy for layer in cell.layers):
            raise self.source.refuse(
                (*keys, "layers"), None, "a recipe, for layers that run in an environment"
            )
        if not re.fullmatch(r"3\.\d+", cell.python):
            raise self.source.refuse((*keys, "python"), cell.python, "a minor release, as 3.11")
        ordered = tuple(layer for layer in self.kinds if layer in cell.layers)
        return msgspec.structs.replace(cell, layers=ordered)

    def breadth(self, table: Mapping[str, Any]) -> Breadth:
        values = {key: value for key, value in table.items() if key != "expect"}
        self._choices(values, {field.name for field in msgspec.structs.fields(Breadth)}, ("breadth",))
        rules = tuple(self._rule(index, item) for index, item in enumerate(table.get("expect", ())))
        breadth: Breadth = self.convert(values, Breadth, ("breadth",))
        for key in ("trl_since", "vllm_since"):
            if not _is_version(getattr(breadth, key)):
                raise self.source.refuse(("breadth", key), getattr(breadth, key), "a version, as '0.14'")
        return msgspec.structs.replace(breadth, rules=rules)

    def _rule(self, index: int, table: Mapping[str, Any]) -> VersionRule:
        keys: Keys = ("breadth", "expect", index)
        self._choices((table.get("layer"),), [name for name in self.kinds if self.kinds[name].of_pairs], keys)
        ranges = {}
        for key in ("trl", "vllm"):
            try:
                ranges[key] = SpecifierSet(table.get(key, ">=0"))
            except InvalidSpecifier:
                raise self.source.refuse((*keys, key), table[key], "a range, as '>=0.12,<0.14'") from None
        values = {key: value for key, value in table.items() if key not in {"layer", "trl", "vllm"}}
        expectation: Expectation = self.convert(values, Expectation, keys)
        self._check_expectation(expectation, keys)
        return VersionRule(table["layer"], ranges["trl"], ranges["vllm"], expectation)

    def _check_expectation(self, expectation: Expectation, keys: Keys) -> None:
        if expectation.outcome not in _EXPECTED_OUTCOMES:
            allowed = ", ".join(_EXPECTED_OUTCOMES)
            raise self.source.refuse(
                (*keys, "outcome"), expectation.outcome, f"one of {allowed}; a pass needs no entry"
            )

    def _tables(self, document: Mapping[str, Any], key: str) -> list[tuple[str, Mapping[str, Any]]]:
        tables = document.get(key, {})
        if not isinstance(tables, Mapping) or not all(isinstance(item, Mapping) for item in tables.values()):
            raise self.source.refuse((key,), None, "a table of tables")
        return list(tables.items())

    def _choices(self, values: Any, allowed: Any, keys: Keys) -> None:
        for value in values:
            if value not in allowed:
                close = close_matches(str(value), allowed)
                place: Keys = (*keys, value) if isinstance(value, str) else keys
                raise TomlError(
                    f"{self.source.place(place)}: {_dotted(keys)}: {value!r}: expected one of "
                    f"{', '.join(sorted(allowed))}{close}"
                )


def _dotted(keys: Keys) -> str:
    return ".".join(map(str, keys)) or "key"


def _is_version(text: str) -> bool:
    try:
        Version(text)
    except InvalidVersion:
        return False
    return True
