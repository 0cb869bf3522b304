"""Read what a repro shares with its catalog entry: title, description of each trigger, what each mitigation helps with.

Cells may run Python 3.10, which has no `tomllib`; the three keys are read by patterns. A test compares with `tomllib`.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "diagnostics" / "catalog" / "issues"
_TABLE = re.compile(r"^\[(triggers|mitigations)\.(\w+)\]\n(.*?)(?=^\[|\Z)", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class CatalogEntry:
    """Title of a known issue, what each trigger does, and the triggers that each mitigation helps with."""

    title: str
    triggers: dict[str, str]
    helps: dict[str, frozenset[str]]


def read_entry(code: str) -> CatalogEntry:
    """Read the entry of a known issue."""
    text = (FOLDER / f"{code}.toml").read_text(encoding="utf-8")
    triggers, helps = {}, {}
    for kind, name, table in _TABLE.findall(text):
        if kind == "triggers":
            triggers[name] = str(_value(table, "about", r"[\"'].*?$"))
        else:
            helps[name] = frozenset(_value(table, "helps", r"\[.*?\]") or ())
    return CatalogEntry(str(_value(text, "title", r"[\"'].*?$")), triggers, helps)


def _value(table: str, key: str, pattern: str) -> Any:
    found = re.search(rf"^{key} = ({pattern})", table, re.MULTILINE | re.DOTALL)
    return ast.literal_eval(found[1]) if found else None
