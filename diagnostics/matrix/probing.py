"""The commands that ask pairs which stand in no file: `bisect` and `add`."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from packaging.version import InvalidVersion, Version

from diagnostics import door
from diagnostics.matrix.ask.registry import BY_NAME, load
from diagnostics.matrix.build import locks, sources
from diagnostics.matrix.plan.breadth import pair
from diagnostics.matrix.plan.verdicts import exit_code
from diagnostics.matrix.report import ci, words
from diagnostics.matrix.report.progress import shown
from diagnostics.matrix.report.table import render
from diagnostics.matrix.run import selection
from diagnostics.matrix.run.bisect import BisectVerdict, bisect, contradictions
from diagnostics.matrix.run.board import Board, Square, board, question
from diagnostics.matrix.run.runner import Options, run
from diagnostics.tables import TableError, close_matches

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from diagnostics.matrix.build.workplace import Workplace
    from diagnostics.matrix.plan.cells import Cell
    from diagnostics.matrix.plan.releases import Release, Releases
    from diagnostics.matrix.run.progress import Progress

READ = ("resolve", "contract")


def bisected(options: argparse.Namespace, workplace: Workplace) -> int:
    """Names the first vLLM at which the verdict of a layer changes, and prints every step."""
    (layer,) = selection.layers([options.layer]) or ("",)
    trl = _release(known(workplace), "trl", options.trl).version
    chosen = _between(workplace, options.vllm)
    if layer in READ:
        sources.check_installed()
    cells = {vllm: _cell(workplace, vllm, trl, layer, options.recipe) for vllm in chosen}
    aside = replace(workplace, locks_aside=workplace.folder("locks"))
    with workplace.store.locked(), shown() as progress:
        found = bisect(chosen, lambda vllm: _verdict(aside, cells[vllm], layer, progress))
    for vllm, verdict in found.asked:
        print(f"vllm {vllm} + trl {trl}, {layer}: {verdict.word}: {verdict.summary}")
    if found.first is None:
        print(f"no release can be named: {found.problem}")
        return 3 if "not answered" in found.problem else 1
    before = chosen[chosen.index(found.first) - 1]
    said = dict(found.asked)
    print(
        f"first with another verdict: vllm {found.first} ({said[found.first].word}); "
        f"{before} has {said[before].word}; asked {len(found.asked)} of {len(chosen)} releases"
    )
    for line in contradictions(found, _seen(aside, cells, layer)):
        print(f"not the only change: {line}")
    return 0


def added(options: argparse.Namespace, workplace: Workplace) -> int:
    """Asks a new release of vLLM beside a TRL what can be read, and writes or prints the cell's table."""
    name, _, version = options.release.partition("==")
    if name != "vllm" or not version:
        raise TableError(f"{options.release}: expected vllm==VERSION, or vllm==newest")
    sources.check_installed()
    releases = known(workplace)
    vllm, trl = _release(releases, "vllm", version), _release(releases, "trl", options.trl)
    cell = pair(workplace.matrix, trl, vllm, READ)
    written = any(item.id == cell.id for item in workplace.matrix.cells)
    if options.write and not written:
        path, workflow = workplace.matrix.path, ci.committed(workplace.matrix)
        current = workflow is not None and workflow.read_text(encoding="utf-8") == ci.usual(workplace.matrix)
        path.write_text(f"{path.read_text(encoding='utf-8').rstrip()}\n\n{table(cell)}", encoding="utf-8")
        workplace = replace(workplace, matrix=load(path))
        if workflow is not None and current:  # one made for other runners is left to whoever made it
            workflow.write_text(ci.usual(workplace.matrix), encoding="utf-8")
            print(workflow, file=sys.stderr)
    cell = next((item for item in workplace.matrix.cells if item.id == cell.id), replace(cell, declares=None))
    with workplace.store.locked(), shown() as progress:
        if options.write:
            for problem in locks.refresh(workplace, [cell]):
                print(f"matrix: {problem}", file=sys.stderr)
        result = _asked(workplace, cell, READ, progress)
    door.write_painted(render(result, colour=sys.stdout.isatty()))
    print(table(cell) if not written else f"{cell.id} is in {workplace.matrix.path.name}", end="\n")
    return exit_code([square.judged for square in result.squares])


