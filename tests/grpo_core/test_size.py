"""Small enough to read in an afternoon: what a number passes through is counted, and so is each function."""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path

import grpo_core

ROOT = Path(grpo_core.__file__).parent
# Around the trainer: what starts it, shows it, or reads what it wrote. No number of a training passes through these.
AROUND = {
    "__main__.py",
    "interrupts.py",
    "loggers.py",
    "metrics.py",
    "commands.py",
    "curves.py",
    "dumps.py",
    "recording.py",
    "probe.py",
    "replay.py",
    "settings.py",
    "terminal.py",
    "watchdog.py",
}


def code_lines(path: Path) -> int:
    """Lines with code: no blank ones, comments or docstrings."""
    source = path.read_text(encoding="utf-8")
    skipped = {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    }
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in skipped:
            lines |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        for statement in (
            getattr(node, "body", None) or [] if not isinstance(node, ast.Lambda | ast.IfExp) else []
        ):
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                lines -= set(range(statement.lineno, (statement.end_lineno or 0) + 1))
    return len(lines)


def counted() -> dict[str, int]:
    """Code lines by part: `trainer`, `engines`, `around`, `serve`, `sync`."""
    parts = {"trainer": 0, "engines": 0, "around": 0, "serve": 0, "sync": 0}
    for path in ROOT.rglob("*.py"):
        folder = path.relative_to(ROOT).parts[0]
        part = folder if folder in parts else "around" if path.name in AROUND else "trainer"
        parts[part] += code_lines(path)
    return parts


def test_what_a_number_passes_through_is_small():
    """Prompts, rewards, advantages, loss, updates, modes, weights, checkpoints: about 2,500 lines of code."""
    assert counted()["trainer"] < 2750, counted()


def test_functions_are_short():
    """Nearly all of them have fewer than 40 lines, docstrings included; none has a hundred."""
    lengths = [
        (node.end_lineno - node.lineno + 1, f"{path.name}:{node.name}")
        for path in ROOT.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    long = sorted((length, name) for length, name in lengths if length >= 40)
    assert len(long) < 0.05 * len(lengths), long
    assert max(lengths)[0] < 100, long[-3:]  # the longest is the table of rules between settings
