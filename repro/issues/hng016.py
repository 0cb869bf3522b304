"""HNG016: a process waits for something that nobody sends."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as LateError
from importlib import import_module
from typing import Any

from repro.drivers import hangs, standing

TRAINER = ("the trainer",)
ENGINE = ("the engine core",)
LIMIT_S = 2.0


def worker_gone(mitigation: str) -> None:
    """The worker of a multiprocessing.Pool ends within its task."""
    import multiprocessing

    with multiprocessing.get_context("spawn").Pool(1) as pool:
        pool.apply(int)  # the worker is there
        standing.say("guilty", *TRAINER)
        standing.say("ready", *TRAINER)
        task = pool.apply_async(os._exit, (9,))
        # With a limit: an error that names the wait, in place of a hang.
        with contextlib.suppress(multiprocessing.TimeoutError):
            task.get(_limit(mitigation))
        standing.say("done", *TRAINER)


def producer_raised(mitigation: str) -> None:
    """The thread that fills a queue with rollouts raised; the trainer waits for the next one."""
    rollouts: queue.Queue[float] = queue.Queue()
    producer = threading.Thread(target=lambda: rollouts.put(float("no number")))
    threading.excepthook = lambda _: None
    producer.start()
    producer.join()
    standing.say("guilty", *TRAINER)
    standing.say("ready", *TRAINER)
    with contextlib.suppress(queue.Empty):
        rollouts.get(timeout=_limit(mitigation))
    standing.say("done", *TRAINER)


def pool_of_parent(mitigation: str) -> None:
    """A forked worker submits to its parent's pool of threads: the threads were not forked with it."""
    pool = ThreadPoolExecutor(1)
    pool.submit(int).result()
    worker = os.fork()
    if not worker:
        standing.say("guilty", "the worker")
        with contextlib.suppress(LateError):
            pool.submit(int).result(_limit(mitigation))
        os._exit(0)
    standing.say("ready", *TRAINER)
    os.waitpid(worker, 0)
    standing.say("done", *TRAINER)


def reply_lost(mitigation: str) -> None:
    """Over vLLM's own message queues an engine core calls a worker, which takes the call and loses its reply."""
    import multiprocessing

    queues: Any = import_module("vllm.distributed.device_communicators.shm_broadcast").MessageQueue
    here, there = multiprocessing.Pipe()
    # Each side makes the ring that it writes to, as vLLM's do.
    if not os.fork():
        taken, replies = queues.create_from_handle(there.recv(), 0), queues(1, 1)
        there.send(replies.export_handle())
        taken.wait_until_ready()
        replies.wait_until_ready()
        standing.say("guilty", "the worker")
        while True:
            taken.dequeue(indefinite=True)
    calls = queues(1, 1)
    here.send(calls.export_handle())
    answers = queues.create_from_handle(here.recv(), 0)
    calls.wait_until_ready()
    answers.wait_until_ready()
    standing.say("ready", *ENGINE)
    calls.enqueue("execute_model")
    with contextlib.suppress(TimeoutError):
        answers.dequeue(timeout=_limit(mitigation), **({} if mitigation else {"indefinite": True}))
    standing.say("done", *ENGINE)


def group_pending(mitigation: str) -> None:
    """A placement group asks for more processors than the cluster has, and the driver waits for it."""
    ray = hangs.start_ray(1)
    placement = import_module("ray.util.placement_group")
    standing.say("guilty", "the driver")
    standing.say("ready", "the driver")
    group = placement.placement_group([{"CPU": 8}])
    with contextlib.suppress(ray.exceptions.GetTimeoutError):
        ray.get(group.ready(), timeout=_limit(mitigation))
    standing.say("done", "the driver")


def _limit(mitigation: str) -> float | None:
    return LIMIT_S if mitigation == "limit" else None


TRIGGERS = {
    "worker_gone": hangs.Standing(worker_gone, TRAINER),
    "producer_raised": hangs.Standing(producer_raised, TRAINER),
    "pool_of_parent": hangs.Standing(pool_of_parent, TRAINER),
    "reply_lost": hangs.Standing(
        reply_lost,
        ENGINE,
        ("vllm",),
        ("engine core and worker: two processes of ours, on vLLM's own queues",),
    ),
    "group_pending": hangs.Standing(
        group_pending,
        ("the driver",),
        ("ray",),
        ("the driver: a program of ours, in a cluster of Ray's own",),
    ),
}
REPRO = hangs.repro(
    "HNG016",
    "A process waits for something that nobody sends",
    triggers=TRIGGERS,
    counted="processes went on",
    helps={"limit": "a limit of 2 s on the wait"},
    untried={"look_at_the_sender": "it looks for the cause and changes nothing"},
    simulated=("the trainer and what it waits for: processes and threads of ours",),
)

if __name__ == "__main__":
    hangs.main(TRIGGERS)
