"""Run the probe of a program in this folder: write its answer or its exception to a file, and end this process.

The file is named by GRPO_DOCTOR_ANSWER; `diagnostics.doctor.probe.child_processes` reads it. `run` does all of this,
`write_answer` only writes.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

_SET_PDEATHSIG = 1
_MAX_TEXT = 64_000


def run(probe: Callable[[dict[str, Any]], None]) -> None:
    """Run a probe, which fills in its answer, write the answer, and end this process.

    An exception is written as an answer, too. Output goes to standard error, a crash shows its stacks, and the process
    is killed when its parent ends.
    """
    os.dup2(2, 1)
    faulthandler.enable()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_SET_PDEATHSIG, signal.SIGKILL)
    answer: dict[str, Any] = {"ok": False}
    try:
        probe(answer)
        answer["ok"] = True
    except BaseException as error:  # noqa: BLE001 - SystemExit at import is an answer too
        answer |= _failure(error)
    write_answer(answer)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # at once: exit handlers of half-imported packages can hang


def write_answer(document: dict[str, Any]) -> None:
    """Write the answer to the file that GRPO_DOCTOR_ANSWER names; a later answer replaces it."""
    path = Path(os.environ["GRPO_DOCTOR_ANSWER"])
    unfinished = path.with_suffix(".part")
    unfinished.write_text(json.dumps(document), encoding="utf-8")
    unfinished.replace(path)


def _failure(error: BaseException) -> dict[str, Any]:
    """Return an exception as an answer; its traceback goes to standard error."""
    traceback.print_exception(type(error), error, error.__traceback__)
    root = _root(error)
    where = [
        f"{frame.filename}:{frame.lineno}"
        for frame in traceback.extract_tb(root.__traceback__)
        if not frame.filename.startswith("<")
        and "importlib" not in frame.filename
        and Path(frame.filename).parent != Path(__file__).parent
    ]
    text = f"{type(error).__name__}: {_first_line(error)}"
    if root is not error:
        text += f", caused by {type(root).__name__}: {_first_line(root)}"
    alone = "".join(traceback.format_exception(type(root), root, root.__traceback__, chain=False))
    # Half a text may begin with half a secret.
    alone = alone if len(alone) <= _MAX_TEXT else ""
    lacks = (root.name if isinstance(root, ModuleNotFoundError) else None) or ""
    return {"error": text, "where": where[-1] if where else "", "lacks": lacks, "root": alone}


def _first_line(error: BaseException) -> str:
    line = (str(error).strip() or "no message").splitlines()[0]
    return line if len(line) <= _MAX_TEXT else "a long message"


def _root(error: BaseException) -> BaseException:
    """Return the exception that all others were raised from."""
    chain = [error]
    while chain[-1].__cause__ is not None and chain[-1].__cause__ not in chain:
        chain.append(chain[-1].__cause__)
    return chain[-1]
