"""Try to import a module in a separate process, so that a crash or a hang becomes a result, and describe the result.

`try_import` imports, `describe_import` describes.
"""

import importlib
import time
import traceback
from typing import Any

from repro import processes

SCHEMA = "grpo-doctor.imports.v1"


def try_import(module: str, limit_s: float) -> dict[str, Any]:
    """Import a module in a separate process.

    Returns:
        A dictionary with the keys `ok`, `version`, `seconds`, `error`, `where` (file:line) and `timed_out`.
    """
    result = {"ok": False, "version": None, "seconds": None, "where": None, "timed_out": False}
    try:
        return result | processes.run_isolated(lambda: _import(module), limit_s)
    except TimeoutError:
        return result | {"error": f"not imported within {limit_s:g} s", "timed_out": True}
    except ChildProcessError as error:
        return result | {"error": str(error)}


def describe_import(module: str, result: dict[str, Any]) -> str:
    """Return the result of a module as a line for a terminal."""
    if result["ok"]:
        return f"{module}: {result['version'] or 'no version'}, imported in {result['seconds']} s"
    place = f" ({result['where']})" if result["where"] else ""
    return f"{module}: FAILED: {result['error']}{place}"


def _import(module: str) -> dict[str, Any]:
    """Import a module in this process; return the version, or the error with its location."""
    started, version, error, where = time.perf_counter(), None, None, None
    try:
        version = getattr(importlib.import_module(module), "__version__", None)
    except BaseException as failure:  # noqa: BLE001 - some modules exit
        error = f"{type(failure).__name__}: {failure}"
        for frame in traceback.extract_tb(failure.__traceback__):
            if not frame.filename.startswith("<") and frame.filename not in {__file__, importlib.__file__}:
                where = f"{frame.filename}:{frame.lineno}"
    seconds = round(time.perf_counter() - started, 2)
    version = version if isinstance(version, str) else None
    return {"ok": error is None, "version": version, "error": error, "where": where, "seconds": seconds}
