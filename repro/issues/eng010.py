"""ENG010: torchrun's launcher ends with ChildFailedError because a rank ended with an error of its own."""

from __future__ import annotations

import tempfile
from pathlib import Path

from repro.drivers import calls


def launch(program: str) -> None:
    """Has torchrun's launcher run a program of one rank."""
    from torch.distributed.run import main

    path = Path(tempfile.mkdtemp(), "rank.py")
    path.write_text(program)
    main(["--standalone", "--nproc_per_node", "1", str(path)])


def _launch(mitigation: str | None) -> None:
    del mitigation
    launch("raise SystemExit(3)")


REPRO = calls.repro(
    "ENG010",
    "A launcher reports that a process failed: only the wrapper",
    needs=("torch",),
    modules=("torch.distributed.run",),
    trigger=("exit_code", "a rank ends with exit code 3"),
    call=_launch,
    failure=("ChildFailedError", "raise ChildFailedError(", "launch_agent"),
    untried={"find_the_root": calls.SEARCHES},
    simulated=("the rank: a program of ours",),
)
