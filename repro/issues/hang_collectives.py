"""Repros of hangs of ranks in collectives and at the rendezvous: real processes over gloo."""

from __future__ import annotations

import contextlib
import http.client
import os
import queue
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from repro.drivers import hangs, served_engine


@hangs.trigger("HNG001", hangs.RANK_NAMES)
def gather_on_main(mitigation: str) -> None:
    """The main rank alone gathers, to log; the others go on to the barrier."""
    _ranks_with_a_branch(hangs.blocking_rank(0), mitigation, _gather)


@hangs.trigger("HNG001", hangs.RANK_NAMES)
def gather_skipped(mitigation: str) -> None:
    """A rank without completions leaves the gather out."""
    _ranks_with_a_branch(hangs.blocking_rank(1), mitigation, _gather, leaves_out=True)


@hangs.trigger("HNG001", hangs.RANK_NAMES)
def full_tensor_on_main(mitigation: str) -> None:
    """The main rank alone calls full_tensor() of a sharded DTensor, to log a norm; the others go on to the barrier."""
    _ranks_with_a_branch(hangs.blocking_rank(0), mitigation, _full_tensor)


@hangs.trigger("HNG001", hangs.RANK_NAMES)
def state_dict_on_main(mitigation: str) -> None:
    """The main rank alone asks an FSDP2 model for its full state dict, to save it; the others go on to the barrier."""
    _ranks_with_a_branch(hangs.blocking_rank(0), mitigation, _state_dict)


def _gather() -> Callable[[], object]:
    import torch
    import torch.distributed as dist

    return lambda: dist.all_gather([torch.zeros(4) for _ in range(hangs.RANKS)], torch.zeros(4))


def _full_tensor() -> Callable[[], object]:
    import torch
    from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

    sharded: Any = distribute_tensor(
        torch.ones(hangs.RANKS, 2), init_device_mesh("cpu", (hangs.RANKS,)), [Shard(0)]
    )
    full_tensor: Callable[[], object] = sharded.full_tensor
    return full_tensor


def _state_dict() -> Callable[[], object]:
    import torch
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import init_device_mesh

    model = torch.nn.Linear(hangs.RANKS, hangs.RANKS)
    fully_shard(model, mesh=init_device_mesh("cpu", (hangs.RANKS,)))
    return lambda: get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))


_IMPORTS = {
    _gather: (),
    _full_tensor: ("torch.distributed.tensor",),
    _state_dict: ("torch.distributed.checkpoint.state_dict", "torch.distributed.fsdp"),
}


def _ranks_with_a_branch(
    one: int, mitigation: str, prepared: Callable[[], Callable[[], object]], *, leaves_out: bool = False
) -> None:
    """One rank alone calls the collective, or alone leaves it out."""
    import torch
    import torch.distributed as dist

    for name in _IMPORTS[prepared]:  # once, and not by each rank
        import_module(name)

    def rank_of(rank: int, port: int) -> None:
        hangs.join_gloo(rank, port, hangs.RANKS)
        collective = prepared()
        dist.barrier()
        if rank == one:
            hangs.report_blocking_and_ready(hangs.RANK_NAMES[rank])
        wants = (rank == one) != leaves_out
        if mitigation == "every_rank":
            gathers = True
        elif mitigation == "decide_together":
            flag = torch.tensor(float(wants))
            dist.all_reduce(flag, op=dist.ReduceOp.MAX)
            gathers = bool(flag)
        else:
            gathers = wants
        if gathers:
            collective()
        dist.barrier()
        hangs.report("done", hangs.RANK_NAMES[rank])
        # A rank that leaves would take the connections of the others with it.
        dist.barrier()

    hangs.run_ranks(hangs.RANKS, rank_of)


hangs.repro(
    "HNG001",
    counted="ranks came through the step",
    changes={
        "every_rank": "call the collective on every rank",
        "decide_together": "reduce the condition first",
    },
    needs=("torch",),
    simulated=("the trainer: ranks of ours call the collectives that its step calls",),
)


