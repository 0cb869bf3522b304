"""Extract scripts embedded in Dockerfiles, Makefiles, justfiles, notebooks, container specs and YAML values.

Each is turned into shell or Python text in which every line keeps its number.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from itertools import islice
from typing import Any

from diagnostics import safe_io
from diagnostics.lint.readers.shell import Command
from diagnostics.lint.readers.shell_scope import Word
from diagnostics.lint.readers.structured import parse_json
from diagnostics.lint.values import Value

_INSTRUCTION = re.compile(r"[ \t]*(ENV|ARG|RUN|CMD|ENTRYPOINT)[ \t]+(.*)$", re.IGNORECASE | re.DOTALL)
_OTHER_INSTRUCTION = re.compile(
    r"[ \t]*(?:FROM|COPY|ADD|WORKDIR|LABEL|USER|EXPOSE|VOLUME|SHELL|HEALTHCHECK|ONBUILD|STOPSIGNAL)\b"
)
_MAX_CONTAINERS = 200
_MAKE_ASSIGNMENT = re.compile(r"(?:export\s+|override\s+)*([A-Za-z_]\w*)\s*(\?|::?|\+)?=\s*(.*)$")
_MAKE_VARIABLE = re.compile(r"\$\(([A-Za-z_]\w*)\)|\$\$|\$\(")
_JUST_ASSIGNMENT = re.compile(r"(?:export\s+)?([A-Za-z_][\w-]*)\s*:=\s*(.*)$")
_JUST_VARIABLE = re.compile(r"\{\{\s*([A-Za-z_][\w-]*)\s*\}\}|\{\{.*?\}\}")
_JUST_PARAMETER = re.compile(r"([A-Za-z_][\w-]*)\s*=\s*(\"[^\"]*\"|'[^']*'|\S+?)(?=[\s:]|$)")
_RECIPE_PREFIX = re.compile(r"^[ \t]*(?:[@+]|-(?!-))*[ \t]*")
# Stands for a value that only make or just can compute.
_UNKNOWN_OUTPUT = "$(:)"


def dockerfile_to_shell(text: str) -> str:
    """Convert a Dockerfile's instructions to a shell script."""
    lines: list[str] = []
    entrypoint = -1
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
            elif instruction == "CMD" and words and words[0].startswith("-") and entrypoint >= 0:
                lines[entrypoint] += " " + shlex.join(words)
                lines.append("")
            else:
                entrypoint = len(lines) if instruction == "ENTRYPOINT" and words else entrypoint
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


def makefile_to_shell(text: str, *, just: bool = False) -> str:
    """Convert a Makefile or justfile to shell: all its recipes in order, with its variables."""
    convert = _just_line if just else _make_line
    lines: list[str] = []
    continues = recipe = False
    for line in text.splitlines():
        if not continues:
            recipe = line.startswith("\t") or (just and line[:1] == " ")
        body = line
        if recipe:
            body = line.strip(" \t") if continues else _RECIPE_PREFIX.sub("", line)
        lines.append(convert(body, recipe=recipe) if recipe or not continues else "")
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


def _just_line(line: str, *, recipe: bool) -> str:
    if recipe:
        return _JUST_VARIABLE.sub(
            lambda match: f"${{{_shell_name(match[1])}}}" if match[1] else _UNKNOWN_OUTPUT, line
        )
    match = _JUST_ASSIGNMENT.match(line.strip())
    if match is not None:
        value = match[2].strip()
        literal = value[:1] in {'"', "'"} and value.find(value[0], 1) == len(value) - 1
        return f"{_shell_name(match[1])}={value if literal else _UNKNOWN_OUTPUT}"
    header = line.partition(":")[0] if ":" in line and not line.startswith("#") else ""
    parameters = [(_shell_name(name), value) for name, value in _JUST_PARAMETER.findall(header)]
    return "; ".join(f"{name}=${{{name}_given:-{value}}}" for name, value in parameters)


def _shell_name(name: str) -> str:
    return name.replace("-", "_")


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


def container_commands(tree: Any) -> Iterator[Command]:
    """Yield the commands of containers in a Kubernetes or Docker compose file."""
    for table in islice(_container_tables(tree), _MAX_CONTAINERS):
        parts = [table.get(name) for name in ("entrypoint", "command", "args")]
        words = [word for part in parts if isinstance(part, list) for word in part if isinstance(word, Value)]
        if not words or not all(isinstance(part, list | None) for part in parts):
            continue
        env: dict[str, Value] = {}
        variables = table.get("env")
        for variable in variables if isinstance(variables, list) else ():
            name = variable.get("name") if isinstance(variable, dict) else None
            value = variable.get("value") if isinstance(variable, dict) else None
            if isinstance(name, Value) and isinstance(value, Value):
                env[str(name.data)] = value.with_key(str(name.data))
        yield Command(
            [Word(str(word.data), word.place.line + ("\n" in str(word.data))) for word in words],
            env,
            words[0].place.line,
        )


def _container_tables(tree: Any) -> Iterator[dict[str, Any]]:
    if isinstance(tree, dict):
        if {"command", "args", "entrypoint"} & set(tree):
            yield tree
        for child in tree.values():
            yield from _container_tables(child)
    elif isinstance(tree, list):
        for child in tree:
            yield from _container_tables(child)


def text_values(tree: Any) -> Iterator[Value]:
    """Yield the strings of a structured file, which may be commands."""
    if isinstance(tree, Value):
        if isinstance(tree.data, str):
            yield tree
        return
    for child in tree.values() if isinstance(tree, dict) else tree:
        yield from text_values(child)
