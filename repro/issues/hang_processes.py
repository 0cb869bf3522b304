"""Reproduce waits for a process that is stopped, dead or waiting itself, and for a message that never comes.

HNG004: stopped processes. HNG005: killed processes. HNG012: a full pipe. HNG013: processes that wait for each other.
HNG016: replies that never come. PyTorch, Ray and vLLM are unmodified. Each decorated function is a trigger; its name is
the trigger's name. Its argument is the mitigation to apply: `limit` (wait for 2 s at most), `continue_it` (send SIGCONT
after 2 s), `close_ends`, `read_first` or `one_direction`; "" for none.
"""

import contextlib
import multiprocessing
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from datetime import timedelta
from importlib import import_module
from typing import Any

from repro.drivers import hangs, served_engine


@hangs.trigger("HNG004", *hangs.RANK_NAMES)
def stopped(mitigation: str) -> None:
    """A rank gets SIGSTOP before the collective."""
    blocking = hangs.blocking_rank(1)
    children = hangs.fork_to_all_reduce(blocking, lambda: os.kill(os.getpid(), signal.SIGSTOP))
    os.waitpid(children[blocking], os.WUNTRACED)
    hangs.continue_later(children[blocking], mitigation)
    hangs.wait_for_end(children)


@hangs.trigger("HNG004")
def loader_stopped(mitigation: str) -> None:
    """A DataLoader worker gets SIGSTOP while it builds a batch."""
    from torch.utils.data import DataLoader

    def build_batch(items: list[int]) -> list[int]:
        hangs.report("blocking", "the worker")
        os.kill(os.getpid(), signal.SIGSTOP)
        return items

    indices: Any = [0]
    rows: Any = iter(DataLoader(indices, num_workers=1, collate_fn=build_batch))
    with hangs.report_wait():
        [worker] = multiprocessing.active_children()
        hangs.continue_later(worker.pid, mitigation)
        next(rows)


@hangs.ray_trigger("HNG004", "driver and worker: small programs")
def actor_stopped(mitigation: str) -> None:
    """A Ray actor gets SIGSTOP inside a method call; the driver waits in ray.get."""
    ray = hangs.start_ray(1)

    class Worker:
        def process(self) -> int:
            return os.getpid()

        def step(self) -> None:
            os.kill(os.getpid(), signal.SIGSTOP)

    worker = ray.remote(Worker).remote()
    pid = ray.get(worker.process.remote())
    hangs.report("blocking", "the worker", pid)
    with hangs.report_wait(hangs.DRIVER):
        hangs.continue_later(pid, mitigation)
        ray.get(worker.step.remote())


@hangs.trigger("HNG004", needs=("vllm",), simulated=served_engine.CLIENT_SIMULATED)
def engine_stopped(mitigation: str) -> None:
    """The worker of a real `vllm serve` gets SIGSTOP; then the trainer requests a completion."""
    engine, folder, port = served_engine.start()
    worker = served_engine.find_worker(engine.pid)
    os.kill(worker, signal.SIGSTOP)
    hangs.report("blocking", "the engine's worker", worker)
    with hangs.report_wait():
        hangs.continue_later(worker, mitigation)
        served_engine.request_completion(port, folder)


hangs.repro("HNG004", "the trainer: small processes; one stops itself", needs=("torch",))


@hangs.trigger("HNG005")
def pipe_left_open(mitigation: str) -> None:
    """A worker is killed; the trainer gets no EOF, because it has not closed its copy of the worker's end."""
    trainers_end, workers_end = multiprocessing.Pipe()
    if not os.fork():
        _kill_this_worker()
    if mitigation == "close_ends":
        workers_end.close()
    with hangs.report_wait(), contextlib.suppress(EOFError):
        if mitigation != "limit" or trainers_end.poll(hangs.LIMIT_S):
            trainers_end.recv()


@hangs.trigger("HNG005")
def lock_of_killed(mitigation: str) -> None:
    """A worker is killed while it holds a multiprocessing lock; the trainer waits for the lock."""
    context = multiprocessing.get_context("fork")
    lock, locked = context.Lock(), context.Event()
    if not os.fork():
        lock.acquire()
        locked.set()
        _kill_this_worker()
    locked.wait()
    with hangs.report_wait():
        lock.acquire(timeout=hangs.wait_limit(mitigation))


