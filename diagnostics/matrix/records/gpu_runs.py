"""What a kit brought back from a GPU box: read as a stranger's text, whole or not at all, and kept beside the store."""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Any

from diagnostics import given
from diagnostics.collect.shapes import Each, problem
from diagnostics.matrix.records.store import StoreError

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = "grpo-doctor.gpu.v1"
FOLDER = "gpu"
LARGEST = 64 * given.MIB
OUTCOMES = ("passed", "failed", "error", "skipped")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", re.ASCII)
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)
_SHAPE = {
    "schema": str,
    "made": str,
    "kit": {"version": str, "sha256": str, "cells": [str]},
    "machine": {
        "devices": [
            {"name": str, "memory_gb": (float, None), "capability": (str, None), "mig": (bool, None)}
        ],
        "seen": [str],
        "driver": (str, None),
        "cuda": (str, None),
        "architecture": str,
    },
    "versions": Each(str),
    "command": str,
    "exit_code": int,
    "seconds": float,
    "tests": [{"name": str, "outcome": str, "seconds": float, "reason?": str, "output?": str}],
    "figures": [{"name": str, "value?": float, "low?": float, "high?": float, "unit?": str, "problem?": str}],
}


def read(path: Path) -> dict[str, Any]:
    """The document of a file.

    Raises:
        StoreError: It can't be read, or no kit writes one like that.
    """
    try:
        value: Any = given.parsed(given.read(path, LARGEST).decode("utf-8"))
    except OSError as error:
        raise StoreError(f"{path}: can't be read: {error.strerror or error}") from None
    except (ValueError, RecursionError):
        raise StoreError(f"{path}: no JSON") from None
    if wrong := problem(value, _SHAPE) or _wrong(value):
        raise StoreError(f"{path}: {wrong}")
    return dict(value)


def _wrong(value: dict[str, Any]) -> str:
    """What is wrong with a document whose fields are of the right types."""
    odd = [test["outcome"][:40] for test in value["tests"] if test["outcome"] not in OUTCOMES]
    failed = any(test["outcome"] in {"failed", "error"} for test in value["tests"])
    wrongs = {
        f"schema: expected {SCHEMA}": value["schema"] != SCHEMA,
        "made: expected a time as 2026-01-31T12:00:00Z": not _TIME.fullmatch(value["made"]),
        "kit.sha256: expected a digest": not _DIGEST.fullmatch(value["kit"]["sha256"]),
        "tests: none ran": not value["tests"],
        f"tests: outcome {odd[:1]}: expected one of {', '.join(OUTCOMES)}": odd,
        f"exit_code: {value['exit_code']} does not go with the outcomes": failed != (value["exit_code"] == 1),
    }
    return next((said for said, wrong in wrongs.items() if wrong), "")


def keep(folder: Path, document: dict[str, Any]) -> Path | None:
    """Writes it into the folder of a store; None if it is there already."""
    text = json.dumps(document, indent=1, sort_keys=True, ensure_ascii=True) + "\n"
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    path = folder / FOLDER / f"{document['made'].replace(':', '')}-{digest}.json"
    if path.exists():
        return None
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(".part")
    aside.write_text(text, encoding="utf-8")
    aside.replace(path)
    return path


def told(document: dict[str, Any]) -> str:
    """One line of it: how many tests ended how, and on what.

    >>> told({"machine": {"seen": []}, "tests": [{"outcome": "passed"}, {"outcome": "skipped"}]})
    '2 tests on no GPU: 1 passed, 1 skipped'
    """
    outcomes = [test["outcome"] for test in document["tests"]]
    counts = ", ".join(f"{outcomes.count(name)} {name}" for name in OUTCOMES if name in outcomes)
    return f"{len(outcomes)} tests on {', '.join(document['machine']['seen']) or 'no GPU'}: {counts}"
