"""Reproduce hangs in collectives or at the rendezvous, in real processes: PyTorch over gloo, vLLM, Ray and W&B.

HNG001: the ranks call different collectives. HNG002: a rank waits for a server, a data loader or a thread, or the
engine's weight update failed. HNG003: two threads of a rank call collectives. HNG008: a rank waits for keyboard input.
HNG015: a rank is missing at the rendezvous. Each decorated function is a trigger; its name is the trigger's name, and
its argument the name of a mitigation to apply, or "".
"""

import contextlib
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
from typing import Any

from repro.drivers import hangs, served_engine

Collective = Callable[[], object]


@hangs.trigger("HNG001", *hangs.RANK_NAMES)
def gather_on_main(mitigation: str) -> None:
    """The main rank alone gathers, to log; the others go on to the barrier."""
    _one_rank_diverges(hangs.blocking_rank(0), mitigation, _prepare_gather)


@hangs.trigger("HNG001", *hangs.RANK_NAMES)
def gather_skipped(mitigation: str) -> None:
    """A rank without completions leaves the gather out."""
    _one_rank_diverges(hangs.blocking_rank(1), mitigation, _prepare_gather, skips=True)


@hangs.trigger("HNG001", *hangs.RANK_NAMES)
def full_tensor_on_main(mitigation: str) -> None:
    """The main rank alone calls full_tensor() of a sharded DTensor, to log a norm; the others go on to the barrier."""
    import_module("torch.distributed.tensor")  # imported once, before the fork
    _one_rank_diverges(hangs.blocking_rank(0), mitigation, _prepare_full_tensor)


@hangs.trigger("HNG001", *hangs.RANK_NAMES)
def state_dict_on_main(mitigation: str) -> None:
    """The main rank alone gets the full state dict of an FSDP2 model, to save it; the others go on to the barrier."""
    import_module("torch.distributed.checkpoint.state_dict")
    import_module("torch.distributed.fsdp")
    _one_rank_diverges(hangs.blocking_rank(0), mitigation, _prepare_state_dict)


def _prepare_gather() -> Collective:
    """Return a function that gathers a tensor on all ranks."""
    import torch
    import torch.distributed as dist

    return lambda: dist.all_gather([torch.zeros(4) for _ in range(hangs.RANKS)], torch.zeros(4))


def _prepare_full_tensor() -> Collective:
    """Return a function that gathers a sharded DTensor."""
    import torch
    from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

    mesh = init_device_mesh("cpu", (hangs.RANKS,))
    sharded: Any = distribute_tensor(torch.ones(hangs.RANKS, 2), mesh, [Shard(0)])
    full_tensor: Collective = sharded.full_tensor
    return full_tensor


def _prepare_state_dict() -> Collective:
    """Return a function that gathers the state dict of an FSDP2 model."""
    import torch
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import init_device_mesh

    model = torch.nn.Linear(hangs.RANKS, hangs.RANKS)
    fully_shard(model, mesh=init_device_mesh("cpu", (hangs.RANKS,)))
    return lambda: get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))


def _one_rank_diverges(
    blocking: int, mitigation: str, prepare: Callable[[], Collective], *, skips: bool = False
) -> None:
    """Fork ranks; only the `blocking` rank calls the collective that `prepare` returns, or, with `skips`, omits it."""
    import torch
    import torch.distributed as dist

    def run(rank: int, port: int) -> None:
        hangs.join_gloo(rank, port, hangs.RANKS)
        collective = prepare()
        dist.barrier()
        with hangs.report_wait(hangs.RANK_NAMES[rank], blocking=rank == blocking):
            calls = (rank == blocking) != skips
            if mitigation == "every_rank":
                calls = True
            elif mitigation == "decide_together":
                flag = torch.tensor(float(calls))
                dist.all_reduce(flag, op=dist.ReduceOp.MAX)
                calls = bool(flag)
            if calls:
                collective()
            dist.barrier()
        dist.barrier()  # a rank that exits would close the others' connections

    hangs.wait_for_end(hangs.fork_ranks(range(hangs.RANKS), run))


hangs.repro("HNG001", "the trainer: forked ranks call the collectives that its step calls", needs=("torch",))


THIS_MODULE = "repro.issues.hang_collectives"  # the engine's worker imports it by name
# NCCL's broadcast has no time limit; vLLM's barrier would end after 30 s.
LONG_S = 3600.0


@hangs.trigger("HNG002", *hangs.RANK_NAMES)
def answer_missing(mitigation: str) -> None:
    """A rank requests a reward from a server that never answers; the others are in all_reduce."""
    port = hangs.start_silent_server()
    _delay_all_reduce(lambda limit: served_engine.request_status(port, "/reward", limit), mitigation)


