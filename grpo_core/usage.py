"""The settings as `--help-settings` shows them."""

from __future__ import annotations

import ast
from pathlib import Path

from grpo_core import config, wide
from grpo_core.settings import allowed, fields, sections


def help_text() -> str:
    """Every key with its default and the documentation that stands below it in config.py."""
    files = [Path(str(module.__file__)) for module in (config, wide)]
    nodes = [node for file in files for node in ast.parse(file.read_text(encoding="utf-8")).body]
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
    beside, within = sections(wide.WideConfig), sections()
    for dotted, (_, field) in fields(wide.WideConfig).items():
        section, key = dotted.split(".")
        choices = allowed(field)
        shown = f" [{', '.join(map(str, choices))}]" if choices else ""
        lines.append(f"  --{dotted} {field.default!r}{shown}")
        names = [kinds[section].__name__ for kinds in (within, beside)]
        texts = dict.fromkeys(documented[name][key] for name in names if key in documented[name])
        lines.append(f"      {' '.join(texts)}")
    return "\n".join(lines)
