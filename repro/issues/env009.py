"""ENV009: a rank is killed by SIGKILL; torchrun's launcher tells the signal, and there is no traceback."""

from __future__ import annotations

from repro.drivers import calls
from repro.issues import eng010


def _launch(mitigation: str | None) -> None:
    del mitigation
    eng010.launch("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")


REPRO = calls.repro(
    "ENV009",
    "A process was killed from outside, mostly for the host's memory",
    needs=("torch",),
    modules=("torch.distributed.run",),
    trigger=("sigkill", "a rank gets SIGKILL"),
    call=_launch,
    failure=("ChildFailedError", "raise ChildFailedError(", "launch_agent"),
    untried={
        "less_host_memory": "nothing here fills the host's memory",
        "ask": calls.SEARCHES,
    },
    simulated=("who kills: the rank, a program of ours, sends itself the signal",),
)
