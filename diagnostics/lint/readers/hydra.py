"""Compose the Hydra config that a command names from its files, and resolve OmegaConf's `${a.b}` interpolations.

`compose_config` adds the options of the config and of the files in its defaults lists to the settings. Configs that
verl ships are not read, because verl's dialect has their values. Any other file of a defaults list that is missing,
unreadable or beyond a limit on number, size or depth (six levels) becomes an entry "not checked". So does the config
itself if it is not found and `required`.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from diagnostics import safe_io
from diagnostics.findings import NotChecked
from diagnostics.lint.project_files import find_above, find_named
from diagnostics.lint.project_requirements import is_in_project
from diagnostics.lint.readers.structured import MAX_BYTES, MAX_DEPTH, UnreadableError, flatten, parse_yaml
from diagnostics.lint.values import UNKNOWN, Settings, Value

_MAX_DEPTH = 6
# Limits of one config: files, bytes of all files together, entries of a list of defaults, and length of a file's name.
_MAX_FILES, _MAX_BYTES, _MAX_DEFAULTS, _MAX_NAME = 200, MAX_BYTES, 300, 300
_NOT_FOUND = "a defaults list names this file, and the file was not found"
_TOO_LARGE = f"its config has more than {_MAX_FILES} files, or more than {_MAX_BYTES // 1_000_000} MB"
_PACKAGE = re.compile(r"(?:#[^\n]*\n|\s)*#\s*@package\s+(\S+)")
# Names of the configs that verl ships, whose values are verl's defaults, and Hydra's name for the file itself.
SHIPPED = {"ppo_trainer", "ppo_megatron_trainer", "_self_"}
_INTERPOLATION = re.compile(r"\$\{\s{0,8}([^${}]{1,300}?)\s{0,8}\}")
# Maximum length of a chain of values that refer to other values.
_MAX_STEPS = 8


def compose_config(settings: Settings, *, required: bool) -> None:
    """Add the options of the config files that a command or a config names, unless it is a config that verl ships.

    The command's own options take precedence.

    Args:
        settings: The settings of a command.
        required: Whether a missing file is reported, as for a command.
    """
    path, name = settings.options.get("--config-path"), settings.options.get("--config-name")
    stem = str(name.data).removesuffix(".yaml") if name is not None and name.known else ""
    own = Path(settings.place.file)
    names_others = "defaults" in settings.options and own.stem not in SHIPPED
    is_config = names_others and not settings.target and own.suffix == ".yaml" and own.is_file()
    if not is_config and uses_shipped_config(settings):
        return
    file, stem = (own, own.stem) if is_config else (_find_config(path, stem, settings.place.file), stem)
    if file is None:
        place = path or name
        if required and place is not None:
            reason = "the file is not here, or its path is set outside the script"
            what = f"{stem}.yaml" if stem else "the config"
            entry = NotChecked(what, reason, "lint it where that file is", str(place.place))
            settings.not_checked.append(entry)
        return
    status, script = file.stat(), settings.place.file
    # A config outside of the script's project is in that of the working folder.
    border = script if is_in_project(file, script) else "any name"
    config = _compose_cached(file.parent, stem, border, status.st_mtime_ns, status.st_size)
    removed = {key for key, prefix in settings.prefixes.items() if prefix == "~"}
    for key, value in config.values.items():
        if key not in removed and not key.startswith(tuple(f"{name}." for name in removed)):
            settings.options.setdefault(key, value)
    if not is_config:
        settings.files.add(str(file))
        settings.script_options = settings.script_options.union(config.options)
    for name_of_part, reason in config.missing.items():
        settings.not_checked.append(NotChecked(f"{name_of_part}.yaml", reason, "", str(file)))


def uses_shipped_config(settings: Settings) -> bool:
    """Return whether a run names no config, or one of those that verl ships."""
    path, name = settings.options.get("--config-path"), settings.options.get("--config-name")
    in_own_folder = path is None or str(path.data).strip("./'\"") == "config"
    return in_own_folder and (name is None or str(name.data).removesuffix(".yaml") in SHIPPED)


@lru_cache(maxsize=100)
def _compose_cached(folder: Path, name: str, script: str, _modified: int, _size: int) -> ComposedConfig:
    """Return a composed config; many runs may name the same one."""
    return ComposedConfig(folder, name, script)


class ComposedConfig:
    """A config composed of a file and the files in its defaults list that are in the project of `script`.

    Attributes:
        values: The values by dotted key; a file takes precedence over the files that it names.
        missing: Files of the list that were not read, or whose own list was not followed, each with the reason.
    """

    def __init__(self, folder: Path, name: str, script: str) -> None:
        self.values: dict[str, Value] = {}
        self.missing: dict[str, str] = {}
        self._file_count = self._bytes = 0
        self._files: dict[Path, tuple[str, list[Any]]] = {}
        self._folder, self._script = folder, script
        self._add_file(name, "", 0)

    @cached_property
    def options(self) -> dict[str, Value | None]:
        """The options that the config declares: `values`, and None for each table's key; empty if a file is missing."""
        keys = self.values.keys()
        tables = {
            key.rsplit(".", at)[0] for key in keys for at in range(1, min(key.count("."), MAX_DEPTH) + 1)
        }
        return {} if self.missing else self.values | dict.fromkeys(tables - keys)

    def _parse(self, path: Path) -> tuple[str, list[Any]]:
        """Return the text and the documents of a file, which is parsed once however often it is named.

        Raises:
            UnreadableError: The file is not YAML or in another project, or the config exceeds its limits with it.
        """
        if not is_in_project(path, self._script):
            raise UnreadableError(_NOT_FOUND)
        self._file_count += 1
        self._bytes += path.stat().st_size
        if self._bytes > _MAX_BYTES or self._file_count > _MAX_FILES:
            raise UnreadableError(_TOO_LARGE)
        if path not in self._files:
            text = safe_io.read_text(path, MAX_BYTES)
            self._files[path] = text, parse_yaml(text, str(path))
        return self._files[path]

    def _add_file(self, name: str, package: str, depth: int) -> None:
        """Add the values of a file, and then the values that are not set yet from the files in its defaults list."""
        path = self._folder / f"{name}.yaml"
        try:
            text, trees = self._parse(path)
        except (OSError, UnreadableError) as error:
            if path.stem not in SHIPPED:
                self.missing[path.stem] = _TOO_LARGE if str(error) == _TOO_LARGE else _NOT_FOUND
            return
        tree = dict(trees[0]) if trees and isinstance(trees[0], dict) else {}
        match = _PACKAGE.match(text) if depth else None
        if match and match[1] != "_group_":
            package = match[1].removeprefix("_global_").strip(".")
        if len(package) > _MAX_NAME:  # it comes before the name of each option
            self.missing[path.stem] = f"its package name is longer than {_MAX_NAME} characters"
            return
        defaults = tree.pop("defaults", [])
        tree.pop("hydra", None)
        for key, value in flatten(tree).items():
            full_key = f"{package}.{key}".strip(".")
            self.values.setdefault(full_key, value.with_key(full_key))
        if isinstance(defaults, list) and defaults and depth == _MAX_DEPTH:
            self.missing[name] = f"its defaults list is below {_MAX_DEPTH} others"
        elif isinstance(defaults, list):
            self._add_defaults([_parse_default(entry) for entry in defaults], name, package, depth)

    def _add_defaults(self, entries: list[tuple[str, str]], name: str, package: str, depth: int) -> None:
        """Add the files of a defaults list, the last one first, because earlier values are not replaced."""
        if len(entries) > _MAX_DEFAULTS:
            self.missing[name] = f"its defaults list has more than {_MAX_DEFAULTS} entries"
            return
        chosen = dict(entries)
        for group, file in reversed(entries):
            for choice, choice_file in chosen.items():
                # One substitution after another; choices that name each other would grow without end.
                file = file[:_MAX_NAME].replace(f"${{{choice}}}", choice_file[:_MAX_NAME])  # noqa: PLW2901
            if not file or file in SHIPPED or group.startswith(("override", "hydra")):
                continue
            where, _, at = group.partition("@")
            under = at.removeprefix("_here_") if at else where.strip("./").replace("/", ".")
            # A file in a group's folder names other files relative to this folder.
            group_folder = "" if where.startswith("/") else f"{name.rpartition('/')[0]}/"
            path = posixpath.normpath(f"{group_folder}{where}/{file}".replace("//", "/").strip("/"))
            self._add_file(path, f"{package}.{under}".strip("."), depth + 1)


