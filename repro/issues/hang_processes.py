"""Repros of hangs on a process that is stopped, dead or does not read, and on messages that are never sent."""

from __future__ import annotations

import contextlib
import os
import queue
import selectors
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as LateError
from datetime import timedelta
from importlib import import_module
from typing import Any, cast

from repro.drivers import hangs, served_engine


@hangs.trigger("HNG004", hangs.RANK_NAMES)
def stopped(mitigation: str) -> None:
    """A rank gets SIGSTOP before the collective."""
    children = hangs.fork_to_all_reduce(hangs.blocking_rank(1), lambda: os.kill(os.getpid(), signal.SIGSTOP))
    _continued(children[hangs.blocking_rank(1)], mitigation)
    for child in children:
        os.waitpid(child, 0)


@hangs.trigger("HNG004", ("the trainer",))
def loader_stopped(mitigation: str) -> None:
    """The worker of a DataLoader is stopped within its batch."""
    import multiprocessing

    from torch.utils.data import DataLoader

    class Rows:
        def __len__(self) -> int:
            return 1

        def __getitem__(self, item: int) -> int:
            hangs.report("guilty", "the worker")
            os.kill(os.getpid(), signal.SIGSTOP)
            return item

    loader: Any = DataLoader(cast("Any", Rows()), num_workers=1)
    rows: Any = iter(loader)
    hangs.report("ready", "the trainer")
    if mitigation == "continue_it":
        [worker] = multiprocessing.active_children()
        threading.Timer(2.0, os.kill, (worker.pid, signal.SIGCONT)).start()
    next(rows)
    hangs.report("done", "the trainer")


@hangs.trigger(
    "HNG004", ("the driver",), ("ray",), "driver and worker: programs of ours, in a cluster of Ray's own"
)
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
    hangs.report("guilty", "the worker", pid)
    hangs.report("ready", "the driver")
    if mitigation == "continue_it":
        threading.Timer(2.0, os.kill, (pid, signal.SIGCONT)).start()
    ray.get(worker.step.remote())
    hangs.report("done", "the driver")


@hangs.trigger("HNG004", ("the trainer",), ("vllm",), "the trainer: a client of ours; the model is tiny")
def engine_stopped(mitigation: str) -> None:
    """The worker of a real `vllm serve` is stopped, and the trainer asks for a completion."""
    engine, folder, port = served_engine.start()
    worker = served_engine.worker(engine.pid)
    os.kill(worker, signal.SIGSTOP)
    hangs.report("guilty", "the engine's worker", worker)
    hangs.report("ready", "the trainer")
    if mitigation == "continue_it":
        threading.Timer(2.0, os.kill, (worker, signal.SIGCONT)).start()
    served_engine.request_status(port, "/v1/completions", None, {"model": folder} | served_engine.ASKED)
    hangs.report("done", "the trainer")


def _continued(child: int, mitigation: str) -> None:
    os.waitpid(child, os.WUNTRACED)
    if mitigation == "continue_it":
        time.sleep(1.0)
        os.kill(child, signal.SIGCONT)


hangs.repro(
    "HNG004",
    counted="processes came through",
    changes={"continue_it": "kill -CONT after a second or two"},
    needs=("torch",),
    simulated=("the trainer: processes of ours; the guilty one stops itself",),
)


@hangs.trigger("HNG005", hangs.TRAINER)
def pipe_left_open(mitigation: str) -> None:
    """A worker is killed; its trainer has the worker's end of the pipe open itself, and waits for a message."""
    import multiprocessing

    mine, its = multiprocessing.Pipe()
    worker = os.fork()
    if not worker:
        hangs.report("guilty", "the worker")
        os.kill(os.getpid(), signal.SIGKILL)
    if mitigation == "close_ends":
        its.close()
    hangs.report("ready", *hangs.TRAINER)
    with contextlib.suppress(EOFError):
        if mitigation != "limit" or mine.poll(hangs.LIMIT_S):
            mine.recv()
    hangs.report("done", *hangs.TRAINER)


@hangs.trigger("HNG005", hangs.TRAINER)
def lock_of_killed(mitigation: str) -> None:
    """A worker is killed while it holds a lock that processes share; the trainer wants it."""
    import multiprocessing

    context = multiprocessing.get_context("fork")
    lock, calls = context.Lock(), context.Event()
    if not os.fork():
        lock.acquire()
        hangs.report("guilty", "the worker")
        calls.set()
        os.kill(os.getpid(), signal.SIGKILL)
    calls.wait()
    hangs.report("ready", *hangs.TRAINER)
    lock.acquire(timeout=hangs.wait_limit(mitigation))
    hangs.report("done", *hangs.TRAINER)


