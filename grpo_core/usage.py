"""What `--help` says."""

from __future__ import annotations

import ast
from pathlib import Path

from grpo_core import config, wide
from grpo_core.settings import allowed, fields, sections

USAGE = """usage: python -m grpo_core train [CONFIG.toml] [--section.key VALUE ...] [--resume] [--json]
       python -m grpo_core serve [CONFIG.toml] --model.path FOLDER [--section.key VALUE ...] [--allow-unauthenticated]
       python -m grpo_core probe [CONFIG.toml] [--section.key VALUE ...] [--json]
       python -m grpo_core replay RUN STEP [--policy PATH] [--section.key VALUE ...] [--json]
       python -m grpo_core check DUMP [--section.key VALUE ...] [--json]

train  trains; without CONFIG the shipped tiny task, half a minute on a laptop
serve  serves a model's engine over HTTP, for train --rollout.mode server
probe  compares an engine's log-probs with the trainer's, before and after a weight update
replay computes a recorded step of RUN again (output.record_every), to the last bit, or with other settings
check  computes the advantages of a dump again, TRL's Parquet or verl's JSON lines, from its rewards

Settings and their defaults:
"""


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
