"""Run cells on a Ray cluster: each cell is one Ray task, placed, queued and retried by Ray.

The driver sends its code as Ray's working directory. A task keeps its cell's environment and logs in a folder of its
node, and returns its answers, which the driver adds to its own store.
"""

from __future__ import annotations

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

from diagnostics import safe_io
from diagnostics.matrix.cells import load_matrix
from diagnostics.matrix.context import CELL_PACKAGES, ROOT, Context
from diagnostics.matrix.layers import LAYERS
from diagnostics.matrix.releases import PROFILE
from diagnostics.matrix.results import Question, ResultsGrid, make_questions, select_cells
from diagnostics.matrix.runner import QuietProgress, Run, RunOptions
from diagnostics.matrix.store import Store, parse_event
from diagnostics.output.redact import mask_and_cut

FOLDER_VARIABLE = "GRPO_DOCTOR_NODE_FOLDER"
# Ray repeats a task whose node or worker died.
RETRIES = 2
CONNECT_S = 5.0
CANCEL_S = 10.0
LOG_BYTES = safe_io.MIB


class RayError(RuntimeError):
    """Raised when no cluster can be used; one line."""


def run_on_ray(address: str, run: Run, questions: Sequence[Question]) -> None:
    """Run the questions that are due as one Ray task a cell, and add the answers to the run.

    Raises:
        RayError: Ray is not installed, or no cluster answers at the address.
    """
    due = {question.cell.id: question.cell for question in questions if run.is_due(question)}
    with _cluster(address, run.context) as ray:
        task = ray.remote(run_cell)
        pending = {}
        for cell in due.values():
            layers = [question.layer.name for question in questions if question.cell.id == cell.id]
            settings = [run.context.matrix.layer(name) for name in layers]
            options = run.options
            request = {
                "cell": cell.id,
                "profile": "full" if cell.declares is None else PROFILE,
                "layers": layers,
                "options": RunOptions(options.fresh, options.only, options.keep, options.budget_gb),
                "events": [event.to_line() for event in run.context.store.read() if event.cell == cell.id],
            }
            resources = {
                "num_cpus": max(item.cpus for item in settings),
                "memory": int(max(item.memory_gb for item in settings) * 1e9) or None,
                "num_gpus": max(item.gpus for item in settings),
            }
            handle = task.options(name=cell.id, max_retries=RETRIES, **resources).remote(request)
            pending[handle] = cell.id
        run.progress.note(f"{len(pending)} cells submitted to Ray at {address}")
        try:
            while pending:
                ready, _ = ray.wait(list(pending), num_returns=1)
                for handle in ready:
                    _add_answers(run, pending.pop(handle), handle, ray)
        except BaseException:
            for handle in pending:
                ray.cancel(handle)  # a KeyboardInterrupt in the task, which ends its program
            ray.wait(list(pending), num_returns=len(pending), timeout=CANCEL_S)
            raise


def _add_answers(run: Run, cell: str, handle: Any, ray: Any) -> None:
    """Add the answers of a finished task to the run; a failed task is reported and leaves its cell open."""
    try:
        reply = ray.get(handle)
        events = [parse_event(line) for line in reply["events"]]
    except (ray.exceptions.RayError, ValueError, KeyError, TypeError) as error:
        *_, last = [repr(error), *filter(None, map(str.strip, str(error).splitlines()))]
        run.progress.note(f"{cell}: its Ray task failed: {mask_and_cut(last, 300)}")
        return
    run.context.store.merge_events(events, reply["logs"])
    for event in events:
        run.show(event)


def run_cell(request: dict[str, Any]) -> dict[str, Any]:
    """Run the due layers of one cell on this node; return the new events and the ends of their logs."""
    if not (ROOT / "matrix.toml").is_file():
        raise RayError(f"the worker imports an installed grpo-doctor ({ROOT}), not the code that was sent")
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    default = Path(home) / "grpo-doctor" / "matrix" / socket.gethostname()
    folder = Path(os.environ.get(FOLDER_VARIABLE) or default).resolve() / request["cell"]
    context = Context(load_matrix(ROOT / "matrix.toml", LAYERS), Store(folder))
    with context.store.locked():
        known = set(request["events"])
        context.store.path.write_text("".join(f"{line}\n" for line in request["events"]), encoding="utf-8")
        cells = select_cells(context.matrix, [request["cell"]], request["profile"])
        questions = make_questions(context, cells, request["layers"])
        grid = ResultsGrid(questions, context.store.read())
        Run(context, request["options"], QuietProgress(), grid).execute(questions)
        new = [event for event in context.store.read() if event.to_line() not in known]
    names = {event.answer.log for event in new if event.answer.log}
    logs = {name: safe_io.read_tail(folder / name, LOG_BYTES) for name in names if (folder / name).is_file()}
    return {"events": [event.to_line() for event in new], "logs": logs}


@contextlib.contextmanager
def _cluster(address: str, context: Context) -> Iterator[Any]:
    """Join a running cluster with our code as the working directory of its workers."""
    try:
        import ray
    except ImportError:
        raise RayError("--ray: Ray is not installed here: pip install 'grpo-doctor[matrix,ray]'") from None
    _check_address(address)
    with tempfile.TemporaryDirectory(prefix="grpo-doctor-") as name:
        sent = Path(name) / "sent"
        _copy_code(context, sent)
        terminate = signal.getsignal(signal.SIGTERM)
        try:
            ray.init(address=address, runtime_env={"working_dir": str(sent)}, log_to_driver=False)
            signal.signal(signal.SIGTERM, terminate)  # Ray's own handler ends the process at once
        except Exception as error:  # noqa: BLE001 - Ray raises a dozen kinds
            text = mask_and_cut(" ".join(str(error).split()), 400)
            raise RayError(f"--ray {address}: {type(error).__name__}: {text}") from None
    # Ray prints messages about its nodes to standard output, which belongs to the table.
    with contextlib.redirect_stdout(sys.stderr):
        try:
            yield ray
        finally:
            ray.shutdown()


def _check_address(address: str) -> None:
    """Try to connect first: Ray itself would wait for a minute.

    Raises:
        RayError: nothing listens there, or it is no address.
    """
    host, _, port = address.rpartition(":")
    if address != "auto" and (not host or not port.isdigit() or "//" in host):
        raise RayError(f"--ray {address}: expected HOST:PORT or auto, on a machine of the cluster")
    try:
        if address != "auto":
            socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()
    except (OSError, OverflowError) as error:
        hint = "`ray start --head --port=6379` starts a cluster"
        raise RayError(f"--ray {address}: no cluster answers there ({error}): {hint}") from None


def _copy_code(context: Context, target: Path) -> None:
    """Copy what a worker imports and reads: our packages, the matrix file, its locks, the conformance suite."""
    ignore = shutil.ignore_patterns("__pycache__", "*.svg")
    folders = {name: context.programs / name for name in CELL_PACKAGES}
    folders |= {name: ROOT / name for name in ("diagnostics", "tests/grpo_core/conformance")}
    folders["locks"] = context.locks
    for name, source in folders.items():
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=ignore)
    shutil.copy(ROOT / "tests" / "__init__.py", target / "tests")
    shutil.copy(context.matrix.path, target / "matrix.toml")
