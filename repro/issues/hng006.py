"""HNG006: a lock is not given back, or threads wait for each other's."""

from __future__ import annotations

import contextlib
import os
import threading
import time

from repro.drivers import hangs, standing

THREADS = ("the trainer's thread", "the publisher's thread")
TRAINER = ("the trainer",)


def two_orders(mitigation: str) -> None:
    """One thread takes the model's lock first, the other the engine's."""
    model, engine = threading.Lock(), threading.Lock()
    both = threading.Barrier(2)

    def work(name: str, first: threading.Lock, second: threading.Lock) -> None:
        standing.say("guilty", name)
        standing.say("ready", name)
        both.wait()
        with first:
            if mitigation != "one_order":
                both.wait()
            with second:
                standing.say("done", name)

    orders = [(model, engine), (model, engine) if mitigation == "one_order" else (engine, model)]
    threads = [
        threading.Thread(target=work, args=(name, *order))
        for name, order in zip(THREADS, orders, strict=True)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()


def raised_with_lock(mitigation: str) -> None:
    """A thread raised between acquire() and release(); the main thread wants the lock."""
    lock = threading.Lock()

    def update() -> None:
        with contextlib.suppress(ValueError):
            if mitigation == "with_statement":
                with lock:
                    raise ValueError
            lock.acquire()
            float("no number")
            lock.release()

    thread = threading.Thread(target=update)
    thread.start()
    thread.join()
    standing.say("guilty", *TRAINER)
    standing.say("ready", *TRAINER)
    with lock:
        standing.say("done", *TRAINER)


def fork_with_lock(mitigation: str) -> None:
    """A worker is forked while a thread holds a lock: in the worker nobody gives it back, and the trainer joins it."""
    import multiprocessing

    threading.Thread(target=_hold, daemon=True).start()
    time.sleep(0.5)
    method = "spawn" if mitigation == "spawn" else "fork"
    # Of a type that both kinds of context have.
    worker = multiprocessing.get_context(method).Process(target=_work)  # type: ignore[attr-defined]
    worker.start()
    standing.say("guilty", "the worker", worker.pid)
    standing.say("ready", *TRAINER)
    worker.join()
    standing.say("done", *TRAINER)


_TABLE = threading.Lock()


def _hold() -> None:
    with _TABLE:
        time.sleep(4.0)


def _work() -> None:
    with _TABLE:
        os._exit(0)


TRIGGERS = {
    "two_orders": hangs.Standing(two_orders, THREADS),
    "raised_with_lock": hangs.Standing(raised_with_lock, TRAINER),
    "fork_with_lock": hangs.Standing(fork_with_lock, TRAINER),
}
REPRO = hangs.repro(
    "HNG006",
    "A lock is not given back, or threads wait for each other's",
    triggers=TRIGGERS,
    counted="threads or processes came through",
    helps={
        "one_order": "both take the model's lock first",
        "with_statement": "the lock is held by `with`",
        "spawn": "the worker is spawned, not forked",
    },
    only={
        "one_order": ("two_orders",),
        "with_statement": ("raised_with_lock",),
        "spawn": ("fork_with_lock",),
    },
    simulated=("trainer, publisher and worker: threads and processes of ours; when they meet is set",),
)

if __name__ == "__main__":
    hangs.main(TRIGGERS)
