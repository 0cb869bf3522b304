"""Reproduce hangs on locks, lock files, thread pools and rewards; math-verify, filelock and PyTorch are unmodified.

HNG006: locks of threads and forked workers. HNG007: lock files. HNG011: rewards that compute without end. HNG014: a
task that waits for its own pool. Each decorated function is a trigger; its name is the trigger's name, and its argument
the name of a mitigation to apply, or "".
"""

import contextlib
import multiprocessing
import os
import re
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from repro import processes
from repro.drivers import hangs

THREADS = ("the trainer's thread", "the publisher's thread")


@hangs.trigger("HNG006", *THREADS)
def two_orders(mitigation: str) -> None:
    """One thread takes the model's lock first, the other the engine's."""
    model, engine = threading.Lock(), threading.Lock()
    both_started, both_locked = threading.Barrier(2), threading.Barrier(2)

    def lock_both(name: str, first: threading.Lock, second: threading.Lock) -> None:
        with hangs.report_wait(name, blocking=True):
            both_started.wait()
            with first:
                if mitigation != "one_order":
                    both_locked.wait()
                with second:
                    pass

    orders = [(model, engine), (model, engine) if mitigation == "one_order" else (engine, model)]
    threads = [
        threading.Thread(target=lock_both, args=(name, *order))
        for name, order in zip(THREADS, orders, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@hangs.trigger("HNG006")
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
    with hangs.report_wait(blocking=True), lock:
        pass


@hangs.trigger("HNG006")
def fork_with_lock(mitigation: str) -> None:
    """A worker is forked while a thread holds a lock: no thread of the worker releases it, and join() never ends."""
    threading.Thread(target=_hold_lock, daemon=True).start()
    time.sleep(0.5)
    method = "spawn" if mitigation == "spawn" else "fork"
    # mypy does not know that both contexts have `Process`.
    worker = multiprocessing.get_context(method).Process(target=_take_lock)  # type: ignore[attr-defined]
    worker.start()
    hangs.report("blocking", "the worker", worker.pid)
    with hangs.report_wait():
        worker.join()


_LOCK = threading.Lock()


def _hold_lock() -> None:
    with _LOCK:
        time.sleep(4.0)


def _take_lock() -> None:
    with _LOCK:
        os._exit(0)


hangs.repro("HNG006", "trainer, publisher and worker: threads and processes with set timing")


LOCKER = "the process that wants the lock"


@hangs.trigger("HNG007", LOCKER, needs=("filelock",))
def holder_stopped(mitigation: str) -> None:
    """The holder of a lock file is stopped, as if it were compiling."""
    from filelock import FileLock

    folder = _new_folder()
    reading, writing = os.pipe()
    holder = os.fork()
    if not holder:
        with FileLock(f"{folder}/kernel.lock"):
            hangs.report("blocking", "the holder")
            os.write(writing, b"x")
            os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(0)
    os.read(reading, 1)
    if mitigation == "free_it":
        os.kill(holder, signal.SIGKILL)
    # Another cache has another lock.
    cache = _new_folder() if mitigation == "local_cache" else folder
    with hangs.report_wait(LOCKER), FileLock(f"{cache}/kernel.lock"):
        pass


@hangs.trigger("HNG007", LOCKER, needs=("torch",))
def baton_left(mitigation: str) -> None:
    """A killed build of a PyTorch extension left its lock file, and the next process waits until it is removed."""
    from torch.utils.file_baton import FileBaton

    folder = _new_folder()
    compiler = os.fork()
    if not compiler:
        FileBaton(f"{folder}/lock").try_acquire()
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(compiler, 0)
    if mitigation == "free_it":
        Path(folder, "lock").unlink()
    cache = _new_folder() if mitigation == "local_cache" else folder
    # The owner is dead, so the waiting process is the only one that is stuck.
    with hangs.report_wait(LOCKER, blocking=True):
        baton = FileBaton(f"{cache}/lock")
        if not baton.try_acquire():
            baton.wait()


def _new_folder() -> str:
    return tempfile.mkdtemp(prefix="grpo-doctor-")


hangs.repro("HNG007", "what the holder does under its lock: it is stopped, or killed")


REWARD = "the reward"
COMPLETION = r"\boxed{\dfrac{5^{\left(5^{\left(5^{\left(5^5\right)}\right)} - 4\right)} - 5}{16}}"
LIMIT_S = 3.0
# Limits of the mitigation `bound_input`: answers to tasks in mathematics have fewer nested powers and words.
MOST_POWERS, MOST_WORDS = 3, 20
# The pattern backtracks over every way to split the words if the closing tag is missing.
PATTERN = r"<answer>(\w+\s?)+</answer>"


@hangs.trigger("HNG011", REWARD, needs=("math-verify",))
def tower_in_thread(mitigation: str) -> None:
    """A tower of four powers is compared in a thread with timeout_seconds=None."""
    from math_verify import parse, verify

    gold = parse(r"\boxed{3}", parsing_timeout=None)
    _compute_reward(
        lambda: verify(gold, parse(COMPLETION, parsing_timeout=None), timeout_seconds=None),
        mitigation,
        small=COMPLETION.count("^") <= MOST_POWERS,
    )


@hangs.trigger("HNG011", REWARD, needs=("math-verify",))
def answer_in_log(mitigation: str) -> None:
    """The parsed answer, a tower of four powers, is printed in a log line: its str() does not return."""
    from math_verify import parse

    small = COMPLETION.count("^") <= MOST_POWERS
    _compute_reward(lambda: str(parse(COMPLETION, parsing_timeout=None)), mitigation, small=small)


@hangs.trigger("HNG011", REWARD, simulated="the trainer's reward loop and pattern: a thread, and Python's re")
def pattern_backtracks(mitigation: str) -> None:
    """A pattern of words and spaces is searched in an answer whose closing tag is missing."""
    text = "<answer>" + "ab" * MOST_WORDS * 2
    _compute_reward(lambda: re.search(PATTERN, text), mitigation, small=len(text) <= MOST_WORDS)


def _compute_reward(reward: Callable[[], object], mitigation: str, *, small: bool) -> None:
    """Call `reward` in a thread, or as the mitigation says; with `bound_input` only if the input is `small`."""
    with hangs.report_wait(REWARD, blocking=True):
        if mitigation == "own_process":
            with contextlib.suppress(TimeoutError):
                processes.run_isolated(lambda: bool(reward()), LIMIT_S)
        elif mitigation != "bound_input" or small:
            # A trainer's reward loop has a pool of threads; this thread is a daemon, so that the program can be ended.
            thread = threading.Thread(target=reward, daemon=True)
            thread.start()
            thread.join()


hangs.repro("HNG011", "the trainer's reward loop: a thread makes the calls")


@hangs.trigger("HNG014", REWARD)
def inner_task(mitigation: str) -> None:
    """A reward runs in a pool of one thread, and submits a comparison to the same pool."""
    outer = ThreadPoolExecutor(1)
    inner = ThreadPoolExecutor(1) if mitigation == "two_pools" else outer
    with hangs.report_wait(REWARD, blocking=True):
        outer.submit(lambda: inner.submit(float, "1").result()).result()
    os._exit(0)


hangs.repro("HNG014", "the trainer: a thread pool and a small reward")


if __name__ == "__main__":
    hangs.main()
