"""Repros of hangs: programs whose processes stand, and come through under a mitigation (`repro.drivers.standing`)."""

from __future__ import annotations

import os
import socket
import threading
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from repro.base import InapplicableError, Repro, TriedMitigation, Trigger, Work
from repro.drivers import standing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

GUILTY = "GRPO_DOCTOR_GUILTY"
STARTS = 4


@dataclass(frozen=True)
class Standing:
    """A trigger: a program whose processes stand.

    Args:
        program: is given the mitigation; the first line of its docstring says what happens.
        names: its processes or threads, as they say that they are ready and done.
        needs: distributions that it needs beside those of its repro.
        simulated: what is not real in it, where that is not what the repro's others simulate.
    """

    program: Callable[[str], None]
    names: tuple[str, ...]
    needs: tuple[str, ...] = ()
    simulated: tuple[str, ...] | None = None


def repro(
    code: str,
    title: str,
    *,
    triggers: Mapping[str, Standing],
    counted: str,
    helps: Mapping[str, str],
    only: Mapping[str, tuple[str, ...]] | None = None,
    untried: Mapping[str, str] | None = None,
    needs: tuple[str, ...] = (),
    simulated: tuple[str, ...] = (),
) -> Repro:
    """Returns the repro whose own module, where these programs are, runs one of them.

    Args:
        code: of the known issue.
        title: its title.
        triggers: by name.
        counted: what the names are, as "ranks came through".
        helps: mitigations under which all come through, and what is changed.
        only: of those that are about some triggers, which; they have nothing to change in the others.
        untried: those that can't be tried, and why.
        needs: distributions, named as their modules are but for dashes, without which nothing can be tried.
        simulated: what is not real.
    """
    told = untried or {}
    fitting = {name: (only or {}).get(name, tuple(triggers)) for name in helps}
    # By its own name: a name that is put together would rest on every module that it could be.
    module = next(iter(triggers.values())).program.__module__

    def attempt(trigger: str, mitigation: str | None) -> Work:
        if mitigation is not None and mitigation in told:
            raise InapplicableError(told[mitigation])
        if mitigation is not None and trigger not in fitting[mitigation]:
            raise InapplicableError(f"{mitigation} has nothing to change in {trigger}")
        return standing.attempt(module, trigger, mitigation, triggers[trigger].names, counted)

    return Repro(
        code=code,
        title=title,
        distributions=needs,
        simulated=simulated,
        triggers=tuple(
            Trigger(
                name,
                (each.program.__doc__ or "").strip().splitlines()[0],
                partial(attempt, name),
                silent=True,
                simulated=each.simulated,
                lacks=partial(_lacking, each.needs),
            )
            for name, each in triggers.items()
        ),
        mitigations=(
            *(TriedMitigation(name, about, frozenset(fitting[name])) for name, about in helps.items()),
            *(TriedMitigation(name, about, frozenset()) for name, about in told.items()),
        ),
        inapplicable=partial(_lacking, needs),
    )


def _lacking(needs: tuple[str, ...]) -> str | None:
    absent = [name for name in needs if not _there(name.replace("-", "_"))]
    return f"{', '.join(absent)} is not installed here" if absent else None


def _there(name: str) -> bool:
    """A module of a package that is another one in this release is not there either."""
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def guilty_of(default: int) -> int:
    """Returns the rank that is to hold the others up: whoever measures `hang` lets each have its turn."""
    return int(os.environ.get(GUILTY, default))


def silent_server() -> int:
    """Starts an HTTP server, in a process of its own, whose handler waits for what nobody sends; returns its port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            threading.Event().wait()

    server = HTTPServer(("127.0.0.1", 0), Handler)
    if not os.fork():
        standing.say("guilty", "the server")
        server.serve_forever()
    server.server_close()
    return server.server_address[1]


def start_ray(cpus: int) -> Any:
    """Starts a cluster of this machine's own, and returns Ray.

    An actor can't say that it is ready: it is asked for its process id, and its driver says it.
    """
    ray: Any = import_module("ray")
    os.environ.pop("RAY_ADDRESS", None)
    for left in reversed(range(STARTS)):
        try:
            ray.init(num_cpus=cpus, include_dashboard=False, log_to_driver=False)
            break
        except Exception as error:
            # Ray gives a node 30 s, which nothing sets, and where others compute it may need more.
            ray.shutdown()
            if not left or "timed out during startup" not in str(error):
                raise
    return ray


def main(triggers: Mapping[str, Standing]) -> None:
    """Is the main program of a repro's module."""
    standing.main({name: each.program for name, each in triggers.items()})


def free_port() -> int:
    """Returns a port of this machine that nobody has."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        port: int = held.getsockname()[1]
    return port


def join_gloo(rank: int, port: int, world: int, **options: Any) -> None:
    """Joins ranks that meet at a port of this machine, over gloo."""
    import torch.distributed as dist

    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=world, **options)


def run_ranks(ranks: int | Sequence[int], run: Callable[[int, int], None]) -> None:
    """Forks ranks as `fork_ranks` does, and waits for their ends."""
    for child in fork_ranks(ranks, run):
        os.waitpid(child, 0)


def fork_ranks(ranks: int | Sequence[int], run: Callable[[int, int], None]) -> list[int]:
    """Forks so many ranks, or these; each is given its rank and a free port. Returns their process ids."""
    port, made = free_port(), []
    for rank in range(ranks) if isinstance(ranks, int) else ranks:
        child = os.fork()
        if child == 0:
            try:
                run(rank, port)
            finally:
                os._exit(0)
        made.append(child)
    return made
