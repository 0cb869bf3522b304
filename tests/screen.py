"""Run commands on a pseudo-terminal of 24 lines by 80 columns and return their output."""

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
class TerminalOutput:
    """Output of a command on a terminal.

    Attributes:
        code: Exit code.
        text: Complete output, with escape sequences.
    """

    code: int
    text: str

    @property
    def lines(self) -> list[str]:
        """The lines without escape sequences; each state of a redrawn line is a line."""
        return without_escapes(self.text).rstrip("\n").split("\n")

    @property
    def wide(self) -> list[str]:
        """The lines that are wider than the terminal."""
        return [line for line in self.lines if len(line) > COLUMNS]


def without_escapes(text: str) -> str:
    """Remove colours and cursor movements from a text."""
    return _MOVEMENT.sub("", text).replace("\r\n", "\n").replace("\r", "\n")


def run_on_terminal(
    command: Sequence[str], folder: Path, environ: Mapping[str, str] | None = None
) -> TerminalOutput:
    """Run a command in a folder with a terminal as stdin, stdout and stderr; `python` is the tests' Python."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    left_out = {"COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"}
    inherited = {name: value for name, value in os.environ.items() if name not in left_out}
    child = subprocess.Popen(
        [sys.executable if command[0] == "python" else command[0], *command[1:]],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        cwd=folder,
        start_new_session=True,
        env={**inherited, "TERM": "xterm-256color", "PYTHONPATH": str(ROOT), **(environ or {})},
    )
    os.close(slave)
    output = bytearray()
    try:
        while piece := _next_piece(master):
            output += piece
    finally:
        os.close(master)
    return TerminalOutput(child.wait(), output.decode(errors="replace"))


def _next_piece(terminal: int) -> bytes:
    """Return the next piece of output; nothing once every process has closed the terminal."""
    try:
        return os.read(terminal, 65536)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return b""
