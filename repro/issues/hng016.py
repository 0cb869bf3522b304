"""HNG016: a worker of a pool is gone and has taken its task with it: its result never comes."""

from __future__ import annotations

import contextlib
import os

from repro.drivers import hangs, standing

NAMES = ("the trainer",)


def worker_gone(mitigation: str) -> None:
    """The worker of a multiprocessing.Pool ends within its task."""
    import multiprocessing

    with multiprocessing.get_context("spawn").Pool(1) as pool:
        pool.apply(int)  # the worker is there
        standing.say("ready", NAMES[0])
        task = pool.apply_async(os._exit, (9,))
        # With a limit: an error that names the wait, in place of a hang.
        with contextlib.suppress(multiprocessing.TimeoutError):
            task.get(2.0 if mitigation == "limit" else None)
        standing.say("done", NAMES[0])


PROGRAMS = {"worker_gone": worker_gone}

REPRO = hangs.repro(
    "HNG016",
    "A process waits for something that nobody sends",
    programs=PROGRAMS,
    names=NAMES,
    counted="trainers went on",
    helps={"limit": "get() with a limit of 2 s"},
    untried={"look_at_the_sender": "it looks for the cause and changes nothing"},
    simulated=("the trainer and its reward: a pool of ours, whose worker leaves by os._exit",),
)

if __name__ == "__main__":
    standing.main(PROGRAMS)
