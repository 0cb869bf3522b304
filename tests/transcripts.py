"""Transcripts in documents: blocks marked `console`, a command and what it prints; run, and compared.

`python -m tests.transcripts [DOCUMENT …]` runs them and shows what differs. `…` alone in a line stands for any lines,
at the end of a line for the rest of it.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
_BLOCK = re.compile(r"^```console\n\$ (?P<command>.+)\n(?P<told>(?:.*\n)*?)```$", re.MULTILINE)
_CELLS = ".matrix/environments/"
WIDTH = "110"


@dataclass(frozen=True)
class Transcript:
    """A command line, and the lines that it is told to print."""

    document: str
    command: str
    told: tuple[str, ...]

    @property
    def cell(self) -> str:
        """The cell of the matrix whose environment the command names; empty for none."""
        return self.command.partition(_CELLS)[2].split("/")[0].split(" ")[0]

    @property
    def trains(self) -> bool:
        """Whether it needs PyTorch and takes seconds."""
        return "grpo_core train" in self.command

    def run(self, here: Path, cells: Path | None = None) -> list[str]:
        """Run the command in a writable folder that holds what a checkout has for it; return its lines."""
        shutil.copytree(ROOT / "examples", here / "examples")
        if cells:
            (here / ".matrix").mkdir()
            (here / _CELLS.rstrip("/")).symlink_to(cells)
        words = [sys.executable if word == "python" else word for word in shlex.split(self.command)]
        environ = {**os.environ, "COLUMNS": WIDTH, "NO_COLOR": "1", "PYTHONPATH": str(ROOT)}
        done = subprocess.run(words, capture_output=True, text=True, cwd=here, env=environ, check=False)
        return (done.stdout or done.stderr).splitlines()


def transcripts_of(document: Path) -> Iterator[Transcript]:
    """The transcripts of a document."""
    for match in _BLOCK.finditer(document.read_text(encoding="utf-8")):
        expected = tuple(match["told"].splitlines())
        yield Transcript(str(document.relative_to(ROOT)), match["command"], expected)


def differences(told: tuple[str, ...], seen: list[str]) -> list[str]:
    """The first line that is told and was not printed where it should stand; empty where all is as told.

    >>> differences(("a", "…", "d…"), ["a", "b", "c", "due"])
    []
    >>> differences(("a", "c"), ["a", "b"])
    ["told 'c', printed 'b'"]
    """
    rest, skipping = list(seen), False
    for line in told:
        if line == "…":
            skipping = True
            continue
        while skipping and rest and not _line_matches(line, rest[0]):
            rest.pop(0)
        if not rest or not _line_matches(line, rest[0]):
            return [f"told {line!r}, printed {rest[0] if rest else 'nothing more'!r}"]
        rest.pop(0)
        skipping = False
    return [f"printed {rest[0]!r}, not told"] if rest and not skipping else []


def _line_matches(told: str, seen: str) -> bool:
    if told.endswith("…"):
        return seen.startswith(told.removesuffix("…").rstrip())
    return told == seen.rstrip()


def main(names: list[str]) -> int:
    """Show what each transcript prints where it differs."""
    from tests.documents import documents

    wrong = 0
    for path in documents():
        for transcript in transcripts_of(path) if not names or str(path.relative_to(ROOT)) in names else ():
            with tempfile.TemporaryDirectory() as workdir:
                printed = transcript.run(
                    Path(workdir), Path(os.environ["GRPO_DOCTOR_CELLS"]) if transcript.cell else None
                )
            if different := differences(transcript.told, printed):
                wrong += 1
                print(
                    f"{transcript.document}: $ {transcript.command}\n  {different[0]}\n"
                    + "\n".join(printed[:40])
                )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
