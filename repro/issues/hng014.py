"""HNG014: a task of a full pool waits for another task of it: no worker is left to run that one."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

from repro.drivers import hangs, standing

NAMES = ("the reward",)


def inner_task(mitigation: str) -> None:
    """A reward runs in a pool of one thread, and submits a comparison to the same pool."""
    outer, other = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
    inner = other if mitigation == "two_pools" else outer
    standing.say("guilty", NAMES[0])
    standing.say("ready", NAMES[0])
    outer.submit(lambda: inner.submit(float, "1").result()).result()
    standing.say("done", NAMES[0])
    os._exit(0)


TRIGGERS = {"inner_task": hangs.Standing(inner_task, NAMES)}
REPRO = hangs.repro(
    "HNG014",
    "A task of a full pool waits for another task of it",
    triggers=TRIGGERS,
    counted="rewards came back",
    helps={"two_pools": "a pool of its own for the inner tasks"},
    simulated=("the trainer: a pool and a reward of ours",),
)

if __name__ == "__main__":
    hangs.main(TRIGGERS)
