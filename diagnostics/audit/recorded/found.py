"""What of a folder's files is read by which reader: by name, and where a name says too little by the first line."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from diagnostics import given
from diagnostics.audit.recorded.readers import (
    completions_parquet,
    listed_completions,
    metrics,
    plain,
    rollouts,
    step_dumps,
    token_exports,
    trackers,
    train_data,
)
from diagnostics.audit.recorded.rows import Checkpoint, Recording, Remains, Series, Unread

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

DEPTH, ENTRIES = 7, 50_000
_LOGS = (".log", ".out", ".err", ".txt")
# Of one folder so many: what a run writes; the rest is somebody's archive.
_MOST_LOGS = 16
_NAMES = (
    ("parquet", re.compile(r"completions_\d+\.parquet")),
    ("state", re.compile(r"trainer_state\.json")),
    ("train_data", re.compile(r"train_data_step\d+\.jsonl")),
    ("export", re.compile(r"rank_\d+\.jsonl")),
    ("step", re.compile(r"\d+\.jsonl")),
    ("jsonl", re.compile(r".+\.jsonl")),
    ("events", re.compile(r"events\.out\.tfevents\..+")),
    ("wandb", re.compile(r".+\.wandb")),
    ("summary", re.compile(r"wandb-summary\.json")),
    ("weights", re.compile(r".+\.safetensors")),
)
# Weights that are no model's.
_NO_MODEL = re.compile(r"optimizer|generators|scheduler|step-\d{6}-[0-9a-f]{8}")


def remains(path: Path) -> Remains:
    """Reads what lies below a folder, or one file.

    Raises:
        OSError: It is not there.
    """
    unread: list[Unread] = []
    kinds: dict[str, list[Path]] = {}
    for found in _files(path, unread) if path.is_dir() else [path]:
        if kind := _kind(found, named=found == path):
            kinds.setdefault(kind, []).append(found)
    budget = plain.Budget()
    recordings = list(_recordings(kinds, budget, unread))
    return Remains(
        tuple(recordings),
        tuple(_series(kinds, unread)),
        tuple(_checkpoints(kinds.get("weights", []))),
        tuple(unread),
    )


def _files(root: Path, unread: list[Unread]) -> Iterator[Path]:
    """All regular files below a folder; links to folders are not followed."""
    left, seen = [(root, 0)], 0
    while left:
        folder, depth = left.pop()
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError as error:
            unread.append(Unread(str(folder), error.strerror or str(error)))
            continue
        for entry in entries:
            seen += 1
            if seen > ENTRIES:
                unread.append(Unread(str(root), f"more than {ENTRIES} files: the rest was not looked at"))
                return
            if entry.is_dir(follow_symlinks=False):
                if depth < DEPTH and not (entry.name.startswith(".") and entry.name != ".wandb"):
                    left.append((Path(entry.path), depth + 1))
            else:
                yield Path(entry.path)


def _kind(path: Path, *, named: bool) -> str:
    kind = next((kind for kind, pattern in _NAMES if pattern.fullmatch(path.name)), "")
    if kind == "weights" and _NO_MODEL.search(path.name):
        return ""
    if kind in {"jsonl", "step", "export", "train_data"}:
        return _of_lines(path)
    if not kind and path.suffix == ".parquet" and named:
        return "parquet"
    if not kind and (path.suffix in _LOGS or named):
        return "log"
    return kind


def _of_lines(path: Path) -> str:
    """What a file of JSON lines is, by its first object; one that begins otherwise is a log, as vLLM's may be."""
    try:
        with given.opened(path) as file:
            entry = given.parsed(file.readline(plain.LINE))
    except OSError:
        return "broken"
    except (ValueError, RecursionError):
        return "broken"
    if not isinstance(entry, dict):
        return "broken"
    for kind, is_one in (
        ("rollouts", rollouts.is_one),
        ("own", rollouts.is_text),
        ("train_data", train_data.is_one),
        ("export", token_exports.is_one),
        ("step", step_dumps.is_one),
        ("listed", listed_completions.is_one),
    ):
        if is_one(entry):
            return kind
    return "lines"


def _recordings(
    kinds: dict[str, list[Path]], budget: plain.Budget, unread: list[Unread]
) -> Iterator[Recording]:
    unread += [Unread(str(path), "its first line is no JSON object") for path in kinds.get("broken", [])]
    many: tuple[tuple[str, Any], ...] = (
        ("parquet", completions_parquet.read),
        ("train_data", train_data.read),
        ("export", token_exports.read),
        ("step", step_dumps.read),
        ("listed", listed_completions.read),
    )
    for kind, read in many:
        for paths in _apart(kind, kinds.get(kind, [])):
            if found := read(paths, budget, unread):
                yield found
    whole = [
        found for path in kinds.get("rollouts", [])[:4] if (found := rollouts.read(path, budget, unread))
    ]
    yield from whole
    # The same samples with less beside them.
    for path in kinds.get("own", [])[:4] if not whole else []:
        if found := rollouts.read_texts(path, budget, unread):
            yield found


def _apart(kind: str, paths: list[Path]) -> list[list[Path]]:
    """Files of one recording: those of one folder, where steps are not folders themselves."""
    folders: dict[Path, list[Path]] = {}
    for path in paths:
        folders.setdefault(path.parent.parent if kind == "export" else path.parent, []).append(path)
    return list(folders.values())[:4]


def _series(kinds: dict[str, list[Path]], unread: list[Unread]) -> Iterator[Series]:
    reads: tuple[tuple[list[Path], Any], ...] = (
        (metrics.newest_state(kinds.get("state", [])), metrics.state),
        (kinds.get("lines", []), metrics.lines),
        (kinds.get("events", []), trackers.events),
        (kinds.get("wandb", []), trackers.history),
        (kinds.get("summary", []) if not kinds.get("wandb") else [], metrics.summary),
        (kinds.get("log", []), metrics.log),
    )
    for paths, read in reads:
        for path in paths[:_MOST_LOGS]:
            if found := read(path, unread):
                yield found
        if len(paths) > _MOST_LOGS:
            unread.append(
                Unread(str(paths[_MOST_LOGS].parent), f"{len(paths) - _MOST_LOGS} more of its kind")
            )


def _checkpoints(paths: list[Path]) -> Iterator[Checkpoint]:
    """Folders with weights, those with a number in their names in its order, the others before."""
    folders: dict[Path, list[Path]] = {}
    for path in paths:
        folders.setdefault(path.parent, []).append(path)
    made = [
        Checkpoint(
            plain.in_steps(folder),
            folder,
            tuple(sorted(files)[:512]),
            loads=(folder / "config.json").is_file(),
        )
        for folder, files in folders.items()
    ]
    yield from sorted(made, key=lambda each: (each.step, str(each.folder)))
