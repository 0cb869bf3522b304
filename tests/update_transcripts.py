"""Replace the output in `console` blocks of the documentation that no longer matches.

usage: python -m tests.update_transcripts [DOCUMENT ...]

Each command runs twice; a line that differs between the runs is cut at the first difference and ends in `…`. Commands
that need a matrix cell or train are left out.
"""

import os
import sys
import tempfile
from pathlib import Path

from tests.documents import documents
from tests.transcripts import ROOT, differences, transcripts_of


def keep_equal_text(first: list[str], second: list[str]) -> list[str]:
    """Return the lines of two runs, cut where they differ; lines that only one run has are dropped."""
    lines = []
    for line, second_line in zip(first, second, strict=False):
        common = os.path.commonprefix([line, second_line])
        lines.append(line.rstrip() if line == second_line else common.rstrip() + " …")
    return lines


def main(names: list[str]) -> None:
    """Rewrite the blocks whose command prints something else, in the named documents or all; print these commands.

    A block with a line `…` gets no more lines than it has.
    """
    for path in documents():
        if names and str(path.relative_to(ROOT)) not in names:
            continue
        for transcript in list(transcripts_of(path)):
            if transcript.cell or transcript.trains:
                continue
            runs = []
            for _ in range(2):
                with tempfile.TemporaryDirectory() as folder:
                    runs.append(transcript.run(Path(folder)))
            if not differences(transcript.expected, runs[0]):
                continue
            new_lines = keep_equal_text(*runs)
            keep = len(transcript.expected)
            if "…" in transcript.expected and len(new_lines) > keep:
                new_lines = [*new_lines[: keep - 1], "…"]
            head, text = f"$ {transcript.command}", path.read_text(encoding="utf-8")
            old, new = ("\n".join([head, *lines]) for lines in (transcript.expected, new_lines))
            path.write_text(text.replace(old, new, 1), encoding="utf-8")
            print(f"{transcript.document}: $ {transcript.command}")


if __name__ == "__main__":
    main(sys.argv[1:])
