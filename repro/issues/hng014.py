"""HNG014: a task of a full pool waits for another task of it: no worker is left to run that one."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

from repro.base import Repro, TriedMitigation, Trigger, Work
from repro.drivers import standing

NAMES = ("the reward",)


def inner_task(mitigation: str) -> None:
    """A reward runs in a pool of one thread, and submits a comparison to the same pool."""
    outer, other = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
    inner = other if mitigation == "two_pools" else outer
    standing.say("ready", NAMES[0])
    outer.submit(lambda: inner.submit(float, "1").result()).result()
    standing.say("done", NAMES[0])
    os._exit(0)


PROGRAMS = {"inner_task": inner_task}


def _attempt(mitigation: str | None) -> Work:
    return standing.attempt("repro.issues.hng014", "inner_task", mitigation, NAMES, "rewards came back")


REPRO = Repro(
    code="HNG014",
    title="A task of a full pool waits for another task of it",
    assertion="",
    distributions=(),
    modules=(),
    helpful_modules=(),
    simulated=("the trainer: a pool and a reward of ours",),
    triggers=(Trigger("inner_task", "a task submits to its own pool, and waits", _attempt, silent=True),),
    mitigations=(TriedMitigation("two_pools", "a pool of its own for the inner tasks", frozenset(PROGRAMS)),),
    inapplicable=lambda: None,
)

if __name__ == "__main__":
    standing.main(PROGRAMS)