OWN = "repro.issues.hang_collectives"  # the engine's worker imports it by name


# NCCL's broadcast has no time limit; vLLM's barrier would end after 30 s.
LONG_S = 3600.0


@hangs.trigger("HNG002", hangs.RANK_NAMES)
def answer_missing(mitigation: str) -> None:
    """A rank asks a reward server that never answers; the others are in all_reduce."""
    port = hangs.start_silent_server()

    def request_reward(limit: float | None) -> None:
        requests = http.client.HTTPConnection("127.0.0.1", port, timeout=limit)
        requests.request("GET", "/reward")
        requests.getresponse()

    _alone_before_all_reduce(request_reward, mitigation)


@hangs.trigger("HNG002", hangs.RANK_NAMES)
def batch_missing(mitigation: str) -> None:
    """A worker of a rank's DataLoader waits for a download that never ends; the others are in all_reduce."""
    port = hangs.start_silent_server()

    def loads(limit: float | None) -> None:
        from torch.utils.data import DataLoader

        class Rows:
            def __len__(self) -> int:
                return 1

            def __getitem__(self, _: int) -> float:
                requests = http.client.HTTPConnection("127.0.0.1", port)
                requests.request("GET", "/row")
                return requests.getresponse().status

        loader: Any = DataLoader(cast("Any", Rows()), num_workers=1, timeout=limit or 0)
        next(iter(loader))

    _alone_before_all_reduce(loads, mitigation)


@hangs.trigger("HNG002", hangs.RANK_NAMES)
def thread_at_exit(mitigation: str) -> None:
    """A rank raised before the collective, and its exit waits for a thread of its logger that waits for a record."""
    records: queue.Queue[str] = queue.Queue()

    def leaves(limit: float | None) -> None:
        logger = threading.Thread(target=lambda: records.get(timeout=limit), name="logger")
        logger.start()
        # After an exception in the main thread the interpreter joins all non-daemon threads.
        logger.join()

    _alone_before_all_reduce(leaves, mitigation)


class Receiver:
    """Worker extension like those of trainers: it joins the trainer's process group and receives weights."""

    joined: Any = None

    def join(self, port: int) -> None:
        """Join the trainer's process group."""
        self.joined = _group(port, 1)

    def receive(self, name: str) -> None:
        """Receive a parameter of the model; report any other before the collective."""
        model: Any = self
        dict(model.model_runner.model.named_parameters())[name]
        self.joined.barrier(timeout=LONG_S)


def _group(port: int, rank: int) -> Any:
    utils = import_module("vllm.distributed.utils")
    return utils.StatelessProcessGroup.create("127.0.0.1", port, rank, 2)


@hangs.trigger(
    "HNG002",
    hangs.TRAINER,
    ("vllm",),
    "the trainer: a client of ours; the model is tiny, and NCCL's broadcast a barrier of vLLM's own",
)
def update_failed(mitigation: str) -> None:
    """A real `vllm serve` fails in a weight update; its answer is not read, and the trainer waits in the collective."""
    engine, _, port = served_engine.start(f"--worker-extension-cls={OWN}.Receiver")
    meeting = hangs.free_port()

    def called(method: str, argument: object) -> int:
        return served_engine.request_status(
            port, "/collective_rpc", None, {"method": method, "args": [argument]}
        )

    joins = threading.Thread(target=called, args=("join", meeting))
    joins.start()
    group = _group(meeting, 0)
    joins.join()
    hangs.report("guilty", "the engine's worker", served_engine.worker(engine.pid))
    hangs.report("ready", *hangs.TRAINER)
    status = called("receive", "a parameter of another model")
    if mitigation != "read_the_status" or status == HTTPStatus.OK:
        group.barrier(timeout=LONG_S)
    hangs.report("done", *hangs.TRAINER)


