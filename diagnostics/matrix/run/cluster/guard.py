"""Ends what a cell's program left running when the process that started it was killed.

A lost node's process gets no chance to tidy up. The guard is a process of its own that reads from a pipe: the pipe's
end without a word before it means that the other side is dead, however it died.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from diagnostics.matrix.records.store import Store, StoreBusyError
from diagnostics.processes import end_left_over

if TYPE_CHECKING:
    from collections.abc import Iterator

DONE = "done\n"
_ROOT = Path(__file__).resolve().parents[4]


@contextmanager
def guarded(folder: Path) -> Iterator[None]:
    """Guards the programs that are noted in this folder while the block runs."""
    process = subprocess.Popen(
        [sys.executable, "-m", __name__, os.fspath(folder)],
        env={**os.environ, "PYTHONPATH": os.fspath(_ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdout.readline()  # from here on it is a process on its own
        process.wait()
        yield
    finally:
        with process.stdin, process.stdout:
            process.stdin.write(DONE)


def main(folder: Path) -> None:
    """Waits for the other side's end, then ends what is left of its programs, unless a newer process has the cell."""
    print("ready", flush=True)
    if os.fork():
        os._exit(0)  # the one that watches is nobody's child: what ends the other's children leaves it alone
    os.close(1)
    if sys.stdin.readline() == DONE:
        return
    try:
        with Store(folder).locked():
            end_left_over(folder / "running.json")
    except StoreBusyError:
        return


if __name__ == "__main__":
    main(Path(sys.argv[1]))
