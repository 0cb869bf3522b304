"""Hang in a selected way, or work, with processes of one machine that use no torch.distributed: `python host.py CASE`.

CASE is the name of a function. Each process prints its role and pid before it hangs. The role `culprit` is that of
each process that `hang` may name: the process that blocks the others, each process of a deadlock, or both ends of a
lost message. A process that only waits is a `victim`. Functions whose
name begins with `healthy` do not hang.
"""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import http.client
import multiprocessing
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

FOREVER = 10_000
_fork = multiprocessing.get_context("fork")


def announce(name: str, pid: int | None = None) -> None:
    """Print the role of a process and its pid (default: this process)."""
    os.write(1, f"{name} {pid or os.getpid()}\n".encode())


def start_child(target, *arguments):
    """Start a forked process; return it."""
    process = _fork.Process(target=target, args=arguments)
    process.start()
    return process


def two_locks() -> None:
    """Two threads take two locks in opposite order."""
    first_lock, second_lock, met = threading.Lock(), threading.Lock(), threading.Barrier(2)

    def lock_both(first, second) -> None:
        with first:
            met.wait()
            with second:
                raise AssertionError

    thread = threading.Thread(target=lock_both, args=(first_lock, second_lock), name="updater")
    thread.start()
    announce("culprit")
    lock_both(second_lock, first_lock)


def lock_not_given_back() -> None:
    """A thread ended without releasing its lock; the main thread waits for the lock."""
    lock = threading.Lock()
    threading.Thread(target=lock.acquire).start()
    announce("culprit")
    time.sleep(0.1)
    with lock:
        raise AssertionError


def queue_nobody_fills() -> None:
    """A thread waits for an item of a queue that no thread fills."""
    items: queue.Queue[int] = queue.Queue()
    announce("culprit")
    items.get()


def pool_waits_for_itself() -> None:
    """A task of a pool of one thread waits for a second task of the same pool."""
    pool = ThreadPoolExecutor(1)
    announce("culprit")
    pool.submit(lambda: pool.submit(time.time).result()).result()


def pipe_of_dead_child() -> None:
    """The child exited; the parent reads from the pipe, but keeps its write end open, so the pipe never ends."""
    reader, writer = _fork.Pipe()
    process = start_child(os._exit, 1)
    announce("culprit", process.pid)
    announce("victim")
    reader.recv()
    del writer


def pipes_crossed() -> None:
    """Two processes each wait for a message of the other."""
    left_end, right_end = _fork.Pipe()

    def wait_there() -> None:
        left_end.close()
        announce("culprit")
        right_end.recv()

    start_child(wait_there)
    right_end.close()
    announce("culprit")
    left_end.recv()


def full_pipe() -> None:
    """A process writes to a full pipe; its reader never reads."""
    read, write = os.pipe()

    def reader() -> None:
        os.close(write)
        announce("culprit")
        threading.Event().wait()

    start_child(reader)
    os.close(read)
    announce("victim")
    while True:
        os.write(write, b"x" * 4096)


def child_output_unread() -> None:
    """A parent waits for a child that blocks because the parent does not read its output."""
    process = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdout.write('x' * 10**6)"], stdout=subprocess.PIPE
    )
    announce("culprit")
    announce("culprit", process.pid)
    process.wait()


def shared_lock_holder_waits() -> None:
    """A process owns a shared lock and waits for an event that is never set."""
    lock, acquired = _fork.Lock(), _fork.Event()

    def holder() -> None:
        with lock:
            acquired.set()
            announce("culprit")
            threading.Event().wait()

    start_child(holder)
    acquired.wait()
    announce("victim")
    with lock:
        raise AssertionError


def shared_lock_holder_stopped() -> None:
    """A process waits for a shared lock whose holder is stopped."""
    lock, acquired = _fork.Lock(), _fork.Event()

    def holder() -> None:
        with lock:
            acquired.set()
            announce("culprit")
            os.kill(os.getpid(), signal.SIGSTOP)

    start_child(holder)
    acquired.wait()
    announce("victim")
    with lock:
        raise AssertionError


def processes_queue() -> None:
    """A consumer waits for an item of a queue between processes; the producer waits for an event."""
    items = _fork.Queue()

    def producer() -> None:
        announce("culprit")
        threading.Event().wait()
        items.put(1)

    start_child(producer)
    announce("culprit")
    items.get()


