"""Try to import modules, each in a separate process, so that a crash is a result."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from repro import processes

SCHEMA = "grpo-doctor.imports.v1"
# Standard output is for the result; prints of the module go to standard error. Exit handlers do not run: some hang.
PROGRAM = """
import importlib, json, os, sys, time, traceback
answer = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
started, result = time.perf_counter(), {"ok": True, "version": None, "error": None, "where": None}
try:
    version = getattr(importlib.import_module(sys.argv[1]), "__version__", None)
    result["version"] = version if isinstance(version, str) else None
except BaseException as error:
    result.update(ok=False, error=f"{type(error).__name__}: {error}")
    for frame in traceback.extract_tb(error.__traceback__):
        if not frame.filename.startswith("<") and frame.filename != importlib.__file__:
            result["where"] = f"{frame.filename}:{frame.lineno}"
result["seconds"] = round(time.perf_counter() - started, 2)
answer.write(json.dumps(result))
answer.close()
os._exit(0)
"""


def try_import(module: str, limit_s: float) -> dict[str, Any]:
    """Import a module in a process of its own.

    Returns:
        `ok`, `version`, `seconds`, `error`, `where` (file:line), `timed_out`.
    """
    failed = {"ok": False, "version": None, "seconds": None, "where": None, "timed_out": False}
    command = [sys.executable, "-c", PROGRAM, module]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        return failed | {"error": f"not imported within {limit_s:g} s", "timed_out": True}
    try:
        result: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        return failed | {
            "error": f"the process importing it ended with {processes.how_it_ended(done.returncode)}"
        }
    return failed | result


def describe_import(module: str, result: dict[str, Any]) -> str:
    """Return the line of one module, for a terminal."""
    if result["ok"]:
        return f"{module}: {result['version'] or 'no version'}, imported in {result['seconds']} s"
    place = f" ({result['where']})" if result["where"] else ""
    return f"{module}: FAILED: {result['error']}{place}"