@hangs.trigger("HNG002", *hangs.RANK_NAMES)
def batch_missing(mitigation: str) -> None:
    """A worker of a rank's DataLoader waits for a download that never ends; the others are in all_reduce."""
    port = hangs.start_silent_server()

    def load(limit: float | None) -> None:
        from torch.utils.data import DataLoader

        def build_batch(_: list[int]) -> int:
            return served_engine.request_status(port, "/row")

        indices: Any = [0]
        next(iter(DataLoader(indices, num_workers=1, timeout=limit or 0, collate_fn=build_batch)))

    _delay_all_reduce(load, mitigation)


@hangs.trigger("HNG002", *hangs.RANK_NAMES)
def thread_at_exit(mitigation: str) -> None:
    """A rank joins its logger's thread, as at the exit after an exception; the thread waits for a record."""
    records: queue.Queue[str] = queue.Queue()

    def leave(limit: float | None) -> None:
        logger = threading.Thread(target=lambda: records.get(timeout=limit), name="logger")
        logger.start()
        # After an exception in the main thread the interpreter joins all non-daemon threads.
        logger.join()

    _delay_all_reduce(leave, mitigation)


class Receiver:
    """A worker extension like those of trainers: it joins the trainer's process group and receives weights."""

    group: Any = None

    def join(self, port: int) -> None:
        """Join the trainer's process group."""
        self.group = _join_group(port, 1)

    def receive(self, name: str) -> None:
        """Enter the collective for a parameter of the model; raise KeyError before it if there is no such parameter."""
        worker: Any = self
        dict(worker.model_runner.model.named_parameters())[name]
        self.group.barrier(timeout=LONG_S)


def _join_group(port: int, rank: int) -> Any:
    utils = import_module("vllm.distributed.utils")
    return utils.StatelessProcessGroup.create("127.0.0.1", port, rank, 2)


@hangs.trigger(
    "HNG002",
    needs=("vllm",),
    simulated="the trainer: an HTTP client; the model is tiny, and NCCL's broadcast a barrier of vLLM's own",
)
def update_failed(mitigation: str) -> None:
    """A real `vllm serve` fails in a weight update; its answer is not read, and the trainer waits in the collective."""
    engine, _, port = served_engine.start(f"--worker-extension-cls={THIS_MODULE}.Receiver")
    group_port = hangs.free_port()

    def call_worker(method: str, argument: object) -> int:
        document = {"method": method, "args": [argument]}
        return served_engine.request_status(port, "/collective_rpc", document=document)

    join = threading.Thread(target=call_worker, args=("join", group_port))
    join.start()
    group = _join_group(group_port, 0)
    join.join()
    hangs.report("blocking", "the engine's worker", served_engine.find_worker(engine.pid))
    with hangs.report_wait():
        status = call_worker("receive", "a parameter of another model")
        if mitigation != "read_the_status" or status == HTTPStatus.OK:
            group.barrier(timeout=LONG_S)


def _delay_all_reduce(wait: Callable[[float | None], object], mitigation: str) -> None:
    """Let one rank wait before an all_reduce; with the mitigation `bound_the_wait` the rank gives up after 2 s."""

    def wait_or_give_up() -> None:
        with contextlib.suppress(TimeoutError, RuntimeError):
            wait(hangs.wait_limit(mitigation, "bound_the_wait"))

    hangs.wait_for_end(hangs.fork_to_all_reduce(hangs.blocking_rank(1), wait_or_give_up))


hangs.repro(
    "HNG002",
    "the trainer and its services: forked ranks, and a server whose handler never answers",
    needs=("torch",),
)


PAIR = hangs.RANK_NAMES[:2]


@hangs.trigger("HNG003", *PAIR)
def update_beside_step(mitigation: str) -> None:
    """A thread broadcasts weights during the step's all_reduce: the order differs between the ranks."""
    import torch
    import torch.distributed as dist

    def run(rank: int, port: int) -> None:
        hangs.join_gloo(rank, port, len(PAIR))
        group = dist.new_group() if mitigation == "own_group" else None
        dist.barrier()
        with hangs.report_wait(PAIR[rank], blocking=True):
            update = threading.Timer(
                # In a job the order of the two calls is random; here the update of the blocking rank is first.
                0.0 if rank == hangs.blocking_rank(0) else 1.0,
                lambda: dist.broadcast(torch.ones(2), src=0, group=group),
            )
            if mitigation != "one_thread":
                update.start()
            time.sleep(0.5)
            dist.all_reduce(torch.ones(1))
            if mitigation == "one_thread":
                update.start()
            update.join()
        dist.barrier()

    hangs.wait_for_end(hangs.fork_ranks(range(len(PAIR)), run))


hangs.repro(
    "HNG003",
    "the trainer: forked ranks; which thread begins first is set, not left to chance",
    needs=("torch",),
)


@hangs.trigger("HNG008", *hangs.RANK_NAMES, needs=("wandb",))
def wandb_login(mitigation: str) -> None:
    """W&B has no API key, and prompts for one."""
    wandb = import_module("wandb")  # slow, so before the ranks start
    if mitigation == "no_question":
        os.environ["WANDB_MODE"] = "offline"
    _prompt_on_terminal(wandb.login, mitigation)  # as init() does before a run