@hangs.trigger("HNG005", hangs.RANK_NAMES, ("torch",))
def store_key_of_killed(mitigation: str) -> None:
    """A rank is killed before it has set its key in the TCPStore; the others wait for it."""
    from torch.distributed import DistStoreError, TCPStore

    limit = timedelta(seconds=hangs.LIMIT_S) if mitigation == "limit" else timedelta(hours=2)

    def rank_of(rank: int, port: int) -> None:
        sample = hangs.blocking_rank(1)
        host = (sample + 1) % hangs.RANKS
        store = TCPStore("127.0.0.1", port, hangs.RANKS, rank == host)
        if rank == sample:
            hangs.report("ready", hangs.RANK_NAMES[rank])
            hangs.report("guilty", hangs.RANK_NAMES[rank])
            hangs.report("done", hangs.RANK_NAMES[rank])  # this is not the stuck one
            os.kill(os.getpid(), signal.SIGKILL)
        hangs.report("ready", hangs.RANK_NAMES[rank])
        with contextlib.suppress(DistStoreError):
            store.wait([f"rank {sample} has its weights"], limit)
        hangs.report("done", hangs.RANK_NAMES[rank])
        time.sleep(1.0 if rank == host else 0.0)

    children = hangs.fork_ranks(hangs.RANKS, rank_of)
    # Like a launcher that waits for its ranks in order.
    for rank in sorted(range(hangs.RANKS), key=lambda rank: rank == hangs.blocking_rank(1)):
        os.waitpid(children[rank], 0)


hangs.repro(
    "HNG005",
    counted="processes went on",
    changes={
        "close_ends": "the trainer closes the end that is the worker's",
        "limit": "a limit of 2 s on the wait",
    },
    untried={"find_why": "it looks for the cause and changes nothing"},
    simulated=("trainer and worker: processes of ours; the guilty one kills itself",),
)


PARENT = ("the parent",)


# More than a pipe holds.
MANY = 1_000_000


_PROGRAM = f"import sys; sys.stdout.write('x' * {MANY})"


@hangs.trigger("HNG012", PARENT)
def wait_before_read(mitigation: str) -> None:
    """A child's output goes to a pipe; its parent calls wait() first."""
    hangs.report("guilty", PARENT[0])
    with subprocess.Popen([sys.executable, "-c", _PROGRAM], stdout=subprocess.PIPE) as process:
        hangs.report("guilty", "the child", process.pid)
        hangs.report("ready", PARENT[0])
        if mitigation == "read_first":
            process.communicate()
        else:
            process.wait()
    hangs.report("done", PARENT[0])


@hangs.trigger("HNG012", PARENT)
def join_before_get(mitigation: str) -> None:
    """A worker puts its rollouts in a queue of multiprocessing; the parent joins it before it has taken them."""
    import multiprocessing

    context = multiprocessing.get_context("fork")
    rollouts: Any = context.Queue()
    worker = context.Process(target=rollouts.put, args=("x" * MANY,))
    worker.start()
    hangs.report("guilty", PARENT[0])
    hangs.report("guilty", "the worker", worker.pid)
    hangs.report("ready", PARENT[0])
    if mitigation == "read_first":
        rollouts.get()
    worker.join()
    hangs.report("done", PARENT[0])


hangs.repro(
    "HNG012",
    counted="parents went on",
    changes={"read_first": "read while waiting, or before"},
    simulated=("the trainer and what it starts: two programs of ours",),
)


PARTIES = ("the trainer", "the server")


@hangs.trigger("HNG013", PARTIES)
def answer_before_weights(mitigation: str) -> None:
    """The server answers when it has the weights; the trainer sends them when it has the answer."""
    to_server, to_trainer = os.pipe(), os.pipe()
    limit = hangs.wait_limit(mitigation)
    trainer = os.fork()
    if trainer == 0:
        hangs.report_blocking_and_ready(PARTIES[0])
        if mitigation == "one_direction":
            os.write(to_server[1], b"w")
        if _wait_for_byte(to_trainer[0], limit) and mitigation != "one_direction":
            os.write(to_server[1], b"w")
        hangs.report("done", PARTIES[0])
        os._exit(0)
    hangs.report_blocking_and_ready(PARTIES[1])
    if _wait_for_byte(to_server[0], limit):
        os.write(to_trainer[1], b"a")
    hangs.report("done", PARTIES[1])
    os.waitpid(trainer, 0)


def _wait_for_byte(descriptor: int, limit: float | None) -> bool:
    """Wait for a byte; False where the limit passed first."""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        return bool(selector.select(limit)) and bool(os.read(descriptor, 1))


@hangs.trigger(
    "HNG013",
    ("the driver",),
    ("ray",),
    "trainer and collector: two actors of ours, in a cluster of Ray's own",
)
def actors(mitigation: str) -> None:
    """Two actors of Ray wait in ray.get for each other: a trainer for its collector's rollouts, that for weights."""
    ray = hangs.start_ray(3)

    class Party:
        def process(self) -> int:
            return os.getpid()

        def meet(self, other: Any) -> None:
            requests = other.process.remote()
            if mitigation == "one_direction":
                return  # the answer is fetched later
            with contextlib.suppress(ray.exceptions.GetTimeoutError):
                ray.get(requests, timeout=hangs.wait_limit(mitigation))

    trainer, collector = (ray.remote(Party).remote() for _ in range(2))
    for item, name in ((trainer, "the trainer"), (collector, "the collector")):
        hangs.report("guilty", name, ray.get(item.process.remote()))
    hangs.report("ready", "the driver")
    ray.get([trainer.meet.remote(collector), collector.meet.remote(trainer)])
    hangs.report("done", "the driver")


