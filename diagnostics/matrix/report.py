"""Render the results grid as a table for the terminal, and as Markdown, JSON and HTML files.

`write_reports` writes the three files, from which `redacted_result` removes secrets and local names. VERDICTS has the
symbol, word and style of each verdict.
"""

import datetime
import io
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from rich import box
from rich.table import Table
from rich.text import Text

from diagnostics.matrix.layers import BY_NAME
from diagnostics.matrix.results import CellResults, LayerResult, ResultsGrid
from diagnostics.matrix.verdicts import EvidenceLevel, Judgement, Verdict
from diagnostics.output import sanitize
from diagnostics.output.html import render_page
from diagnostics.output.json_output import dump
from diagnostics.output.markdown import render_template
from diagnostics.output.redact import mask, redact
from diagnostics.safe_io import write_atomically

SCHEMA = "grpo-doctor.matrix-report.v1"
LEGEND = "● run  ○ read in source  ◌ nothing run"
_WIDTH, _CELL_WIDTH, _COLUMN_WIDTH = 200, 20, 16
# Symbols besides colours, because colours alone are not readable for everyone.
EVIDENCE_SYMBOLS: Mapping[EvidenceLevel, str] = {
    EvidenceLevel.EXECUTED: "●",
    EvidenceLevel.STATIC: "○",
    EvidenceLevel.DECLARED: "◌",
}
# Verdict -> (symbol, word, style).
VERDICTS: Mapping[Verdict, tuple[str, str, str]] = {
    Verdict.PASS: ("✔", "pass", "green"),
    Verdict.FAIL: ("✘", "FAIL", "bold red"),
    Verdict.EXPECTED_FAIL: ("✘", "expected fail", "magenta"),
    Verdict.UNEXPECTED_PASS: ("!", "UNEXPECTED PASS", "bold red"),
    Verdict.UNRESOLVABLE: ("∅", "unresolvable", "blue"),
    Verdict.NOT_RUN: ("-", "not run", "dim"),
    Verdict.NOT_CHECKED: ("?", "not checked", "yellow"),
    Verdict.TIMEOUT: ("◷", "timeout", "yellow"),
    Verdict.INFRA_ERROR: ("⚠", "infra error", "yellow"),
    Verdict.FLAKY: ("~", "FLAKY", "bold red"),
}


def write_reports(folder: Path, grid: ResultsGrid) -> Path:
    """Write all reports into a folder and return the HTML page's path; secrets and local names are redacted."""
    rows = [
        replace(row, layers={name: redacted_result(result) for name, result in row.layers.items()})
        for row in grid.cell_rows
    ]
    timestamp = datetime.datetime.now(datetime.UTC).isoformat(timespec="minutes").replace("+00:00", "Z")
    folder.mkdir(parents=True, exist_ok=True)
    texts = {
        "index.html": html_page(grid, rows, timestamp),
        "report.md": markdown_report(grid, rows, timestamp),
        "report.json": json_report(grid, rows, timestamp),
    }
    for name, text in texts.items():
        write_atomically(folder / name, sanitize.escape(text))
    return folder / "index.html"


def redacted_result(result: LayerResult) -> LayerResult:
    """Return a result without secrets and local names, because reports contain upstream output and are shared."""
    judgement = msgspec.structs.replace(result.judgement, remark=redact(result.judgement.remark))
    event = result.event
    if event is not None:
        event = msgspec.structs.replace(event, answer=event.answer.change_texts(redact))
    return replace(result, judgement=judgement, event=event)


def verdict_text(judgement: Judgement) -> str:
    """Return a verdict as text, with UNEXPECTED before an unexpected `unresolvable` or `not run`."""
    text = VERDICTS[judgement.verdict][1]
    may_be_expected = judgement.verdict in {Verdict.UNRESOLVABLE, Verdict.NOT_RUN}
    return f"UNEXPECTED: {text}" if may_be_expected and judgement.unexpected else text


def symbols(result: LayerResult) -> str:
    """Return the two symbols of a result: one for the evidence, one for the verdict."""
    return f"{EVIDENCE_SYMBOLS[result.evidence]} {VERDICTS[result.judgement.verdict][0]}"


def totals(grid: ResultsGrid) -> str:
    """Return the totals in one line; a layer that was not run does not count as passed."""
    counts, number = grid.counts(), len(grid.results)
    passed = counts.pop(Verdict.PASS, 0)
    other_counts = ", ".join(f"{counts[item]} {VERDICTS[item][1]}" for item in Verdict if counts[item])
    unexpected = sum(result.judgement.unexpected for result in grid.results)
    head = f"{passed} of {number} results passed ({100 * passed / max(1, number):.0f} %)"
    return "; ".join(filter(None, (head, other_counts, f"{unexpected} not as expected")))


