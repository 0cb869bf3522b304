"""Repros of hangs on locks, lock files, full pools and rewards that never finish."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from repro.drivers import hangs

THREADS = ("the trainer's thread", "the publisher's thread")


@hangs.trigger("HNG006", THREADS)
def two_orders(mitigation: str) -> None:
    """One thread takes the model's lock first, the other the engine's."""
    model, engine = threading.Lock(), threading.Lock()
    both = threading.Barrier(2)

    def work(name: str, first: threading.Lock, second: threading.Lock) -> None:
        hangs.report_blocking_and_ready(name)
        both.wait()
        with first:
            if mitigation != "one_order":
                both.wait()
            with second:
                hangs.report("done", name)

    orders = [(model, engine), (model, engine) if mitigation == "one_order" else (engine, model)]
    threads = [
        threading.Thread(target=work, args=(name, *order))
        for name, order in zip(THREADS, orders, strict=True)
    ]
    for item in threads:
        item.start()
    for item in threads:
        item.join()


@hangs.trigger("HNG006", hangs.TRAINER)
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
    hangs.report_blocking_and_ready(*hangs.TRAINER)
    with lock:
        hangs.report("done", *hangs.TRAINER)


@hangs.trigger("HNG006", hangs.TRAINER)
def fork_with_lock(mitigation: str) -> None:
    """A worker is forked while a thread holds a lock: no thread of the worker releases it, and join() never ends."""
    import multiprocessing

    threading.Thread(target=_hold_lock, daemon=True).start()
    time.sleep(0.5)
    method = "spawn" if mitigation == "spawn" else "fork"
    # A type that both kinds of context have.
    worker = multiprocessing.get_context(method).Process(target=_work)  # type: ignore[attr-defined]
    worker.start()
    hangs.report("guilty", "the worker", worker.pid)
    hangs.report("ready", *hangs.TRAINER)
    worker.join()
    hangs.report("done", *hangs.TRAINER)


_TABLE = threading.Lock()


def _hold_lock() -> None:
    with _TABLE:
        time.sleep(4.0)


def _work() -> None:
    with _TABLE:
        os._exit(0)


hangs.repro(
    "HNG006",
    counted="threads or processes came through",
    changes={
        "one_order": "both take the model's lock first",
        "with_statement": "the lock is held by `with`",
        "spawn": "the worker is spawned, not forked",
    },
    simulated=("trainer, publisher and worker: threads and processes of ours; when they meet is set",),
)


LOCKER = ("the process that wants the lock",)


@hangs.trigger("HNG007", LOCKER, ("filelock",))
def holder_stopped(mitigation: str) -> None:
    """The holder is stopped while it compiles."""
    from filelock import FileLock

    folder = tempfile.mkdtemp(prefix="grpo-doctor-")
    calls, tell = os.pipe()
    holder = os.fork()
    if not holder:
        with FileLock(f"{folder}/kernel.lock"):
            hangs.report("guilty", "the holder")
            os.write(tell, b"x")
            os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(0)
    os.read(calls, 1)
    if mitigation == "free_it":
        os.kill(holder, signal.SIGKILL)
    hangs.report("ready", LOCKER[0])
    # A separate cache has a separate lock.
    place = tempfile.mkdtemp(prefix="grpo-doctor-") if mitigation == "local_cache" else folder
    with FileLock(f"{place}/kernel.lock"):
        hangs.report("done", LOCKER[0])


@hangs.trigger("HNG007", LOCKER, ("torch",))
def baton_left(mitigation: str) -> None:
    """A killed build of a PyTorch extension left its lock file: the next process waits until it is removed."""
    from torch.utils.file_baton import FileBaton

    folder = tempfile.mkdtemp(prefix="grpo-doctor-")
    compiler = os.fork()
    if not compiler:
        FileBaton(f"{folder}/lock").try_acquire()
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(compiler, 0)
    if mitigation == "free_it":
        Path(folder, "lock").unlink()
    place = tempfile.mkdtemp(prefix="grpo-doctor-") if mitigation == "local_cache" else folder
    hangs.report("guilty", LOCKER[0])  # the owner is dead: only this process is stuck
    hangs.report("ready", LOCKER[0])
    baton = FileBaton(f"{place}/lock")
    if not baton.try_acquire():
        baton.wait()
    hangs.report("done", LOCKER[0])


hangs.repro(
    "HNG007",
    counted="processes got the lock",
    changes={
        "free_it": "end the holder, remove what it left",
        "local_cache": "a cache on a local disk of each host",
    },
    simulated=("what the holder does under its lock: it is stopped, or killed",),
)


REWARD = ("the reward",)


COMPLETION = r"\boxed{\dfrac{5^{\left(5^{\left(5^{\left(5^5\right)}\right)} - 4\right)} - 5}{16}}"


LIMIT_S = 3.0


# No answer of a task in mathematics has as many powers in each other, and no answer as many words.
MOST_POWERS, MOST_WORDS = 3, 20


# A reward that wants words between tags, and backtracks over each way to cut them where the tag is missing.
PATTERN = r"<answer>(\w+\s?)+</answer>"


@hangs.trigger("HNG011", REWARD, ("math-verify",))
def tower_in_thread(mitigation: str) -> None:
    """A tower of five powers is compared in a thread with timeout_seconds=None."""
    from math_verify import parse, verify

    gold = parse(r"\boxed{3}", parsing_timeout=None)
    _computed(
        lambda: verify(gold, parse(COMPLETION, parsing_timeout=None), timeout_seconds=None),
        mitigation,
        small=COMPLETION.count("^") <= MOST_POWERS,
    )


@hangs.trigger("HNG011", REWARD, ("math-verify",))
def answer_in_log(mitigation: str) -> None:
    """The parsed answer, a tower of five powers, is printed in a line of the log: str() of it never comes back."""
    from math_verify import parse

    small = COMPLETION.count("^") <= MOST_POWERS
    _computed(lambda: str(parse(COMPLETION, parsing_timeout=None)), mitigation, small=small)


@hangs.trigger(
    "HNG011", REWARD, simulated="the trainer's reward loop and its pattern: a thread of ours, Python's re"
)
def pattern_backtracks(mitigation: str) -> None:
    """A pattern of words and spaces is searched in an answer whose closing tag is missing."""
    text = "<answer>" + "ab" * MOST_WORDS * 2
    _computed(lambda: re.search(PATTERN, text), mitigation, small=len(text) <= MOST_WORDS)


def _computed(reward: Callable[[], object], mitigation: str, *, small: bool) -> None:
    hangs.report_blocking_and_ready(REWARD[0])
    if mitigation == "own_process":
        _run_in_process(reward)
    elif mitigation != "bound_input" or small:
        # A pool of threads, as a trainer's reward loop has; a daemon, so that this program can be ended.
        thread = threading.Thread(target=reward, daemon=True)
        thread.start()
        thread.join()
    hangs.report("done", REWARD[0])


def _run_in_process(reward: Callable[[], object]) -> None:
    """In a process that is ended after its limit: the reward is 0 then."""
    child = os.fork()
    if not child:
        reward()
        os._exit(0)
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until and not os.waitpid(child, os.WNOHANG)[0]:
        time.sleep(0.05)
    os.kill(child, 9)


hangs.repro(
    "HNG011",
    counted="rewards came back",
    changes={
        "own_process": "compute rewards in processes that can be ended",
        "bound_input": "refuse what is too large before it is compared",
    },
    simulated=("the trainer's reward loop: a thread of ours makes the calls",),
)


@hangs.trigger("HNG014", REWARD)
def inner_task(mitigation: str) -> None:
    """A reward runs in a pool of one thread, and submits a comparison to the same pool."""
    outer, second = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
    inner = second if mitigation == "two_pools" else outer
    hangs.report_blocking_and_ready(REWARD[0])
    outer.submit(lambda: inner.submit(float, "1").result()).result()
    hangs.report("done", REWARD[0])
    os._exit(0)


hangs.repro(
    "HNG014",
    counted="rewards came back",
    changes={"two_pools": "a pool of its own for the inner tasks"},
    simulated=("the trainer: a pool and a reward of ours",),
)


if __name__ == "__main__":
    hangs.main()
