"""Split a notebook's code cells into Python code and shell commands with the line numbers of the notebook's file.

Lines that begin with `!` and cells that begin with `%%bash`, `%%sh` or `%%script` are shell commands. Other magics
(`%...`) are dropped. If a cell's source is one JSON string, its lines are numbered from the line of that string on.
"""

import re
from collections.abc import Iterator

from diagnostics.lint.readers.structured import check_run_count, parse_json
from diagnostics.lint.values import Value

_SHELL_CELL = ("%%bash", "%%sh", "%%script")
# A line for the shell (`!`) or a magic (`%`), with the following lines that are joined to it by backslashes.
_SHELL_LINE = re.compile(r"^([ \t]*)(!|%(?=%?[a-z]))((?:.*\\\n)*.*)", re.MULTILINE)


def split_cells(text: str, file: str) -> tuple[str, list[tuple[int, str]]]:
    """Return the Python code of all cells as one text, and (first line, text) of each shell command.

    In the Python code, `pass` replaces shell lines and magics.

    Raises:
        UnreadableError: The text is not JSON, or has too many shell commands.
    """
    python: list[str] = []
    commands: list[tuple[int, str]] = []

    def take_command(match: re.Match[str]) -> str:
        if match[2] == "!":
            check_run_count(commands, file)
            commands.append((first_line + code.count("\n", 0, match.start()), match[3]))
        # The command may be the only statement of a block, so `pass` replaces it.
        return f"{match[1]}pass" + "\n" * match[3].count("\n")

    for first_line, code in _code_cells(text, file):
        if code.startswith(_SHELL_CELL):
            check_run_count(commands, file)
            commands.append((first_line + 1, code.partition("\n")[2]))
            continue
        python += [""] * (first_line - len(python) - 1)
        python += _SHELL_LINE.sub(take_command, code).splitlines()
    return "\n".join(python) + "\n", commands


def _code_cells(text: str, file: str) -> Iterator[tuple[int, str]]:
    """Yield the first line and the text of each code cell."""
    tree = parse_json(text, file)
    cells = tree.get("cells") if isinstance(tree, dict) else None
    for cell in cells if isinstance(cells, list) else ():
        kind = cell.get("cell_type") if isinstance(cell, dict) else None
        if isinstance(kind, Value) and kind.data == "code":
            source = cell.get("source")
            values = [
                part for part in (source if isinstance(source, list) else [source]) if isinstance(part, Value)
            ]
            if values:
                yield values[0].place.line, "".join(str(part.data) for part in values)
