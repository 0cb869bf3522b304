"""Implement the command `add`: check a new vLLM release with a TRL release, and add the pair to the matrix file.

Only metadata and source are read: the requirements are resolved, and the names of vLLM that TRL uses are looked up.
"""

from __future__ import annotations

import datetime
import sys
from dataclasses import replace

import msgspec

from diagnostics import UserError
from diagnostics.matrix import locks
from diagnostics.matrix.cells import Cell, load_matrix
from diagnostics.matrix.context import Context
from diagnostics.matrix.layers import LAYERS
from diagnostics.matrix.progress import Progress
from diagnostics.matrix.releases import Release, indexed_releases, pair_cell
from diagnostics.matrix.results import ResultsGrid, make_questions
from diagnostics.matrix.runner import Run, RunOptions
from diagnostics.toml_source import close_matches
from diagnostics.versions import parse_version

READ_LAYERS = ("resolve", "contract")


def add_release(context: Context, release: str, trl: str, progress: Progress, *, write: bool) -> ResultsGrid:
    """Print a pair's cell, and return the results of the layers that read the metadata and source of the releases.

    Args:
        context: The command's context; its store is locked.
        release: Either vllm==VERSION or vllm==newest.
        trl: A release of TRL, or "newest".
        progress: Displays the run.
        write: Whether the cell is added to the matrix file and its lock written.

    Raises:
        UserError: A release is unknown or malformed, or the matrix file has no table [breadth].
    """
    name, _, version = release.partition("==")
    if name != "vllm" or not version:
        raise UserError(f"{release}: expected vllm==VERSION, or vllm==newest")
    breadth = context.matrix.breadth
    if breadth is None:
        raise UserError(f"{context.matrix.path}: expected a table [breadth]")
    engine, trainer = find_release("vllm", version), find_release("trl", trl)
    today = datetime.datetime.now(datetime.UTC).date()
    cell = msgspec.structs.replace(
        pair_cell(breadth, today, trainer, engine, READ_LAYERS), declares=None, profiles=("full",)
    )
    existing = next((item for item in context.matrix.cells if item.id == cell.id), None)
    if existing:
        cell = existing
        print(f"{cell.id} is in {context.matrix.path.name}")
    else:
        print(cell_table(cell))
    if write:
        if not existing:
            path = context.matrix.path
            path.write_text(
                f"{path.read_text(encoding='utf-8').rstrip()}\n\n{cell_table(cell)}", encoding="utf-8"
            )
            context = replace(context, matrix=load_matrix(path, LAYERS))
        for problem in locks.refresh_locks(context, [cell]):
            print(f"matrix: {problem}", file=sys.stderr)
    questions = make_questions(context, [cell], READ_LAYERS)
    grid = ResultsGrid(questions, context.store.read_events())
    context.stage()
    Run(context, RunOptions(), progress, grid).execute(questions)
    return grid


def cell_table(cell: Cell) -> str:
    """Return a cell as a TOML table of the matrix file."""
    layers = ", ".join(f'"{layer}"' for layer in cell.layers)
    return (
        f'[cells."{cell.id}"]\nnote = "{cell.note}"\npython = "{cell.python}"\n'
        f'exclude_newer = {cell.exclude_newer.isoformat()}\nlayers = [{layers}]\nprofiles = ["full"]\n'
    )


def find_release(package: str, version: str) -> Release:
    """Return the release of a package with a version, or with "newest" its newest release, from the API index.

    Raises:
        UserError: The index does not have this release.
    """
    releases = indexed_releases(package)
    if version == "newest":
        version = releases[-1].version
    for release in releases:
        if parse_version(release.version) == parse_version(version):
            return release
    close = close_matches(version, [item.version for item in releases])
    raise UserError(f"no {package} {version} in the API index{close}; `nox -s refresh` fetches new releases")
