"""Hydra's config of a command: the file that `--config-path` and `--config-name` name, and those in its `defaults:`."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diagnostics import given
from diagnostics.lint.sources.tree import MAX_BYTES, UnreadableError, flat
from diagnostics.lint.values import Value
from diagnostics.output.findings import NotJudged

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from diagnostics.lint.values import Settings

_ABOVE = 6
_DEEP = 6
# Where the keys of a file of a group go, if not under the group.
_PACKAGE = re.compile(r"(?:#[^\n]*\n|\s)*#\s*@package\s+(\S+)")
# Files of verl's own, whose values are its defaults.
SHIPPED = {"ppo_trainer", "ppo_megatron_trainer", "_self_"}


def compose(made: Settings, *, needed: bool) -> None:
    """Puts what the named files set under what the command sets.

    Args:
        made: The settings of a command.
        needed: Whether the command has no config but this one, so that its absence is to be told.
    """
    path, name = made.items.get("--config-path"), made.items.get("--config-name")
    if path is None and name is None:
        return
    own = path is None or str(path.data).strip("./'\"") == "config"
    if own and (name is None or str(name.data).removesuffix(".yaml") in SHIPPED):
        return
    folder = _folder(path, made.place.file)
    stem = str(name.data).removesuffix(".yaml") if name is not None and name.known else ""
    if folder is None or not stem or not (folder / f"{stem}.yaml").is_file():
        told, where = (f"{stem or 'the config'}.yaml", path or name) if stem else ("the config", path or name)
        if needed and where is not None:
            why = "it is not here, or where it is is set outside of what was read"
            made.gaps.append(NotJudged(told, why, "lint it where that file is", str(where.place)))
        return
    missing: list[str] = []
    for key, value in _read(folder, stem, "", missing, 0):
        made.items.setdefault(key, value)
    made.own = frozenset(made.own | keys(folder, stem))
    for each in missing:
        why = "its list of defaults names it, and it is not here"
        made.gaps.append(NotJudged(f"{each}.yaml", why, "", str(folder / f"{stem}.yaml")))


def keys(folder: Path, name: str) -> set[str]:
    """Every key that a config has once it is composed, and the tables they are in; none where a part is not there."""
    return set(values(folder, name))


def values(folder: Path, name: str, choices: Mapping[str, str] | None = None) -> dict[str, Value | None]:
    """What a config sets once it is composed; a table it has stands for None; nothing where a part is not there.

    Args:
        folder: Of the configs.
        name: Of the one that the run takes.
        choices: The files that the command chooses for groups of its list of defaults.
    """
    missing: list[str] = []
    found = _first(_read(folder, name, "", missing, 0, choices))
    if (missing or not found) and not choices and (folder / f"_generated_{name}.yaml").is_file():
        # What was composed beforehand is older than the parts where somebody added to these; alone it is all there is.
        missing = []
        found = _first(_read(folder, f"_generated_{name}", "", missing, 0))
    tables = {key.rsplit(".", count)[0] for key in found for count in range(1, key.count(".") + 1)}
    return {} if missing else found | dict.fromkeys(tables - found.keys())


def _first(read: Iterable[tuple[str, Value]]) -> dict[str, Value | None]:
    found: dict[str, Value | None] = {}
    for key, value in read:
        found.setdefault(key, value)
    return found


def groups(folder: Path, name: str) -> set[str]:
    """The groups in a config's list of defaults: what stands before `=` where a command chooses another file."""
    listed = _tree(folder / f"{name}.yaml", []).get("defaults", [])
    return {_entry(each)[0] for each in listed} - {""} if isinstance(listed, list) else set()


def _folder(path: Value | None, file: str) -> Path | None:
    """The folder, from that of the script or one above; of one that begins with what is not known the known rest."""
    if path is None or not path.known:
        return None
    rest = str(path.data).strip("'\"")
    start = Path(file).absolute().parent
    for above in (start, *list(start.parents)[:_ABOVE]):
        found = above / rest.lstrip("/") if not Path(rest).is_dir() else Path(rest)
        try:
            if rest and found.is_dir():
                return found
        except OSError:
            return None
    return None


def _tree(path: Path, missing: list[str], package: list[str] | None = None) -> dict[str, Any]:
    """A file's tree; where it says itself where its keys go, that is put into `package`."""
    from diagnostics.lint.sources import yaml_file

    try:
        text = given.text(path, MAX_BYTES) if path.stat().st_size <= MAX_BYTES else ""
        trees = yaml_file.read(text, str(path))
    except (OSError, UnreadableError):
        if path.stem not in SHIPPED:
            missing.append(path.stem)
        return {}
    said = _PACKAGE.match(text)
    if said and package is not None and said[1] != "_group_":
        package[:] = [said[1].removeprefix("_global_").strip(".")]
    return trees[0] if trees and isinstance(trees[0], dict) else {}


def _read(
    folder: Path,
    name: str,
    package: str,
    missing: list[str],
    depth: int,
    choices: Mapping[str, str] | None = None,
) -> Iterator[tuple[str, Value]]:
    """What a file sets and, under it, what the files of its list of defaults set."""
    if depth > _DEEP:
        return
    goes = [package]
    tree = _tree(folder / f"{name}.yaml", missing, goes if depth else None)
    [package] = goes
    listed = tree.pop("defaults", [])
    every = [_entry(each) for each in listed] if isinstance(listed, list) else []
    every = [(group, (choices or {}).get(group, chosen)) for group, chosen in every]
    chosen_here = {**dict(every), **(choices or {})}
    tree.pop("hydra", None)
    for key, value in flat(tree).items():
        whole = f"{package}.{key}".strip(".")
        yield whole, value.named(whole)
    for group, chosen in reversed(every):
        file = chosen
        for other, its in chosen_here.items():
            file = file.replace(f"${{{other}}}", its)
        if not file or file in SHIPPED or group.startswith(("override", "hydra")):
            continue
        where, _, at = group.partition("@")
        under = at or where.strip("./").replace("/", ".")
        # What a file of a group names is looked for from that group's folder.
        beside = "" if where.startswith("/") else f"{name.rpartition('/')[0]}/"
        path = posixpath.normpath(f"{beside}{where}/{file}".replace("//", "/").strip("/"))
        yield from _read(folder, path, f"{package}.{under}".strip("."), missing, depth + 1, choices)


def _entry(each: Any) -> tuple[str, str]:
    """An entry of the list: the group, with where it goes, and the file."""
    if isinstance(each, Value):
        return "", str(each.data)
    if isinstance(each, dict) and len(each) == 1:
        [(group, value)] = each.items()
        return group.removeprefix("optional "), str(value.data) if isinstance(
            value, Value
        ) and value.data else ""
    return "", ""