def _kill_this_worker() -> None:
    hangs.report("blocking", "the worker")
    os.kill(os.getpid(), signal.SIGKILL)


@hangs.trigger("HNG005", *hangs.RANK_NAMES, needs=("torch",))
def store_key_of_killed(mitigation: str) -> None:
    """A rank is killed before it has set its key in the TCPStore; the others wait for it."""
    from torch.distributed import DistStoreError, TCPStore

    limit = timedelta(seconds=hangs.LIMIT_S) if mitigation == "limit" else timedelta(hours=2)
    blocking = hangs.blocking_rank(1)
    host = (blocking + 1) % hangs.RANKS

    def run(rank: int, port: int) -> None:
        store = TCPStore("127.0.0.1", port, hangs.RANKS, rank == host)
        # The killed rank counts as done: only the others are stuck.
        with hangs.report_wait(hangs.RANK_NAMES[rank], blocking=rank == blocking):
            if rank != blocking:
                with contextlib.suppress(DistStoreError):
                    store.wait([f"rank {blocking} has its weights"], limit)
        if rank == blocking:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(1.0 if rank == host else 0.0)

    children = hangs.fork_ranks(range(hangs.RANKS), run)
    # Like a launcher that waits for its ranks in order.
    hangs.wait_for_end([*children[:blocking], *children[blocking + 1 :], children[blocking]])


hangs.repro("HNG005", "trainer and worker: small processes; the blocking one kills itself")


PARENT = "the parent"
PIPE_OVERFLOW = 1_000_000  # bytes; a pipe holds 64 KiB
_PROGRAM = f"import sys; sys.stdout.write('x' * {PIPE_OVERFLOW})"


@hangs.trigger("HNG012", PARENT)
def wait_before_read(mitigation: str) -> None:
    """A child fills its stdout pipe; the parent calls wait() before it reads the pipe."""
    with subprocess.Popen([sys.executable, "-c", _PROGRAM], stdout=subprocess.PIPE) as process:
        hangs.report("blocking", "the child", process.pid)
        with hangs.report_wait(PARENT, blocking=True):
            if mitigation == "read_first":
                process.communicate()
            else:
                process.wait()


@hangs.trigger("HNG012", PARENT)
def join_before_get(mitigation: str) -> None:
    """A parent joins a worker before it reads the worker's rollouts from a multiprocessing.Queue."""
    context = multiprocessing.get_context("fork")
    rollouts: Any = context.Queue()
    worker = context.Process(target=rollouts.put, args=("x" * PIPE_OVERFLOW,))
    worker.start()
    hangs.report("blocking", "the worker", worker.pid)
    with hangs.report_wait(PARENT, blocking=True):
        if mitigation == "read_first":
            rollouts.get()
        worker.join()


hangs.repro("HNG012", "the trainer and its child process: two small programs")


SERVER = "the server"


@hangs.trigger("HNG013", hangs.TRAINER, SERVER)
def answer_before_weights(mitigation: str) -> None:
    """Deadlock: the server answers only after it has the weights, the trainer sends them only after the answer."""
    to_server, to_trainer = os.pipe(), os.pipe()
    limit = hangs.wait_limit(mitigation)
    trainer = os.fork()
    if trainer == 0:
        with hangs.report_wait(blocking=True):
            if mitigation == "one_direction":
                os.write(to_server[1], b"w")
            if _wait_for_byte(to_trainer[0], limit) and mitigation != "one_direction":
                os.write(to_server[1], b"w")
        os._exit(0)
    with hangs.report_wait(SERVER, blocking=True):
        if _wait_for_byte(to_server[0], limit):
            os.write(to_trainer[1], b"a")
    os.waitpid(trainer, 0)


def _wait_for_byte(descriptor: int, limit: float | None) -> bool:
    """Wait for a byte; return False if the limit passed first."""
    readable, _, _ = select.select([descriptor], [], [], limit)
    return bool(readable) and bool(os.read(descriptor, 1))


