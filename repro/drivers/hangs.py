"""Register and run repros of hangs: programs whose processes report before and after a wait that may never end.

`trigger` registers a program, `repro` the repro of an issue with its programs. A program's processes report through a
pipe: `report_wait` around the wait, and `report` for a process that blocks others. If all processes are ready and then
12 s pass without a report, `run_program` counts those that still wait as stuck. Each program runs in a separate
session; the runner ends its processes after the attempt.

The module also has parts that several programs use: ranks with gloo, a Ray cluster, a server that never answers.
"""

import contextlib
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import import_module
from typing import Any

from repro import processes, registry, upstream
from repro.registry import Tally, Trigger

Program = Callable[[str], None]
Decorator = Callable[[Program], Program]
# Environment variables: the rank that blocks the others, and the file descriptor for the reports.
BLOCKING_RANK = "GRPO_DOCTOR_BLOCKING_RANK"
REPORTS_FD = "GRPO_DOCTOR_REPORTS_FD"
READY_S = 600.0  # a whole engine takes minutes to start on a busy machine
STUCK_S = 12.0
LIMIT_S = 2.0  # time limit of a wait, with a mitigation that limits waits
RANKS = 3
RANK_NAMES = tuple(f"rank {rank}" for rank in range(RANKS))
TRAINER, DRIVER = "the trainer", "the driver"
_RAY_STARTS = 4


@dataclass(frozen=True)
class HangProgram:
    """The program of a trigger, whose processes are expected to hang.

    Args:
        run: Function that is the program; its argument is the name of a mitigation, or "".
        names: Names of the processes or threads that report `ready` and `done`.
        needs: Distributions that the program needs besides those of its repro.
        simulated: Simulated parts; None for those of the repro.
    """

    run: Program
    names: tuple[str, ...]
    needs: tuple[str, ...] = ()
    simulated: tuple[str, ...] | None = None


# Programs by code and trigger.
PROGRAMS: dict[str, dict[str, HangProgram]] = {}


def trigger(code: str, *names: str, needs: tuple[str, ...] = (), simulated: str = "") -> Decorator:
    """Return a decorator that registers a function as the program of the trigger with the function's name.

    Args:
        code: Code of the known issue.
        names: Names of the program's processes or threads; by default "the trainer".
        needs: Distributions that the program needs besides those of its repro.
        simulated: The simulated part; empty for the simulated parts of the repro.
    """

    def register(run: Program) -> Program:
        program = HangProgram(run, names or (TRAINER,), needs, (simulated,) if simulated else None)
        PROGRAMS.setdefault(code, {})[run.__name__] = program
        return run

    return register


def ray_trigger(code: str, simulated: str, *needs: str) -> Decorator:
    """Return `trigger` for a program whose driver waits for processes of a real Ray cluster."""
    return trigger(code, DRIVER, needs=(*needs, "ray"), simulated=f"{simulated} in a real Ray cluster")


def repro(code: str, simulated: str, *, needs: tuple[str, ...] = ()) -> None:
    """Register the repro of a hang, after its programs were registered by `trigger`.

    Args:
        code: Code of the known issue.
        simulated: The simulated part.
        needs: Required distributions; their modules have the same names, with underscores for dashes.
    """
    registry.repro(
        code,
        distributions=needs,
        simulated=(simulated,),
        triggers=[
            Trigger(
                name,
                partial(run_program, program),
                silent=True,
                simulated=program.simulated,
                missing_requirement=partial(upstream.explain_missing_modules, program.needs),
            )
            for name, program in PROGRAMS[code].items()
        ],
        inapplicable_reason=partial(upstream.explain_missing_modules, needs),
    )


def main() -> None:
    """Run the program of a trigger: the main function of issue modules, as `python -m MODULE TRIGGER MITIGATION`."""
    name, mitigation = sys.argv[1:]
    next(programs[name] for programs in PROGRAMS.values() if name in programs).run(mitigation)


def report(state: str, name: str, pid: int | None = None) -> None:
    """Report that a process (this one by default) is `ready`, `done` or `blocking` other processes or itself."""
    os.write(int(os.environ[REPORTS_FD]), f"{state} {pid or os.getpid()} {name}\n".encode())


@contextlib.contextmanager
def report_wait(name: str = TRAINER, *, blocking: bool = False) -> Iterator[None]:
    """Report `ready` before the block, a wait that may never end, and `done` after it.

    Args:
        name: Name of the process or thread.
        blocking: Whether it blocks other processes, or itself.
    """
    if blocking:
        report("blocking", name)
    report("ready", name)
    yield
    report("done", name)