def worker_stopped() -> None:
    """A worker process is stopped while the parent waits for its result."""
    parent_end, worker_end = _fork.Pipe()

    def work() -> None:
        parent_end.close()
        announce("culprit")
        os.kill(os.getpid(), signal.SIGSTOP)
        worker_end.send(1)

    start_child(work)
    worker_end.close()
    announce("victim")
    parent_end.recv()


def file_lock() -> None:
    """A process waits for flock on a file; the holder waits for an event."""
    path = Path(tempfile.mkdtemp()) / "cache.lock"
    acquired = _fork.Event()

    def holder() -> None:
        with path.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            acquired.set()
            announce("culprit")
            threading.Event().wait()

    start_child(holder)
    acquired.wait()
    announce("victim")
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)


def filelock_library() -> None:
    """A process waits for a lock of the filelock library, as libraries that compile kernels do."""
    import filelock

    path = str(Path(tempfile.mkdtemp()) / "kernel.lock")
    acquired = _fork.Event()

    def holder() -> None:
        with filelock.FileLock(path):
            acquired.set()
            announce("culprit")
            threading.Event().wait()

    start_child(holder)
    acquired.wait()
    announce("victim")
    with filelock.FileLock(path):
        raise AssertionError


def prompt() -> None:
    """A program prompts for a key, and standard input is a pipe without a writer."""
    announce("culprit")
    input("key: ")


def prompt_in_child() -> None:
    """A child prompts for input; its parent waits for it."""
    read, _write = os.pipe()
    process = subprocess.Popen([sys.executable, "-c", "input('Enter your choice: ')"], stdin=read)
    announce("culprit", process.pid)
    announce("victim")
    process.wait()


def secret_prompt() -> None:
    """A program prompts for a password."""
    announce("culprit")
    getpass.fallback_getpass("key: ")  # type: ignore[attr-defined]


def http_server(handle) -> tuple[multiprocessing.Process, int]:
    """Start an HTTP server in a separate process; return the process and its port."""
    server = HTTPServer(("127.0.0.1", 0), type("Handler", (BaseHTTPRequestHandler,), {"do_GET": handle}))

    def serve() -> None:
        server.serve_forever()

    process = start_child(serve)
    server.server_close()
    return process, server.server_address[1]


def send_request(port: int) -> None:
    """Send an HTTP request and wait for the response."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", "/update_weights")
    connection.getresponse()


def handler_waits() -> None:
    """A server's handler waits for an event that is never set."""
    process, port = http_server(lambda _handler: threading.Event().wait())
    announce("culprit", process.pid)
    announce("victim")
    send_request(port)


def server_stopped() -> None:
    """A server is stopped; its client waits."""
    process, port = http_server(lambda handler: handler.send_response(200))
    os.kill(process.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)  # wait until the process is stopped
    announce("culprit", process.pid)
    announce("victim")
    send_request(port)


def servers_crossed() -> None:
    """A server sends a request to its own client, which serves no request while it waits."""
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    process, own_port = http_server(lambda _handler: send_request(port))
    announce("culprit", process.pid)
    announce("culprit")
    send_request(own_port)


def asyncio_lost(client: str = "thread") -> None:
    """An asyncio server loses a request and never answers it."""
    import asyncio

    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]

    async def forget(reader, writer) -> None:
        await reader.readline()
        await asyncio.Future()
        writer.close()

    async def serve() -> None:
        async with await asyncio.start_server(forget, sock=listening) as server:
            await server.serve_forever()

    process = start_child(lambda: asyncio.run(serve()))
    announce("culprit", process.pid)
    announce("victim")
    send_request(port)


def asyncio_blocked() -> None:
    """An asyncio server's handler makes a blocking call, so no other request is served."""
    import asyncio

    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    lock = threading.Lock()
    lock.acquire()

    async def block(reader, _writer) -> None:
        await reader.readline()
        lock.acquire()

    async def serve() -> None:
        async with await asyncio.start_server(block, sock=listening) as server:
            await server.serve_forever()

    process = start_child(lambda: asyncio.run(serve()))
    announce("culprit", process.pid)
    announce("victim")
    send_request(port)


def zmq_lost() -> None:
    """A request over ZMQ is never answered."""
    import zmq

    address = f"ipc://{tempfile.mkdtemp()}/s"

    def serve() -> None:
        bound = zmq.Context().socket(zmq.REP)
        bound.bind(address)
        announce("culprit")
        bound.recv()
        threading.Event().wait()

    start_child(serve)
    announce("victim")
    asking = zmq.Context().socket(zmq.REQ)
    asking.connect(address)
    asking.send(b"generate")
    asking.recv()