@hangs.trigger("HNG008", *hangs.RANK_NAMES)
def breakpoint_left(mitigation: str) -> None:
    """A breakpoint() was left in a reward: the debugger prompts for a command."""
    if mitigation == "no_question":
        os.environ["PYTHONBREAKPOINT"] = "0"

    def stop() -> None:
        breakpoint()  # noqa: T100 - it was left there
        os.getpid()  # the debugger stops at the next line

    _prompt_on_terminal(stop, mitigation)


def _prompt_on_terminal(prompt: Callable[[], object], mitigation: str) -> None:
    """Let a rank call `prompt` on a terminal that nobody reads, before the all_reduce of all ranks."""
    controller, terminal = os.openpty()
    home = tempfile.mkdtemp(prefix="grpo-doctor-")
    os.environ.update(HOME=home, NETRC=f"{home}/netrc")

    def prompt_or_fail() -> None:
        if mitigation != "no_input":
            for descriptor in range(3):
                os.dup2(terminal, descriptor)
        sys.stdin = os.fdopen(0)
        sys.stdout = sys.stderr = os.fdopen(1, "w", buffering=1)
        with contextlib.suppress(Exception):
            prompt()

    hangs.wait_for_end(hangs.fork_to_all_reduce(hangs.blocking_rank(0), prompt_or_fail))
    os.close(controller)


hangs.repro(
    "HNG008",
    "the trainer: forked ranks; the terminal is a pseudo-terminal that nobody reads",
    needs=("torch",),
)


@hangs.trigger("HNG015", *hangs.RANK_NAMES, needs=("torch",))
def one_too_many(mitigation: str) -> None:
    """A rank is missing: WORLD_SIZE is 3, and only 2 ranks are started."""
    import torch.distributed as dist

    missing = hangs.blocking_rank(2)
    started = [rank for rank in range(hangs.RANKS) if rank != missing]

    def run(rank: int, port: int) -> None:
        with hangs.report_wait(hangs.RANK_NAMES[rank]):
            if mitigation == "count_them":
                hangs.join_gloo(started.index(rank), port, len(started))
            else:
                hangs.join_gloo(rank, port, hangs.RANKS)
        dist.barrier()

    with hangs.report_wait(hangs.RANK_NAMES[missing]):
        pass  # the missing rank counts as done: only the others are stuck
    hangs.wait_for_end(hangs.fork_ranks(started, run))


@hangs.trigger("HNG015", *hangs.RANK_NAMES, needs=("torch",))
def other_port(mitigation: str) -> None:
    """A rank has another MASTER_PORT than the others, and waits for a store that does not exist."""
    import torch.distributed as dist

    blocking, other_port = hangs.blocking_rank(1), hangs.free_port()

    def run(rank: int, port: int) -> None:
        wrong = rank == blocking and mitigation != "count_them"
        with hangs.report_wait(hangs.RANK_NAMES[rank], blocking=rank == blocking):
            hangs.join_gloo(rank, other_port if wrong else port, hangs.RANKS)
        dist.barrier()

    hangs.wait_for_end(hangs.fork_ranks(range(hangs.RANKS), run))


@hangs.ray_trigger("HNG015", "driver and workers: small programs", "torch")
def constructor_raised(mitigation: str) -> None:
    """Actors of Ray rendezvous in their constructors; one actor raised before its rendezvous, and is dead."""
    ray = hangs.start_ray(hangs.RANKS)
    port, blocking = hangs.free_port(), hangs.blocking_rank(0)
    started = Path(tempfile.mkdtemp(prefix="grpo-doctor-"))

    class Worker:
        def __init__(self, rank: int) -> None:
            if mitigation != "meet_after":
                import_module("torch.distributed")  # slow, so before the worker counts as started
            (started / str(rank)).touch()
            self.rank = rank
            if rank == blocking:
                raise ValueError(rank)
            if mitigation != "meet_after":
                self.meet()

        def rank_of(self) -> int:
            return self.rank

        def meet(self) -> None:
            hangs.join_gloo(self.rank, port, hangs.RANKS)

    workers: list[Any] = [ray.remote(Worker).remote(rank) for rank in range(hangs.RANKS)]
    while len(list(started.iterdir())) < hangs.RANKS:
        time.sleep(0.2)
    # Like a driver, this one asks the actors one after the other, the actor that failed last.
    waiting = [worker for rank, worker in enumerate(workers) if rank != blocking]
    with hangs.report_wait(hangs.DRIVER), contextlib.suppress(ray.exceptions.RayActorError):
        ray.get([worker.rank_of.remote() for worker in waiting])
        ray.get(workers[blocking].rank_of.remote())
        ray.get([worker.meet.remote() for worker in workers])


hangs.repro("HNG015", "the launcher: forked ranks")


if __name__ == "__main__":
    hangs.main()