def _alone_before_all_reduce(alone: Callable[[float | None], None], mitigation: str) -> None:
    """Have a rank do this before the all_reduce; with a limit its row has no reward, and it is there in time."""

    def bounded() -> None:
        with contextlib.suppress(TimeoutError, RuntimeError):
            alone(hangs.wait_limit(mitigation, "bound_the_wait"))

    hangs.wait_for_end(hangs.fork_to_all_reduce(hangs.blocking_rank(1), bounded))


hangs.repro(
    "HNG002",
    counted="ranks came through",
    changes={
        "bound_the_wait": "a limit of 2 s for what the rank waits for",
        "read_the_status": "no collective after an update that the server answered with an error",
    },
    needs=("torch",),
    simulated=("the trainer and what it asks: ranks of ours, and a server whose handler never answers",),
)


PAIR = hangs.RANK_NAMES[:2]


@hangs.trigger("HNG003", PAIR)
def update_beside_step(mitigation: str) -> None:
    """A thread broadcasts weights during the step's all_reduce: the order differs between the ranks."""
    import torch
    import torch.distributed as dist

    def rank_of(rank: int, port: int) -> None:
        hangs.join_gloo(rank, port, len(PAIR))
        local = dist.new_group() if mitigation == "own_group" else None
        dist.barrier()
        hangs.report_blocking_and_ready(PAIR[rank])
        update = threading.Timer(
            # Which of the two begins first is chance in a job; here the guilty rank's update does.
            0.0 if rank == hangs.blocking_rank(0) else 1.0,
            lambda: dist.broadcast(torch.ones(2), src=0, group=local),
        )
        if mitigation != "one_thread":
            update.start()
        time.sleep(0.5)
        dist.all_reduce(torch.ones(1))
        if mitigation == "one_thread":
            update.start()
        update.join()
        hangs.report("done", PAIR[rank])
        dist.barrier()

    hangs.run_ranks(len(PAIR), rank_of)


hangs.repro(
    "HNG003",
    counted="ranks came through",
    changes={"own_group": "a group of its own for the update", "one_thread": "the update after the step"},
    needs=("torch",),
    simulated=("the trainer: ranks of ours; which thread begins first is set, not left to chance",),
)


@hangs.trigger("HNG008", hangs.RANK_NAMES, ("wandb",))
def wandb_login(mitigation: str) -> None:
    """W&B has no key, and asks for one."""
    wandb = import_module("wandb")  # before the ranks are there: it takes long
    if mitigation == "no_question":
        os.environ["WANDB_MODE"] = "offline"

    def prompt() -> None:
        wandb.login()  # as init() does before a run

    _ask_on_terminal(prompt, mitigation)


@hangs.trigger("HNG008", hangs.RANK_NAMES)
def breakpoint_left(mitigation: str) -> None:
    """A breakpoint() was left in a reward: the debugger asks what to do."""
    if mitigation == "no_question":
        os.environ["PYTHONBREAKPOINT"] = "0"

    def prompt() -> None:
        breakpoint()  # noqa: T100 - it was left there
        os.getpid()  # the debugger stops at the next line

    _ask_on_terminal(prompt, mitigation)


def _ask_on_terminal(prompt: Callable[[], object], mitigation: str) -> None:
    """Let a rank prompt on an unattended terminal before the all_reduce."""
    policy, terminal = os.openpty()
    home = tempfile.mkdtemp(prefix="grpo-doctor-")
    os.environ.update(HOME=home, NETRC=f"{home}/netrc")

    def alone() -> None:
        if mitigation != "no_input":
            for descriptor in range(3):
                os.dup2(terminal, descriptor)
        sys.stdin = os.fdopen(0)
        sys.stdout = sys.stderr = os.fdopen(1, "w", buffering=1)
        with contextlib.suppress(Exception):
            prompt()

    hangs.wait_for_end(hangs.fork_to_all_reduce(hangs.blocking_rank(0), alone))
    os.close(policy)


