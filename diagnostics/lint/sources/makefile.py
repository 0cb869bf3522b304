"""A Makefile or a justfile as the shell script that its recipes come to, each line where it stood."""

from __future__ import annotations

import re

_SETS = re.compile(r"(?:export\s+|override\s+)*([A-Za-z_]\w*)\s*(\?|::?|\+)?=\s*(.*)$")
_USED = re.compile(r"\$\(([A-Za-z_]\w*)\)|\$\$|\$\(")
_JUST_SETS = re.compile(r"(?:export\s+)?([A-Za-z_][\w-]*)\s*:=\s*(.*)$")
_JUST_USED = re.compile(r"\{\{\s*([A-Za-z_][\w-]*)\s*\}\}|\{\{.*?\}\}")
_PARAMETER = re.compile(r"([A-Za-z_][\w-]*)\s*=\s*(\"[^\"]*\"|'[^']*'|\S+?)(?=[\s:]|$)")
_SILENT = re.compile(r"^[ \t]*(?:[@+]|-(?!-))*[ \t]*")
# Something that only make or just would tell.
_UNKNOWN = "$(:)"


def script(text: str, *, just: bool = False) -> str:
    """The recipes, one after another, with the variables of the file."""
    one = _just if just else _make
    lines: list[str] = []
    goes = recipe = False
    for line in text.splitlines():
        if not goes:
            recipe = line.startswith("\t") or (just and line[:1] == " ")
        # What silences a line stands at its beginning alone.
        text = _SILENT.sub("", line) if recipe and not goes else line.strip(" \t") if recipe else line
        lines.append(one(text, recipe=recipe) if recipe or not goes else "")
        goes = line.endswith("\\")
    return "\n".join(lines) + "\n"


def _make(line: str, *, recipe: bool) -> str:
    if recipe:
        return _USED.sub(_shell, line)
    match = _SETS.match(line.strip())
    if match is None:
        return ""
    how, value = match[2] or "", match[3].partition(" #")[0].strip()
    return _assigned(match[1], _USED.sub(_shell, value), default=how == "?", append=how == "+")


def _shell(match: re.Match[str]) -> str:
    if match[1]:
        return f"${{{match[1]}}}"
    # A function of make's own: its output is as unknown as a command's.
    return "$" if match[0] == "$$" else "$("


def _assigned(name: str, value: str, *, default: bool = False, append: bool = False) -> str:
    quoted = value if "$(" in value else value.replace('"', '\\"')
    if default:
        return f'{name}="${{{name}:-{quoted}}}"'
    return f'{name}{"+" if append else ""}="{" " if append else ""}{quoted}"'


def _just(line: str, *, recipe: bool) -> str:
    if recipe:
        return _JUST_USED.sub(_braced, line)
    match = _JUST_SETS.match(line.strip())
    if match is not None:
        value = match[2].strip()
        whole = value[:1] in {'"', "'"} and value.find(value[0], 1) == len(value) - 1
        return f"{_name(match[1])}={value if whole else _UNKNOWN}"
    given = _PARAMETER.findall(line.partition(":")[0]) if ":" in line and not line.startswith("#") else []
    return "; ".join(f"{_name(name)}=${{{_name(name)}_given:-{value}}}" for name, value in given)


def _braced(match: re.Match[str]) -> str:
    return f"${{{_name(match[1])}}}" if match[1] else _UNKNOWN


def _name(name: str) -> str:
    return name.replace("-", "_")
