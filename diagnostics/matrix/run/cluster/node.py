"""What runs on a node: asks one question in that node's own folder, and returns the answer as a line of the store.

A node keeps for itself: one folder a cell with its environment, logs and lock, and beside them what reading source
leaves behind. A cell's folder is held while the cell is asked, so that no two processes use one environment.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diagnostics.matrix.ask.registry import load
from diagnostics.matrix.build import disk, environments
from diagnostics.matrix.build.paths import ROOT
from diagnostics.matrix.build.workplace import InterpreterError, Workplace
from diagnostics.matrix.plan import breadth
from diagnostics.matrix.records.events import to_line
from diagnostics.matrix.records.store import Store, StoreBusyError, StoreError
from diagnostics.matrix.records.taken_in import LOG_BYTES
from diagnostics.matrix.run import asking
from diagnostics.matrix.run.board import Question, question
from diagnostics.matrix.run.cluster.bundle import MATRIX
from diagnostics.matrix.run.cluster.guard import guarded
from diagnostics.processes import end_left_over

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from diagnostics.matrix.plan.cells import Cell

# Names a node's folder, in the environment of `ray start` there.
VARIABLE = "GRPO_DOCTOR_NODE_FOLDER"
# So long a task waits for the end of one that a killed run left, in seconds.
PATIENCE_S = 30.0


def work(job: Mapping[str, Any]) -> dict[str, Any]:
    """Does one job.

    Args:
        job: `task` 'ask' with `cell`, `layer`, `inputs` (what the answer must depend on), `run`, `afresh` (build the
            environment again), `make_room` and `budget_gb`; or `task` 'drop' with `cell`.

    Returns:
        `line`, the event as the store keeps it, and `log`, the end of its log; or `refused`, in one line, where the
        question could not be asked here. `notes` for the screen in either case.
    """
    notes: list[str] = []
    try:
        reply = _drop(job, notes) if job["task"] == "drop" else _ask(job, notes)
    except StoreError as error:
        reply = {"refused": str(error)}
    return {**reply, "notes": notes}


def folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Returns where this node keeps what it builds; a home that several hosts share has one for each."""
    named = environ.get(VARIABLE)
    if named:
        return Path(named).resolve()
    cache = environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return (Path(cache) / "grpo-doctor" / "matrix" / socket.gethostname()).resolve()


def _ask(job: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    if not (ROOT / MATRIX).is_file():
        return {"refused": f"it imports an installed grpo-doctor ({ROOT}), not the code that was sent"}
    matrix = load(ROOT / MATRIX)
    everything = folder()
    name = str(job["cell"])
    own = everything / "cells" / name
    own.mkdir(parents=True, exist_ok=True)
    cells = {cell.id: cell for cell in (*_generated(matrix, name), *matrix.cells)}
    light = Workplace(matrix, Store(everything), programs=ROOT)
    heavy = Workplace(matrix, Store(own), programs=ROOT)
    item = question(light, cells[name], str(job["layer"]))
    workplace = heavy if item.layer.heavy else light
    with contextlib.suppress(InterpreterError):  # the difference below says it
        workplace.interpreter(item.cell.python, fetch=True)
    item = question(workplace, item.cell, item.layer.name)
    differs = _differs(item, dict(job["inputs"]))
    if differs:
        return {"refused": f"here it would be another question: {differs}"}
    if not item.layer.heavy:
        return _reply(workplace, item, str(job["run"]))
    ledger = own / "running.json"
    with _held(workplace.store), guarded(own):
        end_left_over(ledger)
        if job["make_room"]:
            notes += _make_room(everything, workplace, item.cell, job["budget_gb"])
        if job["afresh"]:
            environments.remove(workplace, item.cell)
        return _reply(workplace, item, str(job["run"]))


@contextlib.contextmanager
def _held(store: Store) -> Iterator[None]:
    """Holds a cell's folder; what another run of the matrix left working there gets a while to end.

    Raises:
        StoreBusyError: it is still held after that.
    """
    end = time.monotonic() + PATIENCE_S
    with contextlib.ExitStack() as stack:
        while True:
            try:
                stack.enter_context(store.locked())
                break
            except StoreBusyError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.5)
        yield


def _generated(matrix: Any, name: str) -> tuple[Cell, ...]:
    """Returns the generated cells, where the one asked for is not a written one."""
    written = any(cell.id == name for cell in matrix.cells)
    return () if written or matrix.breadth is None or matrix.releases is None else breadth.cells(matrix)


def _differs(item: Question, wanted: Mapping[str, str]) -> str:
    """Says how a question here differs from the one that was asked, '' if it doesn't."""
    here = dict(item.inputs)
    names = [name for name in {**wanted, **here} if wanted.get(name) != here.get(name)]
    return "; ".join(f"{name} is {here.get(name)} here, {wanted.get(name)} was asked" for name in names)


def _reply(workplace: Workplace, item: Question, run_name: str) -> dict[str, Any]:
    event = asking.ask(workplace, item, run_name, threading.Event(), attempts=1)
    return {"line": to_line(event), "log": _log(workplace, event.answer.log)}


def _log(workplace: Workplace, name: str) -> bytes | None:
    if not name:
        return None
    try:
        with (workplace.store.folder / name).open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - LOG_BYTES))
            data = file.read()
    except OSError:
        return None
    return (
        data
        if size <= LOG_BYTES
        else b"[%d bytes before this were left on the node]\n" % (size - LOG_BYTES) + data
    )


def _make_room(everything: Path, workplace: Workplace, cell: Cell, budget_gb: float | None) -> list[str]:
    """Removes environments of cells that nobody asks at the moment, the oldest first; returns what was done."""
    if cell.recipe is None or environments.existing(workplace, cell):
        return []
    others = [path for path in (everything / "cells").glob("*/environments/*") if path.name != cell.id]
    known = disk.whole(others)
    removed = []
    for path in list(known):
        enough = (
            sum(known.values()) + cell.recipe.disk_gb <= budget_gb
            if budget_gb is not None
            else disk.free_gb(everything) >= cell.recipe.disk_gb
        )
        if enough:
            break
        with contextlib.suppress(StoreBusyError), Store(everything / "cells" / path.name).locked():
            disk.remove(path)
            del known[path]
            removed.append(f"removed the environment of {path.name} to make room for {cell.id}")
    return removed


def _drop(job: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    name = str(job["cell"])
    own = folder() / "cells" / name
    with Store(own).locked():
        if (own / "environments" / name).exists():
            disk.remove(own / "environments" / name)
            notes.append(f"removed the environment of {name}")
    return {}