def terminal_table(grid: ResultsGrid, *, colour: bool, width: int | None = None) -> str:
    """Return the table, split if it is too wide, then the remarks, the legend and the totals."""
    stream = io.StringIO()
    width = width or (shutil.get_terminal_size((_WIDTH, 40)).columns if colour else _WIDTH)
    console = sanitize.console(stream, width=width, force_terminal=colour)
    per_table = max(1, (width - _CELL_WIDTH) // _COLUMN_WIDTH)
    for start in range(0, len(grid.layers), per_table):
        console.print(_rich_table(grid, grid.layers[start : start + per_table]))
    for line, style in remarks(grid.results):
        console.print(Text(line, style=style), soft_wrap=not colour)
    console.print(f"{LEGEND}\n{totals(grid)}")
    return stream.getvalue()


def _rich_table(grid: ResultsGrid, layers: Sequence[str]) -> Table:
    """Return a table with a row for each cell that has one of these layers."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    table.add_column("cell", no_wrap=True)
    for layer in layers:
        table.add_column(layer.replace(":", "\n"), vertical="top")
    for row in grid.cell_rows:
        results = [row.layers.get(layer) for layer in layers]
        if any(results):
            table.add_row(row.cell.id.replace("+", "\n+ "), *(_rich_result(result) for result in results))
    return table


def _rich_result(result: LayerResult | None) -> Text:
    if result is None:
        return Text("")
    codes = "\n" + " ".join(result.codes) if result.codes else ""
    style = VERDICTS[result.judgement.verdict][2]
    return Text(sanitize.escape(f"{symbols(result)} {verdict_text(result.judgement)}{codes}"), style=style)


def remarks(results: Any) -> list[tuple[str, str]]:
    """Return (line, style) for each answer whose verdict is not `pass`: observation and remark, masked and escaped."""
    lines = []
    for result in results:
        judgement = result.judgement
        if result.event is None or judgement.verdict is Verdict.PASS:
            continue
        label = "expected: " if judgement.expected else ""
        reason = f" ({label}{judgement.remark})" if judgement.remark else ""
        head = f"{result.question.cell.id} {result.question.layer.name}: {verdict_text(judgement)}"
        style = "" if judgement.expected else VERDICTS[judgement.verdict][2]
        lines.append((sanitize.escape_line(mask(f"{head}: {result.summary}{reason}")), style))
    return lines


def markdown_report(grid: ResultsGrid, rows: Sequence[CellResults], timestamp: str) -> str:
    """Return the table and the remarks as a Markdown document; the template escapes all values."""

    def result_text(result: LayerResult) -> str:
        return f"{symbols(result)} {' '.join([verdict_text(result.judgement), *result.codes])}"

    return render_template(
        "matrix.md.j2",
        timestamp=timestamp,
        totals=totals(grid),
        legend=LEGEND,
        layers=grid.layers,
        rows=rows,
        result_text=result_text,
        remarks=[line for line, _ in remarks(result for row in rows for result in row.layers.values())],
    )


def json_report(grid: ResultsGrid, rows: Sequence[CellResults], timestamp: str) -> str:
    """Return the grid with answers and inputs as one JSON document; log excerpts are only on the page."""
    document = {
        "schema": SCHEMA,
        "generated": timestamp,
        "counts": {verdict.value: count for verdict, count in sorted(grid.counts().items())},
        "questions": len(grid.results),
        "cells": [
            {
                "id": row.cell.id, **row.cell.versions, "python": row.cell.python,
                "exclude_newer": row.cell.exclude_newer.isoformat(), "note": row.cell.note,
                "layers": {name: _json_result(result) for name, result in row.layers.items()},
            }
            for row in rows
        ],
    }  # fmt: skip
    return dump(document) + "\n"


def _json_result(result: LayerResult) -> dict[str, Any]:
    """Return a result as data for the JSON report."""
    values: dict[str, Any] = {
        "verdict": result.judgement.verdict.value, "expected": result.judgement.expected,
        "remark": result.judgement.remark, "evidence": result.evidence.value, "codes": list(result.codes),
        "summary": result.summary, "command": result.question.command, "identity": result.question.identity,
        "inputs": dict(result.question.inputs),
    }  # fmt: skip
    if result.event is not None:
        answer = result.event.answer
        values |= {
            "outcome": answer.outcome.value,
            "signs": list(answer.signs),
            "details": list(answer.details),
            "ran_with": dict(answer.ran_with),
            "log": answer.log,
            "started": result.event.started,
            "seconds": result.event.seconds,
        }
    return values


def html_page(grid: ResultsGrid, rows: Sequence[CellResults], timestamp: str) -> str:
    """Return the grid as one HTML page without external files; the template escapes all values."""
    return render_page(
        "matrix.html.j2",
        title="grpo-doctor: compatibility matrix",
        timestamp=timestamp,
        totals=totals(grid),
        layers=[BY_NAME[name] for name in grid.layers],
        rows=rows,
        verdicts=VERDICTS,
        evidence=EVIDENCE_SYMBOLS,
        symbols=symbols,
        verdict_text=verdict_text,
    )