@hangs.ray_trigger("HNG013", "trainer and collector: two small actors")
def actors(mitigation: str) -> None:
    """Two Ray actors wait for each other in ray.get: the trainer for rollouts, the collector for weights."""
    ray = hangs.start_ray(3)

    class Party:
        def process(self) -> int:
            return os.getpid()

        def meet(self, other: Any) -> None:
            reference = other.process.remote()
            if mitigation == "one_direction":
                return  # the answer is fetched later
            with contextlib.suppress(ray.exceptions.GetTimeoutError):
                ray.get(reference, timeout=hangs.wait_limit(mitigation))

    trainer, collector = (ray.remote(Party).remote() for _ in range(2))
    for actor, name in ((trainer, hangs.TRAINER), (collector, "the collector")):
        hangs.report("blocking", name, ray.get(actor.process.remote()))
    with hangs.report_wait(hangs.DRIVER):
        ray.get([trainer.meet.remote(collector), collector.meet.remote(trainer)])


hangs.repro("HNG013", "trainer and server: two small processes, and pipes for their connection")


ENGINE = "the engine core"


@hangs.trigger("HNG016")
def worker_gone(mitigation: str) -> None:
    """A worker of a multiprocessing.Pool exits in the middle of a task."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        pool.apply(int)  # wait until the worker runs
        with hangs.report_wait(blocking=True), contextlib.suppress(multiprocessing.TimeoutError):
            pool.apply_async(os._exit, (9,)).get(hangs.wait_limit(mitigation))


@hangs.trigger("HNG016")
def producer_raised(mitigation: str) -> None:
    """The thread that puts rollouts in a queue ends with an exception; the trainer waits for the next rollout."""
    rollouts: queue.Queue[float] = queue.Queue()
    producer = threading.Thread(target=lambda: rollouts.put(float("no number")))
    threading.excepthook = lambda _: None
    producer.start()
    producer.join()
    with hangs.report_wait(blocking=True), contextlib.suppress(queue.Empty):
        rollouts.get(timeout=hangs.wait_limit(mitigation))


@hangs.trigger("HNG016")
def pool_of_parent(mitigation: str) -> None:
    """A forked worker submits a task to its parent's thread pool; the threads do not exist after a fork."""
    pool = ThreadPoolExecutor(1)
    pool.submit(int).result()
    worker = os.fork()
    if not worker:
        hangs.report("blocking", "the worker")
        with contextlib.suppress(FutureTimeoutError):
            pool.submit(int).result(hangs.wait_limit(mitigation))
        os._exit(0)
    with hangs.report_wait():
        os.waitpid(worker, 0)


@hangs.trigger(
    "HNG016",
    ENGINE,
    needs=("vllm",),
    simulated="engine core and worker: two small processes, on vLLM's own queues",
)
def reply_lost(mitigation: str) -> None:
    """An engine core calls a worker over vLLM's own message queues; the worker takes the call and never replies."""
    queues: Any = import_module("vllm.distributed.device_communicators.shm_broadcast").MessageQueue
    cores_end, workers_end = multiprocessing.Pipe()
    # In vLLM, too, the writer of a ring buffer creates it.
    if not os.fork():
        calls, replies = queues.create_from_handle(workers_end.recv(), 0), queues(1, 1)
        workers_end.send(replies.export_handle())
        calls.wait_until_ready()
        replies.wait_until_ready()
        hangs.report("blocking", "the worker")
        while True:
            calls.dequeue(indefinite=True)
    calls = queues(1, 1)
    cores_end.send(calls.export_handle())
    replies = queues.create_from_handle(cores_end.recv(), 0)
    calls.wait_until_ready()
    replies.wait_until_ready()
    with hangs.report_wait(ENGINE), contextlib.suppress(TimeoutError):
        calls.enqueue("execute_model")
        limit = hangs.wait_limit(mitigation)
        replies.dequeue(timeout=limit, **({} if mitigation else {"indefinite": True}))


@hangs.ray_trigger("HNG016", "the driver: a small program")
def group_pending(mitigation: str) -> None:
    """A placement group requests more CPUs than the cluster has, and the driver waits for it."""
    ray = hangs.start_ray(1)
    placement = import_module("ray.util.placement_group")
    with hangs.report_wait(hangs.DRIVER, blocking=True), contextlib.suppress(ray.exceptions.GetTimeoutError):
        group = placement.placement_group([{"CPU": 8}])
        ray.get(group.ready(), timeout=hangs.wait_limit(mitigation))


hangs.repro("HNG016", "the trainer and its workers: small processes and threads")


if __name__ == "__main__":
    hangs.main()
