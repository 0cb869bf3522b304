"""Imports modules, each in its own process: a crash in one is a result, not the end."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

PROGRAM = """
import importlib, json, os, sys, time, traceback
answer = os.fdopen(os.dup(1), "w"); os.dup2(2, 1)
start, result = time.perf_counter(), {"ok": True, "version": None, "error": None, "where": None}
try:
    module = importlib.import_module(sys.argv[1])
    version = getattr(module, "__version__", None)
    result["version"] = version if isinstance(version, str) else None
except BaseException as error:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    result.update(ok=False, error=f"{type(error).__name__}: {error}", where=f"{frame.filename}:{frame.lineno}")
result["seconds"] = round(time.perf_counter() - start, 2)
answer.write(json.dumps(result)); answer.close(); os._exit(0)
"""


def try_import(module: str, limit_s: float) -> dict[str, Any]:
    """Returns `ok`, `version`, `seconds`, `error` and `where` of importing a module in a process of its own."""
    failed = {"ok": False, "version": None, "seconds": None, "where": None}
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, module], stdout=subprocess.PIPE, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        return failed | {"error": f"not imported within {limit_s:g} s", "timeout": True}
    try:
        result: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        return failed | {"error": f"the process importing it ended with exit code {done.returncode}"}
    return result