def _find_config(path: Value | None, stem: str, file: str) -> Path | None:
    """Find the config in the folder that the command names, or in the command's own if that is unknown; else None."""
    if path is None or not stem:
        return None
    if not path.known:
        return find_above(f"{stem}.yaml", file, parents=0)
    folder = str(path.data).strip("'\"")
    return find_named(f"{folder}/{stem}.yaml", file)


def _parse_default(entry: Any) -> tuple[str, str]:
    """Return (group, file) of an entry in a defaults list; the group may have a package, as in `group@package`."""
    if isinstance(entry, Value):
        file, at, package = str(entry.data).partition("@")
        return f"{at}{package}", file
    if isinstance(entry, dict) and len(entry) == 1:
        [(group, value)] = entry.items()
        file = str(value.data) if isinstance(value, Value) and value.data else ""
        return group.removeprefix("optional "), file
    return "", ""


def resolve_interpolations(options: dict[str, Value]) -> None:
    """Replace values that consist of one `${a.b}`, over chains of up to eight; others with `${` become unknown."""
    rest = list(options)
    for last in (False,) * _MAX_STEPS + (True,):
        rest = [key for key in rest if isinstance(options[key].data, str) and "${" in options[key].data]
        for key in rest:
            match = _INTERPOLATION.fullmatch(options[key].data.strip())
            target = options.get(match[1]) if match and not last else None
            data = UNKNOWN if target is None else target.data
            options[key] = replace(options[key], data=data, soft=bool(target and target.soft))
