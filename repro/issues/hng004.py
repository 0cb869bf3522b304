"""HNG004: a process is stopped; its sockets stay open, and whoever waits for it gets no error."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any, cast

from repro.drivers import hangs, served_engine, standing

RANKS = 3
NAMES = tuple(f"rank {rank}" for rank in range(RANKS))


def stopped(mitigation: str) -> None:
    """A rank gets SIGSTOP before the collective."""
    import torch
    import torch.distributed as dist

    def rank_of(rank: int, port: int) -> None:
        hangs.join_gloo(rank, port, RANKS)
        dist.barrier()
        standing.say("ready", NAMES[rank])
        if rank == hangs.guilty_of(1):
            standing.say("guilty", NAMES[rank])
            os.kill(os.getpid(), signal.SIGSTOP)
        dist.all_reduce(torch.ones(1))
        standing.say("done", NAMES[rank])
        dist.barrier()

    children = hangs.fork_ranks(RANKS, rank_of)
    _continued(children[hangs.guilty_of(1)], mitigation)
    for child in children:
        os.waitpid(child, 0)


def loader_stopped(mitigation: str) -> None:
    """The worker of a DataLoader is stopped within its batch."""
    import multiprocessing

    from torch.utils.data import DataLoader

    class Rows:
        def __len__(self) -> int:
            return 1

        def __getitem__(self, item: int) -> int:
            standing.say("guilty", "the worker")
            os.kill(os.getpid(), signal.SIGSTOP)
            return item

    loader: Any = DataLoader(cast("Any", Rows()), num_workers=1)
    rows: Any = iter(loader)
    standing.say("ready", "the trainer")
    if mitigation == "continue_it":
        [worker] = multiprocessing.active_children()
        threading.Timer(2.0, os.kill, (worker.pid, signal.SIGCONT)).start()
    next(rows)
    standing.say("done", "the trainer")


def actor_stopped(mitigation: str) -> None:
    """An actor of Ray is stopped within its method; the driver waits in ray.get."""
    ray = hangs.start_ray(1)

    class Worker:
        def process(self) -> int:
            return os.getpid()

        def step(self) -> None:
            os.kill(os.getpid(), signal.SIGSTOP)

    worker = ray.remote(Worker).remote()
    pid = ray.get(worker.process.remote())
    standing.say("guilty", "the worker", pid)
    standing.say("ready", "the driver")
    if mitigation == "continue_it":
        threading.Timer(2.0, os.kill, (pid, signal.SIGCONT)).start()
    ray.get(worker.step.remote())
    standing.say("done", "the driver")


def engine_stopped(mitigation: str) -> None:
    """The worker of a real `vllm serve` is stopped, and the trainer asks for a completion."""
    engine, folder, port = served_engine.start()
    worker = served_engine.worker(engine.pid)
    os.kill(worker, signal.SIGSTOP)
    standing.say("guilty", "the engine's worker", worker)
    standing.say("ready", "the trainer")
    if mitigation == "continue_it":
        threading.Timer(2.0, os.kill, (worker, signal.SIGCONT)).start()
    served_engine.ask(port, "/v1/completions", None, {"model": folder} | served_engine.ASKED)
    standing.say("done", "the trainer")


def _continued(child: int, mitigation: str) -> None:
    os.waitpid(child, os.WUNTRACED)
    if mitigation == "continue_it":
        time.sleep(1.0)
        os.kill(child, signal.SIGCONT)


TRIGGERS = {
    "stopped": hangs.Standing(stopped, NAMES),
    "loader_stopped": hangs.Standing(loader_stopped, ("the trainer",)),
    "actor_stopped": hangs.Standing(
        actor_stopped,
        ("the driver",),
        ("ray",),
        ("driver and worker: programs of ours, in a cluster of Ray's own",),
    ),
    "engine_stopped": hangs.Standing(
        engine_stopped, ("the trainer",), ("vllm",), ("the trainer: a client of ours; the model is tiny",)
    ),
}
REPRO = hangs.repro(
    "HNG004",
    "A process of the job is stopped",
    triggers=TRIGGERS,
    counted="processes came through",
    helps={"continue_it": "kill -CONT after a second or two"},
    needs=("torch",),
    simulated=("the trainer: processes of ours; the guilty one stops itself",),
)

if __name__ == "__main__":
    hangs.main(TRIGGERS)