hangs.repro(
    "HNG013",
    counted="processes went on",
    changes={
        "one_direction": "one of them fetches the answer later",
        "limit": "a limit of 2 s on each wait: both go on, with an error",
    },
    simulated=("trainer and server: two processes of ours, and pipes for their connection",),
)


ENGINE = ("the engine core",)


@hangs.trigger("HNG016", hangs.TRAINER)
def worker_gone(mitigation: str) -> None:
    """The worker of a multiprocessing.Pool ends within its task."""
    import multiprocessing

    with multiprocessing.get_context("spawn").Pool(1) as pool:
        pool.apply(int)  # the worker is there
        hangs.report_blocking_and_ready(*hangs.TRAINER)
        task = pool.apply_async(os._exit, (9,))
        # With a limit: an error that names the wait, in place of a hang.
        with contextlib.suppress(multiprocessing.TimeoutError):
            task.get(_limit(mitigation))
        hangs.report("done", *hangs.TRAINER)


@hangs.trigger("HNG016", hangs.TRAINER)
def producer_raised(mitigation: str) -> None:
    """The thread that fills a queue with rollouts raised; the trainer waits for the next one."""
    rollouts: queue.Queue[float] = queue.Queue()
    producer = threading.Thread(target=lambda: rollouts.put(float("no number")))
    threading.excepthook = lambda _: None
    producer.start()
    producer.join()
    hangs.report_blocking_and_ready(*hangs.TRAINER)
    with contextlib.suppress(queue.Empty):
        rollouts.get(timeout=_limit(mitigation))
    hangs.report("done", *hangs.TRAINER)


@hangs.trigger("HNG016", hangs.TRAINER)
def pool_of_parent(mitigation: str) -> None:
    """A forked worker submits to its parent's pool of threads: the threads were not forked with it."""
    pool = ThreadPoolExecutor(1)
    pool.submit(int).result()
    worker = os.fork()
    if not worker:
        hangs.report("guilty", "the worker")
        with contextlib.suppress(LateError):
            pool.submit(int).result(_limit(mitigation))
        os._exit(0)
    hangs.report("ready", *hangs.TRAINER)
    os.waitpid(worker, 0)
    hangs.report("done", *hangs.TRAINER)


@hangs.trigger(
    "HNG016", ENGINE, ("vllm",), "engine core and worker: two processes of ours, on vLLM's own queues"
)
def reply_lost(mitigation: str) -> None:
    """Over vLLM's own message queues an engine core calls a worker, which takes the call and loses its reply."""
    import multiprocessing

    queues: Any = import_module("vllm.distributed.device_communicators.shm_broadcast").MessageQueue
    near_end, far_end = multiprocessing.Pipe()
    # Each side makes the ring that it writes to, as vLLM's do.
    if not os.fork():
        acquired, replies = queues.create_from_handle(far_end.recv(), 0), queues(1, 1)
        far_end.send(replies.export_handle())
        acquired.wait_until_ready()
        replies.wait_until_ready()
        hangs.report("guilty", "the worker")
        while True:
            acquired.dequeue(indefinite=True)
    calls = queues(1, 1)
    near_end.send(calls.export_handle())
    answers = queues.create_from_handle(near_end.recv(), 0)
    calls.wait_until_ready()
    answers.wait_until_ready()
    hangs.report("ready", *ENGINE)
    calls.enqueue("execute_model")
    with contextlib.suppress(TimeoutError):
        answers.dequeue(timeout=_limit(mitigation), **({} if mitigation else {"indefinite": True}))
    hangs.report("done", *ENGINE)


@hangs.trigger(
    "HNG016", ("the driver",), ("ray",), "the driver: a program of ours, in a cluster of Ray's own"
)
def group_pending(mitigation: str) -> None:
    """A placement group asks for more processors than the cluster has, and the driver waits for it."""
    ray = hangs.start_ray(1)
    placement = import_module("ray.util.placement_group")
    hangs.report_blocking_and_ready("the driver")
    group = placement.placement_group([{"CPU": 8}])
    with contextlib.suppress(ray.exceptions.GetTimeoutError):
        ray.get(group.ready(), timeout=_limit(mitigation))
    hangs.report("done", "the driver")


def _limit(mitigation: str) -> float | None:
    return hangs.wait_limit(mitigation)


hangs.repro(
    "HNG016",
    counted="processes went on",
    changes={"limit": "a limit of 2 s on the wait"},
    untried={"look_at_the_sender": "it looks for the cause and changes nothing"},
    simulated=("the trainer and what it waits for: processes and threads of ours",),
)


if __name__ == "__main__":
    hangs.main()
