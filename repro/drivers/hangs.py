"""Repros of hangs: programs whose processes stand, and come through under a mitigation (`repro.drivers.standing`)."""

from __future__ import annotations

import os
import socket
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from repro.base import InapplicableError, Repro, TriedMitigation, Trigger, Work
from repro.drivers import standing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def repro(
    code: str,
    title: str,
    *,
    programs: Mapping[str, Callable[[str], None]],
    names: tuple[str, ...],
    counted: str,
    helps: Mapping[str, str],
    untried: Mapping[str, str] | None = None,
    needs: tuple[str, ...] = (),
    simulated: tuple[str, ...] = (),
) -> Repro:
    """Returns the repro whose own module, where these programs are, runs one of them.

    Args:
        code: of the known issue.
        title: its title.
        programs: by trigger, the first line of whose docstring says what happens; each is given the mitigation.
        names: its processes or threads, as they say that they are ready and done.
        counted: what `names` are, as "ranks came through".
        helps: mitigations under which all come through, and what is changed.
        untried: those that can't be tried, and why.
        needs: distributions, named as their modules are but for dashes, without which nothing can be tried.
        simulated: what is not real.
    """
    told = untried or {}
    # By its own name: a name that is put together would rest on every module that it could be.
    module = next(iter(programs.values())).__module__

    def attempt(trigger: str, mitigation: str | None) -> Work:
        if mitigation is not None and mitigation in told:
            raise InapplicableError(told[mitigation])
        return standing.attempt(module, trigger, mitigation, names, counted)

    def inapplicable() -> str | None:
        absent = [name for name in needs if find_spec(name.replace("-", "_")) is None]
        return f"{', '.join(absent)} is not installed here" if absent else None

    return Repro(
        code=code,
        title=title,
        distributions=needs,
        simulated=simulated,
        triggers=tuple(
            Trigger(
                name, (program.__doc__ or "").strip().splitlines()[0], partial(attempt, name), silent=True
            )
            for name, program in programs.items()
        ),
        mitigations=(
            *(TriedMitigation(name, about, frozenset(programs)) for name, about in helps.items()),
            *(TriedMitigation(name, about, frozenset()) for name, about in told.items()),
        ),
        inapplicable=inapplicable,
    )


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


def run_ranks(count: int, run: Callable[[int, int], None]) -> None:
    """Forks ranks as `fork_ranks` does, and waits for their ends."""
    for child in fork_ranks(count, run):
        os.waitpid(child, 0)


def fork_ranks(count: int, run: Callable[[int, int], None]) -> list[int]:
    """Forks ranks, each of which is given its rank and a free port, and returns their process ids."""
    port, made = free_port(), []
    for rank in range(count):
        child = os.fork()
        if child == 0:
            try:
                run(rank, port)
            finally:
                os._exit(0)
        made.append(child)
    return made
