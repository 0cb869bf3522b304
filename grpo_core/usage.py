"""The settings as `--help-settings` shows them."""

from __future__ import annotations

import ast
from pathlib import Path

from grpo_core import config
from grpo_core.settings import allowed, fields, sections


def help_text() -> str:
    """Every key with its default and the documentation that stands below it in config.py."""
    nodes = ast.parse(Path(str(config.__file__)).read_text(encoding="utf-8")).body
    documented: dict[str, dict[str, str]] = {}
    for node in nodes:
        if isinstance(node, ast.ClassDef):
            # A string that stands alone below a field documents it.
            documented[node.name] = {
                field.target.id: " ".join(str(text.value.value).split())
                for field, text in zip(node.body, node.body[1:])  # noqa: B905 - pairs of neighbours, on 3.10
                if isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(text, ast.Expr)
                and isinstance(text.value, ast.Constant)
            }
    lines = []
    kinds = sections()
    for dotted, (_, field) in fields().items():
        section, key = dotted.split(".")
        choices = allowed(field)
        shown = f" [{', '.join(map(str, choices))}]" if choices else ""
        lines.append(f"  --{dotted} {field.default!r}{shown}")
        lines.append(f"      {documented[kinds[section].__name__][key]}")
    return "\n".join(lines)
