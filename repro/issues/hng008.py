"""HNG008: a rank asks a question on a terminal that nobody looks at; the others wait for it in a collective."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from importlib import import_module
from typing import TYPE_CHECKING

from repro.drivers import hangs, standing

if TYPE_CHECKING:
    from collections.abc import Callable

RANKS = 3
NAMES = tuple(f"rank {rank}" for rank in range(RANKS))


def wandb_login(mitigation: str) -> None:
    """W&B has no key, and asks for one."""
    wandb = import_module("wandb")  # before the ranks are there: it takes long
    if mitigation == "no_question":
        os.environ["WANDB_MODE"] = "offline"

    def asks() -> None:
        wandb.login()  # as init() does before a run

    _ranks(asks, mitigation)


def breakpoint_left(mitigation: str) -> None:
    """A breakpoint() was left in a reward: the debugger asks what to do."""
    if mitigation == "no_question":
        os.environ["PYTHONBREAKPOINT"] = "0"

    def asks() -> None:
        breakpoint()  # noqa: T100 - it was left there
        os.getpid()  # the debugger stops at the next line

    _ranks(asks, mitigation)


def _ranks(asks: Callable[[], None], mitigation: str) -> None:
    import torch
    import torch.distributed as dist

    held, terminal = os.openpty()
    home = tempfile.mkdtemp(prefix="grpo-doctor-")
    os.environ.update(HOME=home, NETRC=f"{home}/netrc")

    def rank_of(rank: int, port: int) -> None:
        hangs.join_gloo(rank, port, RANKS)
        dist.barrier()
        if rank == hangs.guilty_of(0):
            standing.say("guilty", NAMES[rank])
        standing.say("ready", NAMES[rank])
        if rank == hangs.guilty_of(0):
            if mitigation != "no_input":
                os.dup2(terminal, 0)
                os.dup2(terminal, 1)
                os.dup2(terminal, 2)
            sys.stdin = os.fdopen(0)
            sys.stdout = sys.stderr = os.fdopen(1, "w", buffering=1)
            with contextlib.suppress(Exception):
                asks()
        dist.all_reduce(torch.ones(1))
        standing.say("done", NAMES[rank])
        dist.barrier()

    hangs.run_ranks(RANKS, rank_of)
    os.close(held)


TRIGGERS = {
    "wandb_login": hangs.Standing(wandb_login, NAMES, ("wandb",)),
    "breakpoint_left": hangs.Standing(breakpoint_left, NAMES),
}
REPRO = hangs.repro(
    "HNG008",
    "A process asks a question that nobody sees",
    triggers=TRIGGERS,
    counted="ranks came through",
    helps={
        "no_question": "WANDB_MODE=offline; PYTHONBREAKPOINT=0",
        "no_input": "standard input is /dev/null",
    },
    needs=("torch",),
    simulated=("the trainer: ranks of ours; the terminal is one that we hold and do not read",),
)

if __name__ == "__main__":
    hangs.main(TRIGGERS)