hangs.repro(
    "HNG008",
    counted="ranks came through",
    changes={
        "no_question": "WANDB_MODE=offline; PYTHONBREAKPOINT=0",
        "no_input": "standard input is /dev/null",
    },
    needs=("torch",),
    simulated=("the trainer: ranks of ours; the terminal is one that we hold and do not read",),
)


DRIVER = ("the driver",)


@hangs.trigger("HNG015", hangs.RANK_NAMES, ("torch",))
def one_too_many(mitigation: str) -> None:
    """WORLD_SIZE is 3, and 2 ranks are started."""
    missing = hangs.blocking_rank(2)
    started = [rank for rank in range(hangs.RANKS) if rank != missing]

    def rank_of(rank: int, port: int) -> None:
        import torch.distributed as dist

        hangs.report("ready", hangs.RANK_NAMES[rank])
        if mitigation == "count_them":
            hangs.join_gloo(started.index(rank), port, len(started))
        else:
            hangs.join_gloo(rank, port, hangs.RANKS)
        hangs.report("done", hangs.RANK_NAMES[rank])
        dist.barrier()

    hangs.report("ready", hangs.RANK_NAMES[missing])
    hangs.report("done", hangs.RANK_NAMES[missing])  # the rank is missing: the others are stuck
    hangs.run_ranks(started, rank_of)


@hangs.trigger("HNG015", hangs.RANK_NAMES, ("torch",))
def other_port(mitigation: str) -> None:
    """A rank has another MASTER_PORT than the others, and waits for a store that no rank serves."""
    import torch.distributed as dist

    sample, wrong = hangs.blocking_rank(1), hangs.free_port()

    def rank_of(rank: int, port: int) -> None:
        if rank == sample:
            hangs.report_blocking_and_ready(hangs.RANK_NAMES[rank])
        hangs.join_gloo(rank, wrong if rank == sample and mitigation != "count_them" else port, hangs.RANKS)
        hangs.report("done", hangs.RANK_NAMES[rank])
        dist.barrier()

    hangs.run_ranks(hangs.RANKS, rank_of)


@hangs.trigger(
    "HNG015", DRIVER, ("torch", "ray"), "driver and workers: programs of ours, in a cluster of Ray's own"
)
def constructor_raised(mitigation: str) -> None:
    """Actors of Ray rendezvous in their constructors; one raised before it came to that, and is dead."""
    ray = hangs.start_ray(hangs.RANKS)
    port, sample = hangs.free_port(), hangs.blocking_rank(0)
    came = Path(tempfile.mkdtemp(prefix="grpo-doctor-"))

    class Worker:
        def __init__(self, rank: int) -> None:
            if mitigation != "meet_after":
                import_module("torch.distributed")  # report before joining, which takes long
            (came / str(rank)).touch()
            self.rank = rank
            if rank == sample:
                raise ValueError(rank)
            if mitigation != "meet_after":
                self.meet()

        def rank_of(self) -> int:
            return self.rank

        def meet(self) -> None:
            hangs.join_gloo(self.rank, port, hangs.RANKS)

    workers: list[Any] = [ray.remote(Worker).remote(rank) for rank in range(hangs.RANKS)]
    while len(list(came.iterdir())) < hangs.RANKS:
        time.sleep(0.2)
    hangs.report("ready", *DRIVER)
    # One after the other, as drivers do, and here in the order in which the error comes last.
    rest = [worker for rank, worker in enumerate(workers) if rank != sample]
    with contextlib.suppress(ray.exceptions.RayActorError):
        ray.get([item.rank_of.remote() for item in rest])
        ray.get(workers[sample].rank_of.remote())
        ray.get([item.meet.remote() for item in workers])
    hangs.report("done", *DRIVER)


hangs.repro(
    "HNG015",
    counted="processes met, or were told",
    changes={
        "count_them": "WORLD_SIZE is the number of ranks that are started, MASTER_PORT the same for all",
        "meet_after": "constructors first; the rendezvous when all of them have come through",
    },
    simulated=("the launcher: ranks of ours",),
)


if __name__ == "__main__":
    hangs.main()
