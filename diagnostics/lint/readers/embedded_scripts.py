"""Convert Dockerfiles, Makefiles and notebooks to shell or Python text, so that the other readers can read them.

Every line keeps its number, so that a finding shows the line of the original file.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

from diagnostics import safe_io
from diagnostics.lint.readers.structured import parse_json
from diagnostics.lint.values import Value

_INSTRUCTION = re.compile(r"[ \t]*(ENV|ARG|RUN|CMD|ENTRYPOINT)[ \t]+(.*)$", re.IGNORECASE | re.DOTALL)
_OTHER_INSTRUCTION = re.compile(
    r"[ \t]*(?:FROM|COPY|ADD|WORKDIR|LABEL|USER|EXPOSE|VOLUME|SHELL|HEALTHCHECK|ONBUILD|STOPSIGNAL)\b"
)
_MAKE_ASSIGNMENT = re.compile(r"(?:export\s+|override\s+)*([A-Za-z_]\w*)\s*(\?|::?|\+)?=\s*(.*)$")
_MAKE_VARIABLE = re.compile(r"\$\(([A-Za-z_]\w*)\)|\$\$|\$\(")
_RECIPE_PREFIX = re.compile(r"^[ \t]*(?:[@+]|-(?!-))*[ \t]*")


def dockerfile_to_shell(text: str) -> str:
    """Convert a Dockerfile's instructions to a shell script."""
    lines: list[str] = []
    continues = False
    for line in text.splitlines():
        if continues and (not line.strip() or line.lstrip().startswith("#")):
            # Docker drops comments and empty lines inside an instruction.
            lines.append("\\")
            continue
        match = None if continues else _INSTRUCTION.match(line)
        if match is None:
            ignored = not continues and (_OTHER_INSTRUCTION.match(line) or line.startswith("#"))
            lines.append("" if ignored else line)
        else:
            instruction, rest = match[1].upper(), match[2]
            words = _exec_form(rest)
            if instruction in {"ENV", "ARG"}:
                lines.append(_docker_variable(instruction, rest))
            else:
                lines.append(shlex.join(words) if words else rest)
        continues = line.rstrip().endswith("\\")
    return "\n".join(lines) + "\n"


def _docker_variable(instruction: str, rest: str) -> str:
    name, blank, value = rest.partition(" ")
    rest = f"{name}={value}" if blank and "=" not in name else rest
    return f"export {rest}" if instruction == "ENV" else rest if "=" in rest else ""


def _exec_form(rest: str) -> list[str]:
    if not rest.lstrip().startswith("["):
        return []
    try:
        words = safe_io.parse_json(rest)
    except ValueError:
        return []
    return [str(word) for word in words] if isinstance(words, list) else []


def makefile_to_shell(text: str) -> str:
    """Convert a Makefile to shell: all its recipes in order, with its variables."""
    lines: list[str] = []
    continues = recipe = False
    for line in text.splitlines():
        recipe = recipe if continues else line.startswith("\t")
        body = line
        if recipe:
            body = line.strip(" \t") if continues else _RECIPE_PREFIX.sub("", line)
        lines.append(_make_line(body, recipe=recipe) if recipe or not continues else "")
        continues = line.endswith("\\")
    return "\n".join(lines) + "\n"


def _make_line(line: str, *, recipe: bool) -> str:
    if recipe:
        return _MAKE_VARIABLE.sub(_make_variable, line)
    match = _MAKE_ASSIGNMENT.match(line.strip())
    if match is None:
        return ""
    name, operator = match[1], match[2] or ""
    value = _MAKE_VARIABLE.sub(_make_variable, match[3].partition(" #")[0].strip())
    quoted = value if "$(" in value else value.replace('"', '\\"')
    if operator == "?":
        return f'{name}="${{{name}:-{quoted}}}"'
    appends = operator == "+"
    return f'{name}{"+" if appends else ""}="{" " if appends else ""}{quoted}"'


def _make_variable(match: re.Match[str]) -> str:
    if match[1]:
        return f"${{{match[1]}}}"
    # A function of make: its output is as unknown as a command's.
    return "$" if match[0] == "$$" else "$("


def notebook_cells(text: str, file: str) -> tuple[str, str]:
    """Return the Python and the shell code of a notebook's cells.

    Raises:
        UnreadableError: It is no JSON.
    """
    tree = parse_json(text, file)
    python: list[str] = []
    shell: list[str] = []
    cells = tree.get("cells") if isinstance(tree, dict) else None
    for cell in cells if isinstance(cells, list) else ():
        kind = cell.get("cell_type") if isinstance(cell, dict) else None
        if isinstance(kind, Value) and kind.data == "code":
            _add_cell(cell.get("source"), python, shell)
    return "\n".join(python) + "\n", "\n".join(shell) + "\n"


def _add_cell(source: Any, python: list[str], shell: list[str]) -> None:
    lines = [
        (part.place.line + offset, line)
        for part in (source if isinstance(source, list) else [source])
        if isinstance(part, Value) and isinstance(part.data, str)
        for offset, line in enumerate(part.data.splitlines())
    ]
    shell_cell = bool(lines) and lines[0][1].startswith(("%%bash", "%%sh", "%%script"))
    continues = False
    for number, line in lines:
        marked = line.lstrip().startswith(("!", "%"))
        if marked and line[:1].isspace() and not (shell_cell or continues):
            # The command may be all that a block has, so `pass` takes its place.
            python.extend("" for _ in range(number - len(python) - 1))
            python.append(line[: len(line) - len(line.lstrip())] + "pass")
        target = shell if shell_cell or marked or continues else python
        target.extend("" for _ in range(number - len(target) - 1))
        target.append("" if line.startswith("%") else line.lstrip().removeprefix("!") if marked else line)
        continues = (continues or marked) and line.rstrip().endswith("\\")


def text_values(tree: Any) -> Iterator[Value]:
    """Yield the strings of a structured file, which may be commands."""
    if isinstance(tree, Value):
        if isinstance(tree.data, str):
            yield tree
        return
    for child in tree.values() if isinstance(tree, dict) else tree:
        yield from text_values(child)
