"""HNG002: a rank waits for something of its own, the others in a collective for it."""

from __future__ import annotations

import contextlib
import http.client
import queue
import threading
from http import HTTPStatus
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from repro.drivers import hangs, served_engine, standing

if TYPE_CHECKING:
    from collections.abc import Callable

RANKS = 3
NAMES = tuple(f"rank {rank}" for rank in range(RANKS))
TRAINER = ("the trainer",)
OWN = "repro.issues.hng002"  # the engine's worker imports it by name
LIMIT_S = 2.0
# NCCL's broadcast has no limit of its own; a barrier of vLLM's would be given up after 30 s.
LONG_S = 3600.0


def answer_missing(mitigation: str) -> None:
    """A rank asks a reward server that never answers; the others are in all_reduce."""
    port = hangs.silent_server()

    def asks(limit: float | None) -> None:
        asked = http.client.HTTPConnection("127.0.0.1", port, timeout=limit)
        asked.request("GET", "/reward")
        asked.getresponse()

    _ranks(asks, mitigation)


def batch_missing(mitigation: str) -> None:
    """A worker of a rank's DataLoader waits for a download that never ends; the others are in all_reduce."""
    port = hangs.silent_server()

    def loads(limit: float | None) -> None:
        from torch.utils.data import DataLoader

        class Rows:
            def __len__(self) -> int:
                return 1

            def __getitem__(self, _: int) -> float:
                asked = http.client.HTTPConnection("127.0.0.1", port)
                asked.request("GET", "/row")
                return asked.getresponse().status

        loader: Any = DataLoader(cast("Any", Rows()), num_workers=1, timeout=limit or 0)
        next(iter(loader))

    _ranks(loads, mitigation)


def thread_at_exit(mitigation: str) -> None:
    """A rank raised before the collective, and its exit waits for a thread of its logger that waits for a record."""
    records: queue.Queue[str] = queue.Queue()

    def leaves(limit: float | None) -> None:
        logger = threading.Thread(target=lambda: records.get(timeout=limit), name="logger")
        logger.start()
        # What the interpreter does when its main thread has raised: it joins all threads that are no daemons.
        logger.join()

    _ranks(leaves, mitigation)


class Receiver:
    """What a worker of the engine's is extended by, as trainers do: it joins the trainer's group, and takes weights."""

    joined: Any = None

    def join(self, port: int) -> None:
        """Meets the trainer."""
        self.joined = _group(port, 1)

    def receive(self, name: str) -> None:
        """Takes a parameter that the model has; of any other it says so before it comes to the collective."""
        model: Any = self
        dict(model.model_runner.model.named_parameters())[name]
        self.joined.barrier(timeout=LONG_S)


def _group(port: int, rank: int) -> Any:
    utils = import_module("vllm.distributed.utils")
    return utils.StatelessProcessGroup.create("127.0.0.1", port, rank, 2)


def update_failed(mitigation: str) -> None:
    """A real `vllm serve` fails in a weight update; its answer is not read, and the trainer waits in the collective."""
    engine, _, port = served_engine.start(f"--worker-extension-cls={OWN}.Receiver")
    meeting = hangs.free_port()

    def called(method: str, argument: object) -> int:
        return served_engine.ask(port, "/collective_rpc", None, {"method": method, "args": [argument]})

    joins = threading.Thread(target=called, args=("join", meeting))
    joins.start()
    group = _group(meeting, 0)
    joins.join()
    standing.say("guilty", "the engine's worker", served_engine.worker(engine.pid))
    standing.say("ready", *TRAINER)
    status = called("receive", "a parameter of another model")
    if mitigation != "read_the_status" or status == HTTPStatus.OK:
        group.barrier(timeout=LONG_S)
    standing.say("done", *TRAINER)


def _ranks(alone: Callable[[float | None], None], mitigation: str) -> None:
    """The guilty rank does this before the all_reduce that all are to come to."""
    import torch
    import torch.distributed as dist

    limit = LIMIT_S if mitigation == "bound_the_wait" else None

    def rank_of(rank: int, port: int) -> None:
        hangs.join_gloo(rank, port, RANKS)
        dist.barrier()
        if rank == hangs.guilty_of(1):
            standing.say("guilty", NAMES[rank])
        standing.say("ready", NAMES[rank])
        if rank == hangs.guilty_of(1):
            # With a limit this row has no reward, and the rank is at the collective in time.
            with contextlib.suppress(TimeoutError, RuntimeError):
                alone(limit)
        dist.all_reduce(torch.ones(1))
        standing.say("done", NAMES[rank])
        dist.barrier()

    hangs.run_ranks(RANKS, rank_of)


TRIGGERS = {
    "answer_missing": hangs.Standing(answer_missing, NAMES),
    "batch_missing": hangs.Standing(batch_missing, NAMES),
    "thread_at_exit": hangs.Standing(thread_at_exit, NAMES),
    "update_failed": hangs.Standing(
        update_failed,
        TRAINER,
        ("vllm",),
        ("the trainer: a client of ours; the model is tiny, and NCCL's broadcast a barrier of vLLM's own",),
    ),
}
REPRO = hangs.repro(
    "HNG002",
    "A rank is not in the collective that the others wait in",
    triggers=TRIGGERS,
    counted="ranks came through",
    helps={
        "bound_the_wait": "a limit of 2 s for what the rank waits for",
        "read_the_status": "no collective after an update that the server answered with an error",
    },
    only={
        "bound_the_wait": ("answer_missing", "batch_missing", "thread_at_exit"),
        "read_the_status": ("update_failed",),
    },
    needs=("torch",),
    simulated=("the trainer and what it asks: ranks of ours, and a server whose handler never answers",),
)

if __name__ == "__main__":
    hangs.main(TRIGGERS)
