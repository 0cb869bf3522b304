"""Compose the Hydra config that a command names, and resolve OmegaConf's `${a.b}` interpolations."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from diagnostics import safe_io
from diagnostics.findings import NotChecked
from diagnostics.lint.readers.structured import MAX_BYTES, UnreadableError, flatten, parse_yaml
from diagnostics.lint.values import UNKNOWN, Settings, Value

_MAX_PARENTS = 6
_MAX_DEPTH = 6
_PACKAGE = re.compile(r"(?:#[^\n]*\n|\s)*#\s*@package\s+(\S+)")
# verl's own files, whose values are its defaults.
SHIPPED = {"ppo_trainer", "ppo_megatron_trainer", "_self_"}
_INTERPOLATION = re.compile(r"\$\{\s*([^${}]{1,300}?)\s*\}")
# Values that refer to values that refer to others.
_MAX_STEPS = 8


def compose_config(settings: Settings, *, required: bool) -> None:
    """Add the options of the config files that a command names; the command's own options win.

    Args:
        settings: The settings of a command.
        required: Whether the command has no other config, so that a missing file is reported.
    """
    path, name = settings.options.get("--config-path"), settings.options.get("--config-name")
    if path is None and name is None:
        return
    stem = str(name.data).removesuffix(".yaml") if name is not None and name.known else ""
    own_folder = path is None or str(path.data).strip("./'\"") == "config"
    if own_folder and (name is None or stem in SHIPPED):
        return
    folder = _config_folder(path, settings.place.file)
    if folder is None or not stem or not (folder / f"{stem}.yaml").is_file():
        place = path or name
        if required and place is not None:
            reason = "the file is not here, or its path is set outside the script"
            what = f"{stem}.yaml" if stem else "the config"
            settings.not_checked.append(
                NotChecked(what, reason, "lint it where that file is", str(place.place))
            )
        return
    missing: list[str] = []
    for key, value in _read_config(folder, stem, "", missing, 0):
        settings.options.setdefault(key, value)
    settings.files.add(str(folder / f"{stem}.yaml"))
    settings.script_options = frozenset(settings.script_options | set(composed_options(folder, stem)))
    for file in missing:
        reason = "a defaults list names this file, and the file was not found"
        settings.not_checked.append(NotChecked(f"{file}.yaml", reason, "", str(folder / f"{stem}.yaml")))


def composed_options(folder: Path, name: str) -> dict[str, Value | None]:
    """Return what a config sets once it is composed; a table is None. Empty if a part is missing."""
    missing: list[str] = []
    options: dict[str, Value | None] = {}
    for key, value in _read_config(folder, name, "", missing, 0):
        options.setdefault(key, value)
    tables = {key.rsplit(".", count)[0] for key in options for count in range(1, key.count(".") + 1)}
    return {} if missing else options | dict.fromkeys(tables - options.keys())


def _config_folder(path: Value | None, file: str) -> Path | None:
    """Find the config folder from the script's folder or one above; the path may begin with an unknown part."""
    if path is None or not path.known:
        return None
    rest = str(path.data).strip("'\"")
    start = Path(file).absolute().parent
    for above in (start, *list(start.parents)[:_MAX_PARENTS]):
        folder = above / rest.lstrip("/") if not Path(rest).is_dir() else Path(rest)
        try:
            if rest and folder.is_dir():
                return folder
        except OSError:
            return None
    return None


def _read_tree(path: Path, missing: list[str], package: list[str] | None = None) -> dict[str, Any]:
    """Read a file's tree; its `@package` comment is stored in `package`."""
    try:
        text = safe_io.read_text(path, MAX_BYTES) if path.stat().st_size <= MAX_BYTES else ""
        trees = parse_yaml(text, str(path))
    except (OSError, UnreadableError):
        if path.stem not in SHIPPED:
            missing.append(path.stem)
        return {}
    match = _PACKAGE.match(text)
    if match and package is not None and match[1] != "_group_":
        package[:] = [match[1].removeprefix("_global_").strip(".")]
    return trees[0] if trees and isinstance(trees[0], dict) else {}


def _read_config(
    folder: Path, name: str, package: str, missing: list[str], depth: int
) -> Iterator[tuple[str, Value]]:
    """Yield what a file sets and, after it, what the files of its list of defaults set."""
    if depth > _MAX_DEPTH:
        return
    target = [package]
    tree = _read_tree(folder / f"{name}.yaml", missing, target if depth else None)
    [package] = target
    defaults = tree.pop("defaults", [])
    entries = [_parse_default(entry) for entry in defaults] if isinstance(defaults, list) else []
    chosen = dict(entries)
    tree.pop("hydra", None)
    for key, value in flatten(tree).items():
        full_key = f"{package}.{key}".strip(".")
        yield full_key, value.with_key(full_key)
    for group, file in reversed(entries):
        for choice, choice_file in chosen.items():
            file = file.replace(f"${{{choice}}}", choice_file)  # noqa: PLW2901 - one substitution after another
        if not file or file in SHIPPED or group.startswith(("override", "hydra")):
            continue
        where, _, at = group.partition("@")
        under = at or where.strip("./").replace("/", ".")
        # A file of a group names others relative to that group's folder.
        group_folder = "" if where.startswith("/") else f"{name.rpartition('/')[0]}/"
        path = posixpath.normpath(f"{group_folder}{where}/{file}".replace("//", "/").strip("/"))
        yield from _read_config(folder, path, f"{package}.{under}".strip("."), missing, depth + 1)


def _parse_default(entry: Any) -> tuple[str, str]:
    """Parse an entry of a list of defaults into its group, with its package, and its file."""
    if isinstance(entry, Value):
        return "", str(entry.data)
    if isinstance(entry, dict) and len(entry) == 1:
        [(group, value)] = entry.items()
        file = str(value.data) if isinstance(value, Value) and value.data else ""
        return group.removeprefix("optional "), file
    return "", ""


def resolve_interpolations(options: dict[str, Value]) -> None:
    """Replace every `${a.b}` by its value, in place; a resolver's or a missing value is unknown."""
    for last in (False,) * _MAX_STEPS + (True,):
        for key, value in list(options.items()):
            if isinstance(value.data, str) and "${" in value.data:
                match = _INTERPOLATION.fullmatch(value.data.strip())
                target = options.get(match[1]) if match and not last else None
                data = UNKNOWN if target is None else target.data
                options[key] = replace(value, data=data, soft=bool(target and target.soft))
