"""Scripts that stand in another file: a Dockerfile's instructions, a notebook's cells, a container's command."""

from __future__ import annotations

import re
import shlex
from itertools import islice
from typing import TYPE_CHECKING, Any

from diagnostics import given
from diagnostics.lint.sources import json_file, shell
from diagnostics.lint.sources.shell_scope import Word
from diagnostics.lint.values import Value

if TYPE_CHECKING:
    from collections.abc import Iterator

_INSTRUCTION = re.compile(r"[ \t]*(ENV|ARG|RUN|CMD|ENTRYPOINT)[ \t]+(.*)$", re.IGNORECASE | re.DOTALL)
_OTHER = re.compile(
    r"[ \t]*(?:FROM|COPY|ADD|WORKDIR|LABEL|USER|EXPOSE|VOLUME|SHELL|HEALTHCHECK|ONBUILD|STOPSIGNAL)\b"
)
_MANY = 200


def dockerfile(text: str) -> str:
    """The shell script that a Dockerfile comes to, each line where it stood."""
    lines: list[str] = []
    entry = -1
    going = False
    for line in text.splitlines():
        if going and (not line.strip() or line.lstrip().startswith("#")):
            # Docker drops comments and empty lines within an instruction, and goes on.
            lines.append("\\")
            continue
        match = None if going else _INSTRUCTION.match(line)
        goes = line.rstrip().endswith("\\")
        if match is None:
            lines.append("" if not going and (_OTHER.match(line) or line.startswith("#")) else line)
        else:
            word, rest = match[1].upper(), match[2]
            words = _exec_form(rest)
            if word in {"ENV", "ARG"}:
                name, blank, value = rest.partition(" ")
                rest = f"{name}={value}" if blank and "=" not in name else rest
                lines.append(f"export {rest}" if word == "ENV" else rest if "=" in rest else "")
            elif word == "CMD" and words and words[0].startswith("-") and entry >= 0:
                lines[entry] += " " + shlex.join(words)
                lines.append("")
            else:
                if word == "ENTRYPOINT" and words:
                    entry = len(lines)
                lines.append(shlex.join(words) if words else rest)
        going = goes
    return "\n".join(lines) + "\n"


def _exec_form(rest: str) -> list[str]:
    if not rest.lstrip().startswith("["):
        return []
    try:
        words = given.parsed(rest)
    except ValueError:
        return []
    return [str(word) for word in words] if isinstance(words, list) else []


def notebook(text: str, file: str) -> tuple[str, str]:
    """The Python and the shell of a notebook's cells; each line where it stands in the file, as most are written.

    Raises:
        UnreadableError: It is no JSON.
    """
    tree = json_file.read(text, file)
    python: list[str] = []
    bash: list[str] = []
    cells = tree.get("cells") if isinstance(tree, dict) else None
    for cell in cells if isinstance(cells, list) else ():
        kind = cell.get("cell_type") if isinstance(cell, dict) else None
        if not isinstance(kind, Value) or kind.data != "code":
            continue
        source = cell.get("source")
        parts = source if isinstance(source, list) else [source]
        whole = [
            (part.place.line + more, line)
            for part in parts
            if isinstance(part, Value) and isinstance(part.data, str)
            for more, line in enumerate(part.data.splitlines())
        ]
        shells = bool(whole) and whole[0][1].startswith(("%%bash", "%%sh", "%%script"))
        going = False
        for number, line in whole:
            marked = line.lstrip().startswith(("!", "%"))
            target = bash if shells or marked or going else python
            if target is bash and line[:1].isspace() and not (shells or going):
                # The command may be all that a block has.
                python.extend("" for _ in range(number - len(python) - 1))
                python.append(line[: len(line) - len(line.lstrip())] + "pass")
            going = (going or marked) and line.rstrip().endswith("\\")
            target.extend("" for _ in range(number - len(target) - 1))
            target.append("" if line.startswith("%") else line.lstrip().removeprefix("!") if marked else line)
    return "\n".join(python) + "\n", "\n".join(bash) + "\n"


def containers(tree: Any) -> Iterator[shell.Command]:
    """What the containers of a job run, with their arguments and environment: Kubernetes, Docker compose and such."""
    for node in islice(_tables(tree), _MANY):
        parts = [node.get(name) for name in ("entrypoint", "command", "args")]
        words = [word for part in parts if isinstance(part, list) for word in part if isinstance(word, Value)]
        if not words or not all(isinstance(part, list | None) for part in parts):
            continue
        environ: dict[str, Value] = {}
        env = node.get("env")
        for each in env if isinstance(env, list) else ():
            name = each.get("name") if isinstance(each, dict) else None
            value = each.get("value") if isinstance(each, dict) else None
            if isinstance(name, Value) and isinstance(value, Value):
                environ[str(name.data)] = value.named(str(name.data))
        yield shell.Command(
            [Word(str(word.data), _last_line(word)) for word in words], environ, words[0].place.line
        )


def _last_line(word: Value) -> int:
    """The line on which a word ends: a block begins on the line after its mark."""
    more = str(word.data).count("\n")
    return word.place.line + more + bool(more)


def _tables(tree: Any) -> Iterator[dict[str, Any]]:
    if isinstance(tree, dict):
        if {"command", "args", "entrypoint"} & set(tree):
            yield tree
        for child in tree.values():
            yield from _tables(child)
    elif isinstance(tree, list):
        for child in tree:
            yield from _tables(child)
