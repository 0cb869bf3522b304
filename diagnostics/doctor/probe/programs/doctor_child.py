"""What every program begins and ends with: the answer goes to a file, whatever is printed goes to standard error."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

_SET_PDEATHSIG = 1
_MOST_TOLD = 64_000


def begin() -> None:
    """Sends prints to standard error, shows stacks on a crash, and ends with the process that started this one."""
    os.dup2(2, 1)
    faulthandler.enable()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_SET_PDEATHSIG, signal.SIGKILL)


def answer(document: dict[str, Any]) -> None:
    """Writes the answer so far; a later one takes its place."""
    path = Path(os.environ["GRPO_DOCTOR_ANSWER"])
    aside = path.with_suffix(".part")
    aside.write_text(json.dumps(document), encoding="utf-8")
    aside.replace(path)


def failure(error: BaseException) -> dict[str, Any]:
    """An exception as an answer; its traceback goes to standard error, as in any log."""
    traceback.print_exception(type(error), error, error.__traceback__)
    root = _root(error)
    where = [
        f"{frame.filename}:{frame.lineno}"
        for frame in traceback.extract_tb(root.__traceback__)
        if not frame.filename.startswith("<")
        and "importlib" not in frame.filename
        and Path(frame.filename).parent != Path(__file__).parent
    ]
    text = (str(error).strip() or "no message").splitlines()[0][:_MOST_TOLD]
    lacks = root.name if isinstance(root, ModuleNotFoundError) else None
    alone = "".join(traceback.format_exception(type(root), root, root.__traceback__, chain=False))
    if root is not error:
        text += f", caused by {type(root).__name__}: {(str(root).strip() or 'no message').splitlines()[0][:_MOST_TOLD]}"
    told = {
        "error": f"{type(error).__name__}: {text}",
        "where": where[-1] if where else "",
        "lacks": lacks or "",
        "root": alone[-_MOST_TOLD:],
    }
    return {"ok": False, **told}


def _root(error: BaseException) -> BaseException:
    """The exception that all others were raised from; one that came up while another was handled is its own."""
    seen = [error]
    while seen[-1].__cause__ is not None and seen[-1].__cause__ not in seen:
        seen.append(seen[-1].__cause__)
    return seen[-1]


def end() -> None:
    """Ends at once: exit handlers of half-imported packages are known to hang."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