def run_program(program: HangProgram, mitigation: str | None) -> Tally:
    """Run a program, and count the processes and threads whose wait ended.

    Raises:
        RuntimeError: A process or thread did not report that it is ready, or the program ended before its waits did.
    """
    module, names = program.run.__module__, program.names
    reading, writing = os.pipe()
    processes.start_python(
        ["-m", module, program.run.__name__, mitigation or ""],
        env=os.environ | {REPORTS_FD: str(writing)},
        pass_fds=[writing],
        start_new_session=True,
    )
    os.close(writing)
    ready, done = _read_reports(reading, names)
    if not set(names) <= ready | done:
        raise RuntimeError(f"{module}: not ready: {', '.join(sorted(set(names) - ready))}")
    stuck = [name for name in names if name not in done]
    note = f"{', '.join(stuck)} waited for {STUCK_S:g} s" if stuck else ""
    received = [(name, 0) for name in names if name in done]
    return Tally(dict.fromkeys(names, None), received, note=note, counted="waits ended")


def _read_reports(reading: int, names: Sequence[str]) -> tuple[set[str], set[str]]:
    """Read until all names are done, or a limit has passed; return the names ready and done.

    The limit is READY_S until all are ready, and then STUCK_S without a report.

    Raises:
        RuntimeError: The program ended before: an error ended its waits.
    """
    reports: dict[str, set[str]] = {"ready": set(), "done": set(), "blocking": set()}
    limit = time.monotonic() + READY_S
    text = b""
    while not set(names) <= reports["done"]:
        readable, _, _ = select.select([reading], [], [], max(0.0, limit - time.monotonic()))
        if not readable:
            break
        if not (piece := os.read(reading, 4096)):
            raise RuntimeError(f"the program ended; done: {', '.join(sorted(reports['done'])) or 'no wait'}")
        *lines, text = (text + piece).split(b"\n")
        for state, _, name in (line.decode().split(" ", 2) for line in lines):
            reports[state].add(name)
        if set(names) <= reports["ready"]:
            limit = time.monotonic() + STUCK_S
    return reports["ready"], reports["done"]


def blocking_rank(default: int) -> int:
    """Return the rank that blocks other ranks; the evaluation of `hang` sets it by an environment variable."""
    return int(os.environ.get(BLOCKING_RANK, default))


def wait_limit(mitigation: str, name: str = "limit") -> float | None:
    """Return 2 s as the time limit of a wait if the mitigation has this name; else None, for no limit."""
    return LIMIT_S if mitigation == name else None


def continue_later(pid: int | None, mitigation: str) -> None:
    """Send SIGCONT to a stopped process in 2 s if the mitigation is `continue_it`; do not wait for it."""
    if mitigation == "continue_it" and pid:
        threading.Timer(2.0, os.kill, (pid, signal.SIGCONT)).start()


def start_silent_server() -> int:
    """Start a process that reports `blocking`, and an HTTP server in it that never answers a GET; return its port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            threading.Event().wait()

    server = HTTPServer(("127.0.0.1", 0), Handler)
    if not os.fork():
        report("blocking", "the server")
        server.serve_forever()
    server.server_close()
    return server.server_address[1]


def start_ray(cpus: int) -> Any:
    """Start a Ray cluster on this machine, up to four times if it times out, and return the `ray` module.

    An actor does not have the file descriptor for reports, so its driver requests its process id and reports it.
    """
    ray: Any = import_module("ray")
    os.environ.pop("RAY_ADDRESS", None)
    for remaining in reversed(range(_RAY_STARTS)):
        try:
            ray.init(num_cpus=cpus, include_dashboard=False, log_to_driver=False)
            break
        except Exception as error:
            # Ray gives a node 30 s, which no option changes; on a busy machine it may need more.
            ray.shutdown()
            if not remaining or "timed out during startup" not in str(error):
                raise
    return ray


def free_port() -> int:
    """Return a port of this machine that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


def join_gloo(rank: int, port: int, world: int, **options: Any) -> None:
    """Create a gloo process group at a port of this machine."""
    import torch.distributed as dist

    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=world, **options)


def fork_to_all_reduce(blocking: int, run_before: Callable[[], object]) -> list[int]:
    """Fork three ranks that call all_reduce; the blocking rank calls `run_before` first. Return their process ids."""
    import torch
    import torch.distributed as dist

    def run(rank: int, port: int) -> None:
        join_gloo(rank, port, RANKS)
        dist.barrier()
        with report_wait(RANK_NAMES[rank], blocking=rank == blocking):
            if rank == blocking:
                run_before()
            dist.all_reduce(torch.ones(1))
        dist.barrier()  # a rank that exits would close the others' connections

    return fork_ranks(range(RANKS), run)


def fork_ranks(ranks: Sequence[int], run: Callable[[int, int], None]) -> list[int]:
    """Fork ranks that each call `run(rank, port)` with the same free port; return their process ids."""
    port, children = free_port(), []
    for rank in ranks:
        child = os.fork()
        if child == 0:
            try:
                run(rank, port)
            finally:
                os._exit(0)
        children.append(child)
    return children


def wait_for_end(children: Sequence[int]) -> None:
    """Wait until these processes have ended."""
    for child in children:
        os.waitpid(child, 0)