def table(cell: Cell) -> str:
    """Returns a cell as it stands in the matrix file."""
    layers = ", ".join(f'"{layer}"' for layer in cell.layers)
    return (
        f'[cells."{cell.id}"]\nnote = "{cell.note}"\npython = "{cell.python}"\n'
        f'exclude_newer = {cell.exclude_newer.isoformat()}\nlayers = [{layers}]\nprofiles = ["full"]\n'
    )


def known(workplace: Workplace) -> Releases:
    """Returns the list of releases.

    Raises:
        TableError: there is none, or the file says nothing of generated cells.
    """
    selection.generated(workplace.matrix)
    assert workplace.matrix.releases is not None
    return workplace.matrix.releases


def _release(releases: Releases, distribution: str, version: str) -> Release:
    all_: tuple[Release, ...] = getattr(releases, distribution)
    if version == "newest":
        return all_[-1]
    try:
        found = releases.find(distribution, version)
    except InvalidVersion:
        found = None
    if found is None:
        close = close_matches(version, [item.version for item in all_])
        raise TableError(
            f"no {distribution} {version} in locks/releases.json{close}, read on {releases.read}; "
            "`python -m diagnostics.matrix releases` reads the index again"
        )
    return found


def _between(workplace: Workplace, text: str) -> list[str]:
    """Returns the releases of vLLM from A to B, both included, of 'A..B'."""
    first, dots, last = text.partition("..")
    if not dots or not first or not last:
        raise TableError(f"--vllm {text}: expected two releases as A..B")
    releases = known(workplace)
    low, high = (Version(_release(releases, "vllm", item).version) for item in (first, last))
    found = [item.version for item in releases.vllm if low <= Version(item.version) <= high]
    if not found:
        raise TableError(f"--vllm {text}: expected the older release first")
    return found


def _cell(workplace: Workplace, vllm: str, trl: str, layer: str, recipe: str | None) -> Cell:
    """Returns the cell of a pair, asked one layer and what it needs."""
    releases = known(workplace)
    wanted, open_ = {layer}, [layer]
    while open_:
        needed = set(BY_NAME[open_.pop()].needs) - wanted
        wanted |= needed
        open_ += needed
    layers = tuple(name for name in BY_NAME if name in wanted)
    found = pair(workplace.matrix, _release(releases, "trl", trl), _release(releases, "vllm", vllm), layers)
    if not BY_NAME[layer].heavy:
        return found
    recipes = {item.recipe.name: item.recipe for item in workplace.matrix.cells if item.recipe}
    if recipe not in recipes:
        raise TableError(
            f"--layer {layer} runs in an environment: expected --recipe with one of {', '.join(recipes)}"
        )
    return replace(found, recipe=recipes[recipe])


def _verdict(workplace: Workplace, cell: Cell, layer: str, progress: Progress) -> BisectVerdict:
    if cell.recipe is not None and not locks.read(workplace, cell, runs=True):
        locks.refresh(workplace, [cell])
    square = _asked(workplace, cell, cell.layers, progress).rows[0].square(layer)
    assert square is not None
    return BisectVerdict(word(square), square.summary, answered=not square.judged.incomplete)


def word(square: Square) -> str:
    """Returns an outcome, its codes and what was in its way, for comparing releases."""
    if square.event is None:
        return f"not run ({square.summary})"
    return " ".join((words.WORDS[square.judged.verdict].lower(), *square.event.answer.codes))


def _asked(workplace: Workplace, cell: Cell, layers: Sequence[str], progress: Progress) -> Board:
    workplace.stage()
    questions = [question(workplace, cell, layer) for layer in layers]
    return run(workplace, questions, Options(), progress)


def _seen(workplace: Workplace, cells: dict[str, Cell], layer: str) -> dict[str, str]:
    """Returns the word of every release whose verdict the store knows."""
    events, found = workplace.store.read(), {}
    for vllm, cell in cells.items():
        square = (
            board([question(workplace, cell, name) for name in cell.layers], events).rows[0].square(layer)
        )
        if square is not None and square.event is not None and square.event.finished:
            found[vllm] = word(square)
    return found
