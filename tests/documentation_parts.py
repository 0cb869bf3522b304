"""Make generated parts of the documentation, which tests.documents inserts.

They are tables of the published matrix results, a table of refuted advice (listed in REFUTED), and the source of the
colocate loop.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from diagnostics import catalog, compat_table
from diagnostics.output.release_pairs import QUESTIONS, SELECTED_PAIRS, published_pairs

ROOT = Path(__file__).resolve().parent.parent
PUBLISHED = ROOT / "diagnostics" / "data" / "compat.json"
# Common advice that did not help in a run: the code, and the name of the mitigation in its entry.
REFUTED = (
    ("SCH002", "chunked_prefill_off"), ("SCH001", "async_output_off"), ("SCH001", "lock_around_step"),
    ("RAY001", "address_in_driver"), ("NUM002", "raw_logprobs"), ("REW001", "upgrade"), ("TOK001", "top_p"),
)  # fmt: skip
MARKS = {"executed": "●", "static": "○", "declared": "◌"}
WORDS = {"pass": "✔ pass", "fail": "✘ fail", "expected_fail": "✘ expected fail", "unresolvable": "∅ unresolvable",
         "not_run": "- not run"}  # fmt: skip


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return rows as a Markdown table."""
    lines = [_table_row(head), "|---" * len(head) + "|", *map(_table_row, rows)]
    return "\n".join(lines) + "\n"


def _table_row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def published_cells(key: str = "cells") -> dict[str, Mapping[str, Any]]:
    """Return the published cells by name; the key `trainer_cells` has the cells of trainers other than TRL."""
    return {cell["id"]: cell for cell in json.loads(PUBLISHED.read_text(encoding="utf-8"))[key]}


def pair_table() -> str:
    """Return the README's table of the pairs in SELECTED_PAIRS, with their results as `versions` shows them."""
    cells = {pair.id: pair for pair in published_pairs(compat_table.load().cells)}
    rows = [
        (pair.vllm, pair.trl, *pair.answers, ", ".join(pair.crashes))
        for pair in (cells[name] for name in SELECTED_PAIRS)
    ]
    return markdown_table(
        ("vLLM", "TRL", *(question.text for question in QUESTIONS), "known crashes seen"), rows
    )


def cell_tables() -> str:
    """Return three tables of the published cells with TRL: the pair, training and serving, and known issues."""
    cells = published_cells().values()
    first = (
        "resolve", "contract", "install", "import", "scheduler", "engine", "logprobs", "peer:alone", "peer:vllm",
    )  # fmt: skip
    second = ("train:colocate", "train:async", "train:server", "conformance", "serve:vllm", "serve:trl")
    third = sorted({name for cell in cells for name in cell["layers"] if name.startswith("repro:")})
    return (
        f"{_layers(cells, first)}\nFive cells also train with the reference trainer; three of these also serve:\n\n"
        f"{_layers(cells, second)}\nAnd known issues other than the scheduler's, where a release may have them "
        f"(*pass*: it does not happen):\n\n{_layers(cells, third)}"
    )


def trainer_table() -> str:
    """Return the table of the published cells of other trainers than TRL."""
    layers = ("resolve", "contract", "install", "import", "config", "rollout", "loss")
    return _layers(published_cells("trainer_cells").values(), layers)


def _layers(cells: Iterable[Mapping[str, Any]], names: Sequence[str]) -> str:
    rows = [
        (f"`{cell['id']}`", *(_verdict(cell["layers"].get(name)) for name in names))
        for cell in cells
        if any(name in cell["layers"] for name in names)
    ]
    return markdown_table(("cell", *names), rows)


def _verdict(layer: Mapping[str, Any] | None) -> str:
    if layer is None:
        return ""
    verdict = WORDS.get(layer["verdict"], layer["verdict"])
    return " ".join([MARKS[layer["evidence"]], verdict, *layer["codes"]])


def refuted_advice() -> str:
    """Return the table of common advice that did not help: issue, advice, observation."""
    issues, rows = catalog.load(), []
    for code, name in REFUTED:
        issue = issues[code]
        (mitigation,) = [mitigation for mitigation in issue.mitigations if mitigation.name == name]
        observation = mitigation.note or f"does not help against {', '.join(mitigation.fails)}"
        rows.append((f"{code} {issue.title}", mitigation.about, observation))
    return markdown_table(("issue", "advice", "result of the run"), rows)


def colocate_loop_source() -> str:
    """Return the source of the colocate loop as a code block."""
    text = (ROOT / "grpo_core" / "modes.py").read_text(encoding="utf-8")
    start = text.index("def train_colocate(")
    return f"```python\n{text[start : text.index('def train_async(')].rstrip()}\n```\n"


PARTS = {
    "pairs": pair_table, "cells": cell_tables, "trainers": trainer_table, "refuted": refuted_advice,
    "loop": colocate_loop_source,
}  # fmt: skip
