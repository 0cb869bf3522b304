"""Run cells on a Ray cluster, one Ray task per cell; Ray places, queues and retries the tasks.

`run_on_ray` runs in the driver, and `run_cell` in each task. The driver sends its code as Ray's working directory. A
task keeps its cell's environment and logs in a folder of its node, and returns its answers, which the driver adds to
its own store. A task that fails leaves its cell open. An interrupt cancels the unfinished tasks.
"""

import contextlib
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from diagnostics import UserError
from diagnostics.collect import ray_nodes
from diagnostics.matrix.cells import load_matrix
from diagnostics.matrix.context import CELL_PACKAGES, ROOT, Context
from diagnostics.matrix.layers import LAYERS, conformance, programs
from diagnostics.matrix.results import Question, ResultsGrid, make_questions, select_cells
from diagnostics.matrix.runner import Run
from diagnostics.matrix.store import Store, parse_event
from diagnostics.output.redact import truncate
from diagnostics.safe_io import write_atomically

FOLDER_VARIABLE = "GRPO_DOCTOR_NODE_FOLDER"
# Ray repeats a task whose node or worker died.
RETRIES = 2
# Seconds that cancelled tasks have to end their programs.
CANCEL_S = 10.0


class RayError(UserError):
    """Raised when no cluster can be used, or a worker imports other code; the message is one line."""


def run_on_ray(address: str, run: Run, questions: Sequence[Question]) -> None:
    """Run the questions that are due in one Ray task per cell, and add the answers to the run.

    Raises:
        RayError: Ray is not installed, the address is malformed, or the cluster cannot be joined.
        RemoteError: Nothing listens at the address.
    """
    due = {question.cell.id: question.cell for question in questions if run.is_due(question)}
    with _cluster(address, run.context) as ray:
        task = ray.remote(run_cell)
        pending = {}
        for cell in due.values():
            layers = [question.layer.name for question in questions if question.cell.id == cell.id]
            events = [event.to_line() for event in run.context.store.read_events() if event.cell == cell.id]
            placed = task.options(name=cell.id, max_retries=RETRIES, **_resources(run, layers))
            pending[placed.remote(cell.id, layers, run.fresh, events, run.name)] = cell.id
        run.progress.note(f"{len(pending)} cells submitted to Ray at {address}")
        try:
            while pending:
                ready, _ = ray.wait(list(pending), num_returns=1)
                for handle in ready:
                    _add_answers(run, pending.pop(handle), handle, ray)
        except BaseException:
            for handle in pending:
                ray.cancel(handle)  # raises a KeyboardInterrupt in the task, which ends its program
            ray.wait(list(pending), num_returns=len(pending), timeout=CANCEL_S)
            raise


def _resources(run: Run, layers: Sequence[str]) -> dict[str, Any]:
    """Return the CPUs and the bytes of memory of a task: the maximum over its layers."""
    settings = [run.context.matrix.settings[name] for name in layers]
    memory = int(max(item.memory_gb for item in settings) * 1e9) or None
    return {"num_cpus": max(item.cpus for item in settings), "memory": memory}


def _add_answers(run: Run, cell: str, handle: Any, ray: Any) -> None:
    """Add the answers of a finished task to the run; a failed task is reported and leaves its cell open."""
    try:
        events = [parse_event(line) for line in ray.get(handle)]
    except (ray.exceptions.RayError, ValueError, TypeError) as error:
        *_, last = [repr(error), *filter(None, map(str.strip, str(error).splitlines()))]
        run.progress.note(f"{cell}: its Ray task failed: {truncate(last, 300)}")
        return
    for event in events:
        run.record(event)


def run_cell(
    cell: str, layers: list[str], fresh: frozenset[tuple[str, str]], events: list[str], run_name: str
) -> list[str]:
    """Run the due layers of a cell on this node; return the new events as store lines.

    Args:
        cell: Id of the cell.
        layers: Layers to run, with the layers that they need.
        fresh: (cell, layer) pairs that run again although they have answers.
        events: The driver's events of the cell as store lines; they replace the node's store of the cell.
        run_name: Name of the run, for the new events.

    Raises:
        RayError: The worker imports an installed grpo-doctor instead of the code that was sent.
    """
    if not (ROOT / "matrix.toml").is_file():
        raise RayError(f"the worker imports an installed grpo-doctor ({ROOT}), not the code that was sent")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "grpo-doctor" / "matrix"
    folder = Path(os.environ.get(FOLDER_VARIABLE) or cache / socket.gethostname()).resolve() / cell
    context = Context(load_matrix(ROOT / "matrix.toml", LAYERS), Store(folder))
    with context.store.locked():
        write_atomically(context.store.path, "".join(f"{line}\n" for line in events))
        questions = make_questions(context, select_cells(context.matrix, [cell], None), layers)
        grid = ResultsGrid(questions, context.store.read_events())
        Run(context, grid, fresh, name=run_name).execute(questions)
        lines = (event.to_line() for event in context.store.read_events())
        return [line for line in lines if line not in events]


@contextlib.contextmanager
def _cluster(address: str, context: Context) -> Iterator[Any]:
    """Join a running cluster with our code as the working directory of its workers; leave it at the end.

    Raises:
        RayError: Ray is not installed, the address is malformed, or the cluster cannot be joined.
        RemoteError: Nothing listens at the address.
    """
    try:
        import ray
    except ImportError:
        raise RayError("--ray: Ray is not installed here: pip install ray") from None
    if address != "auto" and ("//" in address or not ray_nodes.ADDRESS.fullmatch(address)):
        raise RayError(f"--ray {address}: expected HOST:PORT or auto, on a machine of the cluster")
    ray_nodes.check_address(address)
    with tempfile.TemporaryDirectory(prefix="grpo-doctor-") as name:
        sent = Path(name) / "sent"
        _copy_code(context, sent)
        terminate = signal.getsignal(signal.SIGTERM)
        try:
            ray.init(address=address, runtime_env={"working_dir": str(sent)}, log_to_driver=False)
            signal.signal(signal.SIGTERM, terminate)  # Ray's own handler ends the process at once
        except Exception as error:  # noqa: BLE001 - Ray raises a dozen kinds
            text = truncate(" ".join(str(error).split()), 400)
            raise RayError(f"--ray {address}: {type(error).__name__}: {text}") from None
    # Ray prints messages about its nodes to standard output, which belongs to the table.
    with contextlib.redirect_stdout(sys.stderr):
        try:
            yield ray
        finally:
            ray.shutdown()


def _copy_code(context: Context, target: Path) -> None:
    """Copy what a worker imports and reads: our packages, the matrix file, locks, and the tests that layers run."""
    folders = {name: context.programs / name for name in CELL_PACKAGES} | {"locks": context.locks}
    folders |= {name: ROOT / name for name in ("diagnostics", conformance.SUITE, programs.PEER_PROGRAMS)}
    for name, source in folders.items():
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__", "*.svg"))
    shutil.copy(ROOT / "tests" / "__init__.py", target / "tests")
    shutil.copy(context.matrix.path, target / "matrix.toml")