def symbols() -> None:
    """A thread runs math-verify without a time limit on an expression that never finishes."""
    from math_verify import parse, verify

    text = r"\boxed{\dfrac{5^{\left(5^{\left(5^{\left(5^5\right)}\right)} - 4\right)} - 5}{16}}"
    gold = parse(r"\boxed{3}", parsing_timeout=None)
    answer = parse(text, parsing_timeout=None)
    thread = threading.Thread(target=lambda: verify(gold, answer, timeout_seconds=None), name="reward-0")
    thread.daemon = True
    # Announce first: while the thread computes one power it does not release the GIL.
    announce("culprit")
    thread.start()
    thread.join()


def expression() -> None:
    """The main thread joins a thread whose regular expression backtracks for ever."""
    thread = threading.Thread(
        target=lambda: re.match(r"(a|a)*$", "a" * 60 + "b"), name="reward-0", daemon=True
    )
    thread.start()
    announce("culprit")
    thread.join()


def poll_for_file() -> None:
    """A process polls for a file that is never written."""
    path = Path(tempfile.mkdtemp()) / "STABLE"
    announce("culprit")
    while not path.exists():
        time.sleep(0.05)


def connect_blocked() -> None:
    """A client waits in connect, because the server accepts no connections and its queue is full."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=0)
    clients = []
    announce("culprit")
    while True:
        clients.append(socket.create_connection(listening.getsockname()))


def unix_lost() -> None:
    """A server with threads never answers a request over a unix socket."""
    path = tempfile.mkdtemp() + "/s"
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path)
    listening.listen()

    def serve() -> None:
        accepted, _ = listening.accept()
        accepted.recv(10)
        threading.Event().wait()

    process = start_child(serve)
    announce("culprit", process.pid)
    announce("victim")
    asking = socket.socket(socket.AF_UNIX)
    asking.connect(path)
    asking.send(b"generate\n")
    asking.recv(10)


def uvicorn_server(answer) -> tuple[multiprocessing.Process, int]:
    """Start a FastAPI application on uvicorn in a separate process; return the process and its port."""
    import fastapi
    import uvicorn

    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        app = fastapi.FastAPI()
        app.get("/update_weights")(answer)
        uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listening])

    process = start_child(serve)
    return process, listening.getsockname()[1]


def uvicorn_lost() -> None:
    """An endpoint awaits an event that is never set."""
    import asyncio

    async def forget() -> None:
        await asyncio.Event().wait()

    process, port = uvicorn_server(forget)
    announce("culprit", process.pid)
    announce("victim")
    send_request(port)


def uvicorn_blocked() -> None:
    """An `async def` endpoint makes a blocking call, so the event loop stops."""

    async def block() -> None:
        threading.Event().wait()

    process, port = uvicorn_server(block)
    announce("culprit", process.pid)
    announce("victim")
    send_request(port)


def event_never_set() -> None:
    """A thread waits for an event that no thread sets."""
    event = threading.Event()
    announce("culprit")
    event.wait()


def fork_with_lock() -> None:
    """A process is forked while a lock is taken: in the child nobody can release the lock."""
    lock = threading.Lock()
    threading.Thread(target=lambda: lock.acquire() and healthy_busy, daemon=True).start()
    time.sleep(0.2)
    process = start_child(lock.acquire)
    announce("culprit", process.pid)
    announce("victim")
    process.join()


def pool_worker_killed() -> None:
    """A worker of a multiprocessing pool is killed; the pool starts a new worker, but the task is lost."""
    pool = _fork.Pool(1)
    worker = pool.apply_async(time.sleep, (FOREVER,))
    time.sleep(0.5)
    os.kill(pool._pool[0].pid, signal.SIGKILL)  # type: ignore[attr-defined]
    announce("culprit")
    worker.get()


def thread_joins_stuck() -> None:
    """The main thread joins a thread that waits for a queue item."""
    items: queue.Queue[int] = queue.Queue()
    thread = threading.Thread(target=items.get, name="writer")
    thread.start()
    announce("culprit")
    thread.join()


def semaphore_of_dead() -> None:
    """A process exited while it held a lock that processes share."""
    lock = _fork.Lock()

    def holder() -> None:
        lock.acquire()
        os._exit(1)

    process = start_child(holder)
    time.sleep(0.5)
    announce("culprit", process.pid)
    announce("culprit")
    lock.acquire()


def ring_of_three() -> None:
    """Each of three processes waits for the one before it."""
    pipes = [_fork.Pipe(duplex=False) for _ in range(3)]

    def wait(mine: int) -> None:
        for number, (read, write) in enumerate(pipes):
            if number != mine:
                read.close()
            if number != (mine + 1) % 3:
                write.close()
        announce("culprit")
        pipes[mine][0].recv()

    start_child(wait, 1)
    start_child(wait, 2)
    wait(0)


# Healthy cases: no hang may be reported.


def healthy_idle_server() -> None:
    """A server has no requests."""
    announce("healthy")
    http_server(lambda handler: handler.send_response(200))[0].join()


def healthy_kept_alive() -> None:
    """A client works, and keeps a connection open on which all requests were answered."""

    def send_ok(handler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "2")
        handler.end_headers()
        handler.wfile.write(b"ok")

    server = HTTPServer(
        ("127.0.0.1", 0),
        type(
            "H",
            (BaseHTTPRequestHandler,),
            {"do_GET": send_ok, "protocol_version": "HTTP/1.1", "log_message": lambda *_: None},
        ),
    )
    start_child(server.serve_forever)
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1])
    connection.request("GET", "/")
    connection.getresponse().read()
    announce("healthy")
    data = os.urandom(100_000)
    while True:
        zlib.compress(data, 9)


def healthy_busy() -> None:
    """A process computes."""
    announce("healthy")
    data = os.urandom(100_000)
    while True:
        zlib.compress(data, 9)


def healthy_child_works() -> None:
    """A parent waits for a child that computes."""
    process = start_child(healthy_busy)
    process.join()


def healthy_pool_waits() -> None:
    """The main thread works while pools of threads and processes have no work."""
    pool = ThreadPoolExecutor(3)
    list(pool.map(abs, range(3)))
    workers = _fork.Pool(2)
    workers.map(abs, range(4))
    healthy_busy()


def healthy_slow_handler() -> None:
    """A server computes its response while its client waits."""

    def compute(_handler) -> None:
        data = os.urandom(100_000)
        while True:
            zlib.compress(data, 9)

    _process, port = http_server(compute)
    announce("healthy")
    send_request(port)


def healthy_asyncio_idle() -> None:
    """An asyncio server has no requests."""
    import asyncio

    async def serve() -> None:
        async with await asyncio.start_server(lambda *_: None, "127.0.0.1", 0) as server:
            announce("healthy")
            await server.serve_forever()

    asyncio.run(serve())


def healthy_lock_contended() -> None:
    """A thread waits for a lock whose holder computes."""
    lock = threading.Lock()

    def compute_with_lock() -> None:
        with lock:
            healthy_busy()

    threading.Thread(target=compute_with_lock, daemon=True).start()
    time.sleep(0.2)
    with lock:
        raise AssertionError


def healthy_imports() -> None:
    """A child imports something large again and again, as at the start of a job; its parent waits for it."""

    def starts() -> None:
        announce("healthy")
        while True:
            subprocess.run([sys.executable, "-c", "import torch"], check=False)

    start_child(starts).join()


def healthy_slow_steps() -> None:
    """A loop alternates between short work and short sleep, as a trainer that waits for its device."""
    announce("healthy")
    data = os.urandom(20_000)
    while True:
        zlib.compress(data, 9)
        time.sleep(0.1)


def healthy_requests() -> None:
    """A server answers requests that a client sends continuously."""

    def send_ok_slowly(handler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "2")
        handler.end_headers()
        time.sleep(0.2)
        handler.wfile.write(b"ok")

    server = HTTPServer(
        ("127.0.0.1", 0),
        type("H", (BaseHTTPRequestHandler,), {"do_GET": send_ok_slowly, "log_message": lambda *_: None}),
    )
    start_child(server.serve_forever)
    announce("healthy")
    while True:
        send_request(server.server_address[1])


def healthy_paused_server() -> None:
    """A server is idle; its client works, keeps a connection open and sends no request."""

    def fine() -> dict[str, str]:
        return {}

    _process, port = uvicorn_server(fine)
    connection = http.client.HTTPConnection("127.0.0.1", port)
    for _ in range(100):
        with contextlib.suppress(OSError):
            connection.request("GET", "/update_weights")
            connection.getresponse().read()
            break
        time.sleep(0.1)
    announce("healthy")
    healthy_slow_steps()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        globals()[sys.argv[1]]()
        time.sleep(FOREVER)
