"""Asks hosts, many at a time, each within a time limit; nothing that was started here is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import string
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from diagnostics.nodes import hosts
from diagnostics.nodes.answer import MOST_ANSWER_BYTES, NodeAnswer, clock_of, one_line
from diagnostics.nodes.hosts import HostsError
from diagnostics.nodes.program import MARK, program
from diagnostics.output import pulse

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from diagnostics.nodes.hosts import Host
    from diagnostics.nodes.program import Carried

AT_ONCE = 32
# The collector says the time first; a shell's greeting may stand before it.
_MOST_BEFORE_CLOCK = 1 << 18
_FIELDS = {"host", "user", "port", "target", "python"}


def command(host: Host, template: str, prefix: str, limit_s: float) -> list[str]:
    """The words that run a Python there which reads its program from standard input.

    Args:
        host: The host.
        template: The user's own command; the Python is put at its end unless it says where. Empty for ssh.
        prefix: The environment whose Python runs the program unless the list names another.
        limit_s: ssh gives up connecting after it.

    Raises:
        HostsError: The template can't be read.
    """
    where = host.prefix or prefix
    python = host.python or (f"{where}/bin/python" if where else "python3")
    if not template:
        port = ["-p", str(host.port)] if host.port else []
        options = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={max(1, round(limit_s))}"]
        return ["ssh", "-T", *options, *port, "--", host.target, f"{shlex.quote(python)} -"]
    try:
        words = shlex.split(template)
        fields = {
            name for word in words for _, name, _, _ in string.Formatter().parse(word) if name is not None
        }
    except ValueError as error:
        raise HostsError(f"--host-command: cannot be read: {error}") from None
    if not words or not fields <= _FIELDS:
        wrong = ", ".join(sorted(fields - _FIELDS)) or "nothing"
        raise HostsError(
            f"--host-command: {wrong!r} in it: expected {{host}}, {{user}}, {{port}}, {{target}}, {{python}}"
        )
    values = {
        "host": host.name,
        "user": host.user,
        "port": host.port or 22,
        "target": host.target,
        "python": python,
    }
    filled = [word.format(**values) for word in words]
    return filled if "python" in fields else [*filled, python, "-"]


def ask(
    whom: Sequence[Host], template: str, prefix: str, limit_s: float, carried: Callable[[Host], Carried]
) -> list[NodeAnswer]:
    """Asks all hosts, at most AT_ONCE at a time; the answers stand in the order of the hosts.

    Args:
        whom: The hosts.
        template: The command that runs a Python there; empty for ssh.
        prefix: The environment whose Python runs it, where the list names none.
        limit_s: Seconds for each.
        carried: What runs on a host.

    Raises:
        HostsError: The template can't be read.
    """
    commands = [command(host, template, prefix, limit_s) for host in whom]
    programs = [program(carried(host), limit_s) for host in whom]

    async def everybody() -> list[NodeAnswer]:
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(words: list[str], text: str) -> NodeAnswer:
            async with gate:
                return await _ask(words, text.encode(), limit_s)

        return await asyncio.gather(
            *(one(words, text) for words, text in zip(commands, programs, strict=True))
        )

    return asyncio.run(everybody())


def chosen(
    options: argparse.Namespace, prefix: str, carried: Callable[[Host], Carried]
) -> tuple[list[Host], list[NodeAnswer]]:
    """Asks the hosts that the command line names.

    Raises:
        HostsError: The list or the template can't be used.
    """
    found = hosts.read(options.hosts)
    if options.host_python:
        found = [host if host.python else replace(host, python=options.host_python) for host in found]
    print(f"asking {len(found)} hosts, at most {options.node_limit:g} s each", file=sys.stderr)
    pulse.asking(f"{len(found)} hosts")
    return found, ask(found, options.host_command, prefix, options.node_limit, carried)


async def _ask(words: list[str], text: bytes, limit_s: float) -> NodeAnswer:
    started = time.time()
    try:
        process = await asyncio.create_subprocess_exec(
            *words,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        return NodeAnswer(problem=f"{words[0]} cannot be started here: {error.strerror or error}")
    assert process.stdin
    assert process.stdout
    assert process.stderr
    try:
        async with asyncio.timeout(limit_s):
            answers, (said, clock), errors = await asyncio.gather(
                _give(process.stdin, text), _hear(process.stdout), _read(process.stderr)
            )
            code = await process.wait()
    except TimeoutError:
        return NodeAnswer(problem=f"no answer within {limit_s:g} s")
    finally:
        await _end(process)
    del answers
    if MARK in said:
        return NodeAnswer(text=said, started=started, clock=clock)
    return NodeAnswer(problem=_why(code, errors, words))


async def _give(stdin: asyncio.StreamWriter, text: bytes) -> None:
    # Who does not read it says why on standard error.
    with contextlib.suppress(ConnectionError, BrokenPipeError):
        stdin.write(text)
        await stdin.drain()
    # Its end is not waited for: the process's is, and a wait that is given up leaves a traceback (CPython 3.11).
    stdin.close()


async def _hear(stream: asyncio.StreamReader) -> tuple[str, tuple[float, float] | None]:
    """All that a node says, and when its clock's word arrived."""
    data = b""
    clock = None
    while len(data) < MOST_ANSWER_BYTES:
        piece = await stream.read(65536)
        if not piece:
            break
        data += piece
        if clock is None and len(data) <= _MOST_BEFORE_CLOCK:
            for line in data.decode("utf-8", errors="replace").splitlines()[:200]:
                there = clock_of(line)
                clock = (there, time.time()) if there is not None else clock
    return data.decode("utf-8", errors="replace"), clock


async def _read(stream: asyncio.StreamReader) -> str:
    """The end of what was said on standard error."""
    data = b""
    while piece := await stream.read(65536):
        data = (data + piece)[-4096:]
    return data.decode("utf-8", errors="replace")


def _why(code: int, errors: str, words: Sequence[str]) -> str:
    """One line for a node that gave no facts; the last line of an error is the one that says it."""
    lines = [one_line(line) for line in errors.splitlines() if line.strip()]
    told = lines[-1] if lines else "nothing was said"
    if code in {126, 127}:
        return f"no such Python there: {told}"
    first = f"{words[0]} could not get in" if words[0] == "ssh" and code == 255 else f"ended with {code}"
    return f"{first}: {told}"


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kills the process and what it started; also after a normal end, when it may have left some."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        await process.wait()
    finally:
        # Interrupted, the loop is gone before it hears that the pipes ended, and their end then complains of that.
        process._transport.close()  # type: ignore[attr-defined]  # noqa: SLF001 - there is no other way to
