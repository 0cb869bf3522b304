"""Run the `console` blocks of the documentation and compare their output, as doctest does for Python.

In expected output, a line `…` matches any lines up to the first one that matches the next expected line; at the end,
all that remain. `…` at the end of a line matches the rest of the line.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.fork_server import ForkServer

ROOT = Path(__file__).resolve().parent.parent
_BLOCK = re.compile(r"^```console\n\$ (?P<command>.+)\n(?P<expected>(?:.*\n)*?)```$", re.MULTILINE)
_CELLS = ".matrix/environments/"
WIDTH = "110"


@dataclass(frozen=True)
class Transcript:
    """A command of a document and its expected output lines."""

    document: str
    command: str
    expected: tuple[str, ...]

    @property
    def cell(self) -> str:
        """Return the matrix cell whose environment the command names, or an empty string."""
        return self.command.partition(_CELLS)[2].split("/")[0].split(" ")[0]

    @property
    def trains(self) -> bool:
        """Return whether this is a `grpo_core train` command, which needs PyTorch and is slow."""
        return "grpo_core train" in self.command

    def run(self, folder: Path, cells: Path | None = None, server: ForkServer | None = None) -> list[str]:
        """Run the command in a folder with a copy of examples/ and a link to the cells.

        Args:
            folder: Working directory of the command.
            cells: Folder of the cells' environments.
            server: Process to fork for `python -m`, which is faster than starting Python.

        Returns:
            The lines of standard output, or of standard error if standard output is empty.
        """
        shutil.copytree(ROOT / "examples", folder / "examples")
        if cells:
            (folder / ".matrix").mkdir()
            (folder / _CELLS.rstrip("/")).symlink_to(cells)
        words = shlex.split(self.command)
        environ = {**os.environ, "COLUMNS": WIDTH, "NO_COLOR": "1", "PYTHONPATH": str(ROOT)}
        if server and words[:2] == ["python", "-m"]:
            done = server.run(words[2:], cwd=folder, env=environ)
        else:
            words = [sys.executable if word == "python" else word for word in words]
            done = subprocess.run(words, capture_output=True, cwd=folder, env=environ, check=False)
        return (done.stdout or done.stderr).decode().splitlines()


def transcripts_of(document: Path) -> Iterator[Transcript]:
    """Yield the console blocks of a document as transcripts."""
    for match in _BLOCK.finditer(document.read_text(encoding="utf-8")):
        expected = tuple(match["expected"].splitlines())
        yield Transcript(str(document.relative_to(ROOT)), match["command"], expected)


def differences(expected: tuple[str, ...], printed: list[str]) -> list[str]:
    """Return the first difference between expected and printed lines, or an empty list.

    >>> differences(("a", "…", "d…"), ["a", "b", "c", "due"])
    []
    >>> differences(("a", "c"), ["a", "b"])
    ["expected 'c', printed 'b'"]
    """
    rest, skipping = list(printed), False
    for line in expected:
        if line == "…":
            skipping = True
            continue
        while skipping and rest and not _line_matches(line, rest[0]):
            rest.pop(0)
        if not rest or not _line_matches(line, rest[0]):
            return [f"expected {line!r}, printed {rest[0] if rest else 'nothing more'!r}"]
        rest.pop(0)
        skipping = False
    return [f"printed {rest[0]!r}, not expected"] if rest and not skipping else []


def _line_matches(expected: str, printed: str) -> bool:
    if expected.endswith("…"):
        return printed.startswith(expected.removesuffix("…").rstrip())
    return expected == printed.rstrip()
