"""A terminal of 24 lines by 80 columns, and what a command shows on it."""

from __future__ import annotations

import errno
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = Path(__file__).resolve().parent.parent
ROWS, COLUMNS = 24, 80
_MOVEMENT = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07|\x1b[()][A-Z0-9]")


@dataclass(frozen=True)
class Shown:
    """Output of a command on a terminal.

    Attributes:
        code: Its exit code.
        text: All that it wrote, with its colours and movements.
    """

    code: int
    text: str

    @property
    def lines(self) -> list[str]:
        """Its lines without colours; of one that was drawn over, each state is a line."""
        return without_escapes(self.text).rstrip("\n").split("\n")

    @property
    def wide(self) -> list[str]:
        """The lines that do not fit."""
        return [line for line in self.lines if len(line) > COLUMNS]


def without_escapes(text: str) -> str:
    """Remove colours and cursor movements from a text."""
    return _MOVEMENT.sub("", text).replace("\r\n", "\n").replace("\r", "\n")


def run_on_terminal(words: Sequence[str], here: Path, environ: Mapping[str, str] | None = None) -> Shown:
    """Run a command with a terminal as all three of its streams; `python` is the Python of the tests."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    left_out = {"COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"}
    around = {name: value for name, value in os.environ.items() if name not in left_out}
    child = subprocess.Popen(
        [sys.executable if words[0] == "python" else words[0], *words[1:]],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=here,
        start_new_session=True,
        env={**around, "TERM": "xterm-256color", "PYTHONPATH": str(ROOT), **(environ or {})},
    )
    os.close(theirs)
    output = bytearray()
    try:
        while piece := _next_piece(ours):
            output += piece
    finally:
        os.close(ours)
    return Shown(child.wait(), output.decode(errors="replace"))


def _next_piece(terminal: int) -> bytes:
    """Return the next piece of output; nothing once every process has closed the terminal."""
    try:
        return os.read(terminal, 65536)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return b""
