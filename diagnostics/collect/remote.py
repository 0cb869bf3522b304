"""Run a program of ours on other machines: over ssh, srun or any command, or as tasks of a Ray cluster.

A node needs Python 3.10 and nothing of ours: the sources travel as a zip inside the program text, on standard input.
The node imports them from a temporary folder, prints one line of JSON and removes the folder. Standard library only.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
import math
import os
import re
import shlex
import socket
import string
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diagnostics import process, safe_io
from diagnostics.collect import facts
from diagnostics.collect.names import NoEnvironmentError

if TYPE_CHECKING:  # it does not travel: it needs click
    from diagnostics.node_options import NodeOptions

MARK = "grpo-doctor-node:"
LIMIT_S = 30.0
MAX_HOSTS, MAX_PARALLEL = 4096, 32
MAX_ANSWER_BYTES = 8 << 20
MAX_MODELS = 200
# Joining a cluster takes seconds, and so does the first worker of a node.
JOIN_LIMIT_S, CONNECT_LIMIT_S = 60.0, 5.0
_PACKAGE = Path(__file__).resolve().parents[1]
COLLECT_SOURCES = ("collect/*.py", "frameworks.py", "safe_io.py", "process.py", "output/redact.py")
"""Our sources that collect needs on a node."""
# A name that starts with a dash would be an option of ssh.
_HOST = re.compile(
    r"(?:(?P<user>[\w.][\w.-]*)@)?(?P<name>[A-Za-z0-9_][\w.-]*|\[[0-9A-Fa-f:.%\w]+\])(?::(?P<port>\d{1,5}))?",
    re.ASCII,
)
_HOST_KEYS = ("slots", "max_slots", "max-slots", "prefix", "python")
_HOST_FIELDS = {"host", "user", "port", "target", "python"}
_ADDRESS = re.compile(r"(?:ray://)?([\w.-]+|\[[0-9A-Fa-f:]+\]):(\d{1,5})", re.ASCII)
_NCCL = re.compile(r"libnccl\.so\.(\d+\.\d+\.\d+)")
_NCCL_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/local/lib", "/usr/local/cuda/lib64",
)  # fmt: skip
# Parses on any Python, so that an old one can say that it is too old.
_PROGRAM = """\
import sys
# Modules in the user's folder are not imported, whatever this Python was started with.
sys.path[:] = [entry for entry in sys.path if entry not in ("", ".")]
import json, time
def say(document):
    sys.stdout.write("\\n%(mark)s " + json.dumps(document) + "\\n")
    sys.stdout.flush()
def run(started):
    import base64, io, os, shutil, signal, tempfile, zipfile
    def stop(*_):
        raise SystemExit(1)
    for name in ("SIGALRM", "SIGHUP", "SIGTERM"):
        try:
            signal.signal(getattr(signal, name), stop)
        except (AttributeError, ValueError):
            pass
    try:
        signal.alarm(%(limit)d)
    except (AttributeError, ValueError):
        pass
    sys.dont_write_bytecode = True
    folder = tempfile.mkdtemp(prefix="grpo-doctor-")
    try:
        zipfile.ZipFile(io.BytesIO(base64.b64decode("%(sources)s"))).extractall(folder)
        sys.path.insert(0, folder)
        from importlib import import_module
        document = import_module(%(module)r).%(function)s(json.loads(%(options)r), folder)
        document["clock"] = [started, time.time()]
        say(document)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        try:
            signal.alarm(0)
        except AttributeError:
            pass
if sys.version_info < (3, 10):
    say({"error": "Python %%d.%%d there is too old: it needs 3.10" %% sys.version_info[:2]})
else:
    try:
        run(time.time())
    except Exception as error:
        say({"error": "%%s: %%s" %% (type(error).__name__, error)})
"""
# Ran by the Python that has Ray. It joins a cluster and never starts one.
_RAY_PROGRAM = """\
import importlib, json, os, subprocess, sys, time
def say(**document):
    sys.stdout.write("\\n%(mark)s " + json.dumps(document) + "\\n")
    sys.stdout.flush()
def collect(program, limit_s):
    done = subprocess.run([sys.executable, "-P", "-"] if sys.version_info >= (3, 11) else [sys.executable, "-"],
                          input=program.encode(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=limit_s)
    return done.stdout[: 8 * 2**20].decode("utf-8", errors="replace")
def node_document(node):
    return {"id": node["NodeID"], "alive": bool(node["Alive"]), "address": str(node.get("NodeManagerAddress", "")),
            "host": str(node.get("NodeManagerHostname", "")), "port": int(node.get("NodeManagerPort") or 0),
            "reason": str(node.get("DeathReasonMessage") or "")}
def main(options):
    try:
        ray = importlib.import_module("ray")
        strategies = importlib.import_module("ray.util.scheduling_strategies")
    except ImportError as error:
        return say(problem="Ray cannot be imported by %%s: %%s" %% (sys.executable, error))
    try:
        ray.init(address=options["address"], log_to_driver=False, logging_level="CRITICAL", namespace="grpo-doctor")
    except Exception as error:
        return say(problem="%%s: %%s" %% (type(error).__name__, error))
    nodes = [node_document(node) for node in ray.nodes()]
    say(nodes=nodes)
    task, pending, started = ray.remote(num_cpus=0, max_retries=0)(collect), {}, time.time()
    for node in nodes:
        if node["alive"]:
            there = strategies.NodeAffinitySchedulingStrategy(node["id"], soft=False)
            made = task.options(scheduling_strategy=there).remote(options["program"], options["limit_s"])
            pending[made] = node["id"]
    end = time.monotonic() + options["limit_s"]
    while pending and end > time.monotonic():
        done, _ = ray.wait(list(pending), num_returns=1, timeout=max(0.1, end - time.monotonic()))
        for item in done:
            node = pending.pop(item)
            try:
                say(id=node, text=ray.get(item), started=started, ended=time.time())
            except Exception as error:
                say(id=node, problem="%%s: %%s" %% (type(error).__name__, error))
    for item, node in pending.items():
        ray.cancel(item, force=True)
        say(id=node, problem="no answer within %%g s" %% options["limit_s"])
    ray.shutdown()
sys.path[:] = [entry for entry in sys.path if entry not in ("", ".", os.getcwd())]
main(json.loads(%(options)r))
"""


class RemoteError(ValueError):
    """Raised if a list of hosts, a command or a cluster cannot be used; the message is one line."""


class NodeError(ValueError):
    """Raised if a node gave no document; the message is one line."""


@dataclass(frozen=True)
class Program:
    """What runs on a node: a function of ours that takes (options, folder of the sources) and returns a document.

    Attributes:
        module: The function's module.
        sources: Files of our package it needs, as patterns; they use the standard library only.
    """

    module: str
    function: str
    sources: tuple[str, ...]
    options: dict[str, Any] = field(default_factory=dict)

    def program_text(self, limit_s: float = 60.0) -> str:
        """Return the program text; the program ends itself after a limit."""
        return _PROGRAM % {
            "mark": MARK, "limit": max(1, round(limit_s)), "module": self.module, "function": self.function,
            "sources": base64.b64encode(zip_sources(self.sources)).decode("ascii"),
            "options": json.dumps(self.options),
        }  # fmt: skip


def zip_sources(patterns: tuple[str, ...]) -> bytes:
    """Zip our sources; the same sources give the same bytes."""
    files: dict[str, bytes] = {}
    for path in sorted(path for pattern in patterns for path in _PACKAGE.glob(pattern)):
        name = path.relative_to(_PACKAGE.parent)
        files |= {f"{folder.as_posix()}/__init__.py": b"" for folder in name.parents if folder.name}
        files[name.as_posix()] = path.read_bytes()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name_there, data in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(name_there), data, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


@dataclass(frozen=True)
class Answer:
    """What a node's Python printed, or why it printed nothing.

    Attributes:
        started: Our clock when the node was queried.
        ended: Our clock when its answer was complete.
    """

    text: str = ""
    problem: str = ""
    started: float = 0.0
    ended: float = 0.0

    def document(self) -> dict[str, Any]:
        """Return the node's document.

        Raises:
            NodeError: The node was not reached, reports an error, or printed something else.
        """
        if self.problem:
            raise NodeError(self.problem)
        lines = [line for line in self.text.splitlines() if line.startswith(MARK)]
        if not lines:
            raise NodeError("unexpected output: the host did not run the collector")
        try:
            document = safe_io.parse_json(lines[-1].removeprefix(MARK))
        except ValueError as error:
            raise NodeError(one_line(f"unreadable answer: {error}")) from None
        if not isinstance(document, dict):
            raise NodeError("unreadable answer: expected an object")
        if "error" in document:
            raise NodeError(one_line(str(document["error"])))
        return document

    def clock_offset(self, document: dict[str, Any]) -> tuple[float, float] | None:
        """Return the least and greatest number of seconds by which the node's clock is ahead of ours."""
        clock = document.get("clock")
        if not isinstance(clock, list) or len(clock) != 2 or not self.started:
            return None
        if not all(isinstance(value, int | float) and math.isfinite(value) for value in clock):
            return None
        return clock[1] - self.ended, clock[0] - self.started


@dataclass(frozen=True)
class Member:
    """A node of a cluster or a host of a list, with its answer.

    Attributes:
        name: Its name or address, with the port if several share it.
        dead: Whether the cluster reports it dead.
        slots: Processes to be started there; 0 if unknown.
        secrets: Names and addresses that must not appear in a shared report.
    """

    name: str
    answer: Answer
    dead: bool = False
    slots: int = 0
    secrets: tuple[str, ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class Host:
    """A host of the list.

    Attributes:
        prefix: The environment to examine there; empty for the one given for all.
        python: The interpreter that runs the collector there.
    """

    name: str
    user: str = ""
    port: int = 0
    slots: int = 0
    prefix: str = ""
    python: str = ""

    @property
    def target(self) -> str:
        """The host as ssh takes it."""
        return f"{self.user}@{self.name}" if self.user else self.name


def one_line(text: str, limit: int = 300) -> str:
    """Return a text from elsewhere as one line without control characters."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def read_hosts(path: Path) -> list[Host]:
    """Read a list of hosts, one a line, as MPI and DeepSpeed hostfiles have them.

    Raises:
        RemoteError: The file is unreadable, empty, or has an invalid line.
    """
    try:
        with safe_io.open_regular(path, pipes=True) as file:
            data = file.read(1_000_001)
    except OSError as error:
        raise RemoteError(f"--hosts {path}: cannot be read: {error.strerror or error}") from None
    if len(data) > 1_000_000 or b"\0" in data:
        raise RemoteError(f"--hosts {path}: expected a list of hosts, one a line")
    results: list[Host] = []
    for number, line in enumerate(data.decode("utf-8", errors="replace").splitlines(), start=1):
        if words := line.partition("#")[0].split():
            host = _parse_host(words, f"--hosts {path}:{number}")
            if any((host.target, host.port) == (another.target, another.port) for another in results):
                raise RemoteError(f"--hosts {path}:{number}: {words[0]} is listed twice")
            results.append(host)
    if not results:
        raise RemoteError(f"--hosts {path}: no host in it: expected one a line, as user@host:22 slots=8")
    if len(results) > MAX_HOSTS:
        raise RemoteError(f"--hosts {path}: {len(results)} hosts; at most {MAX_HOSTS} are queried")
    return results


def _parse_host(words: list[str], place: str) -> Host:
    match = _HOST.fullmatch(words[0])
    if match is None or int(match["port"] or 0) > 65535:
        raise RemoteError(f"{place}: {words[0][:80]!r}: expected a host, as user@host:22 slots=8")
    values = {}
    for word in words[1:]:
        key, equals, value = word.partition("=")
        if not equals or not value or key not in _HOST_KEYS:
            raise RemoteError(f"{place}: {word[:80]!r}: expected one of {', '.join(_HOST_KEYS)} as key=value")
        values[key] = value
    for key in ("prefix", "python"):
        if values.get(key, "").startswith("-"):  # it would be an option of whatever leads to the host
            raise RemoteError(f"{place}: {key}={values[key][:40]}: expected a path")
    slots = values.get("slots", "0")
    if not slots.isdecimal() or len(slots) > 6:
        raise RemoteError(f"{place}: slots={slots[:20]}: expected a whole number")
    port, prefix, python = int(match["port"] or 0), values.get("prefix", ""), values.get("python", "")
    return Host(match["name"].strip("[]"), match["user"] or "", port, int(slots), prefix, python)


def host_command(host: Host, template: str, prefix: str, limit_s: float) -> list[str]:
    """Return the command that starts a Python on a host which reads its program from standard input.

    Args:
        host: The host.
        template: The user's command, such as `srun -w {host} -n1`; empty for ssh. Without `{python}` it is appended.
        prefix: The environment whose Python is used unless the list names another.
        limit_s: Connection limit of ssh.

    Raises:
        RemoteError: The template is invalid.
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
        raise RemoteError(f"--host-command: cannot be read: {error}") from None
    if not words or not fields <= _HOST_FIELDS:
        wrong = ", ".join(sorted(fields - _HOST_FIELDS)) or "nothing"
        expected = ", ".join(f"{{{name}}}" for name in sorted(_HOST_FIELDS))
        raise RemoteError(f"--host-command: {wrong!r} in it: expected {expected}")
    values = {
        "host": host.name, "user": host.user, "port": host.port or 22, "target": host.target, "python": python,
    }  # fmt: skip
    filled = [word.format(**values) for word in words]
    return filled if "python" in fields else [*filled, python, "-"]


def query_hosts(
    hosts: Sequence[Host], program_for: Callable[[Host], Program], *, template: str = "", prefix: str = "",
    limit_s: float = LIMIT_S,
) -> list[Member]:  # fmt: skip
    """Query all hosts, at most MAX_PARALLEL at a time; the answers are in the order of the hosts.

    Raises:
        RemoteError: The template is invalid.
    """
    commands = [host_command(host, template, prefix, limit_s) for host in hosts]
    programs = [program_for(host).program_text(limit_s) for host in hosts]

    async def query_all() -> list[Answer]:
        gate = asyncio.Semaphore(MAX_PARALLEL)

        async def query(command: list[str], text: str) -> Answer:
            async with gate:
                return await _query(command, text.encode(), limit_s)

        return await asyncio.gather(*map(query, commands, programs))

    answers = asyncio.run(query_all())
    shared = Counter(host.name for host in hosts)
    return [
        Member(
            f"{host.name}:{host.port}" if shared[host.name] > 1 else host.name, answer, slots=host.slots,
            secrets=(host.target, host.name),
        )
        for host, answer in zip(hosts, answers, strict=True)
    ]  # fmt: skip


async def _query(command: list[str], text: bytes, limit_s: float) -> Answer:
    started = time.time()
    pipe = asyncio.subprocess.PIPE
    try:
        child = await asyncio.create_subprocess_exec(
            *command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
        )
    except OSError as error:
        return Answer(problem=f"{command[0]} cannot be started here: {error.strerror or error}")
    try:
        await asyncio.wait_for(_exchange(child, text, outputs := [b"", b""]), limit_s)
    except TimeoutError:
        return Answer(problem=f"no answer within {limit_s:g} s")
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, 9)
        await child.wait()
    output, errors = (data.decode("utf-8", errors="replace") for data in outputs)
    if MARK in output:
        return Answer(output, started=started, ended=time.time())
    return Answer(problem=_failure(child.returncode or 0, errors, command))


async def _exchange(child: asyncio.subprocess.Process, text: bytes, outputs: list[bytes]) -> None:
    """Give the program text, and read both streams to their end; of the second only the last lines."""
    assert child.stdin
    assert child.stdout
    assert child.stderr

    async def write(stream: asyncio.StreamWriter) -> None:
        with contextlib.suppress(
            ConnectionError
        ):  # a program that does not read it explains on standard error
            stream.write(text)
            await stream.drain()
        stream.close()

    async def collect_output(place: int, stream: asyncio.StreamReader) -> None:
        while chunk := await stream.read(65536):
            data = outputs[place] + chunk
            outputs[place] = data[:MAX_ANSWER_BYTES] if place == 0 else data[-4096:]

    await asyncio.gather(write(child.stdin), collect_output(0, child.stdout), collect_output(1, child.stderr))
    await child.wait()


def _failure(code: int, errors: str, command: Sequence[str]) -> str:
    """Return one line for a node without a document; the last line of an error says most."""
    lines = [one_line(line) for line in errors.splitlines() if line.strip()]
    last = lines[-1] if lines else "no output"
    if code in {126, 127}:
        return f"no such Python there: {last}"
    return (
        f"{command[0]} could not connect: {last}"
        if code == 255
        else f"{command[0]} ended with {code}: {last}"
    )


def query_ray(python: str, address: str, program: Program, limit_s: float = LIMIT_S) -> list[Member]:
    """Query every node that a Ray cluster knows, dead ones too.

    Args:
        python: The interpreter that has Ray, of the cluster's release.
        address: As `ray.init` takes it; "auto" for the one that RAY_ADDRESS or this machine names.
        program: What runs on each node.
        limit_s: For all nodes together, joining not counted.

    Raises:
        RemoteError: Ray is not installed, or there is no cluster at the address.
    """
    _check_address(address)
    documents = _ray_documents(python, address, limit_s, program.program_text(limit_s))
    refused = next((item for item in documents if "problem" in item and "id" not in item), None)
    if refused:
        raise RemoteError(one_line(str(refused["problem"])))
    nodes = next((item["nodes"] for item in documents if "nodes" in item), None)
    if nodes is None:
        raise RemoteError(f"--ray {address}: Ray did not list its nodes within {JOIN_LIMIT_S:g} s")
    answers = {item["id"]: item for item in documents if "id" in item}
    shared = Counter(node["address"] for node in nodes)
    ordered = sorted(nodes, key=lambda node: (node["address"], node["port"], node["id"]))
    return [_ray_member(node, answers.get(node["id"]), shared[node["address"]] > 1) for node in ordered]


def _check_address(address: str) -> None:
    """Connect once: Ray itself tries for a minute where nothing listens."""
    match = _ADDRESS.fullmatch(address)
    if match is None:
        return
    try:
        socket.create_connection((match[1].strip("[]"), int(match[2])), timeout=CONNECT_LIMIT_S).close()
    except (OSError, OverflowError) as error:
        raise RemoteError(f"--ray {address}: no cluster there: {one_line(str(error))}") from None


def _ray_documents(python: str, address: str, limit_s: float, text: str) -> list[dict[str, Any]]:
    options = json.dumps({"address": address, "limit_s": limit_s, "program": text})
    mark = MARK.replace("node", "ray")
    environ = {
        **os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "PYTHONSAFEPATH": "1",
    }  # fmt: skip
    environ.pop("PYTHONPATH", None)
    with tempfile.TemporaryDirectory(prefix="grpo-doctor-") as folder:
        # Started by path in an empty folder: `ray.py` or `subprocess.py` in the user's folder is never imported.
        start, log = Path(folder, "start.py"), Path(folder, "ray.log")
        start.write_text(_RAY_PROGRAM % {"mark": mark, "options": options}, encoding="utf-8")
        try:
            done = process.run(
                [python, start], env=environ, log=log, timeout_s=limit_s + JOIN_LIMIT_S, cwd=Path(folder)
            )
        except OSError as error:
            raise RemoteError(f"{python}: cannot be started: {error.strerror or error}") from None
        lines = [line.removeprefix(mark) for line in done.output.splitlines() if line.startswith(mark)]
        results = [document for line in lines if (document := _ray_document(line)) is not None]
        if not results:
            last = process.log_tail(log, 1).strip() or "no output"
            reason = (
                f"no answer within {limit_s + JOIN_LIMIT_S:g} s"
                if done.timed_out
                else f"ended with {done.code}"
            )
            raise RemoteError(one_line(f"--ray {address}: {python} {reason}: {last}"))
    return results


def _ray_document(line: str) -> dict[str, Any] | None:
    """Parse a line of the Ray program; None if it is none of ours, because it contains text of nodes."""
    try:
        document = safe_io.parse_json(line)
    except ValueError:
        return None
    if not isinstance(document, dict):
        return None
    kinds = {"id": str, "problem": str, "text": str, "started": float, "ended": float}
    valid = all(isinstance(document[key], kind) for key, kind in kinds.items() if key in document)
    node = {"id": str, "alive": bool, "address": str, "host": str, "port": int, "reason": str}
    nodes = document.get("nodes", [])
    valid = valid and isinstance(nodes, list)
    valid = valid and all(
        isinstance(item, dict) and all(isinstance(item.get(key), kind) for key, kind in node.items())
        for item in nodes
    )
    valid = valid and ("text" not in document or {"id", "started", "ended"} <= set(document))
    return document if valid and {"nodes", "problem", "text"} & set(document) else None


def _ray_member(node: dict[str, Any], document: dict[str, Any] | None, shared: bool) -> Member:
    name = f"{node['address']}:{node['port']}" if shared else node["address"]
    if not node["alive"]:
        answer = Answer(problem=f"Ray reports it dead: {one_line(node['reason']) or 'without a reason'}")
    elif document is None:
        answer = Answer(problem="Ray did not report the result of the task on it")
    elif "problem" in document:
        answer = Answer(problem=one_line(document["problem"]))
    else:
        answer = Answer(document["text"], started=document["started"], ended=document["ended"])
    return Member(one_line(name), answer, not node["alive"], secrets=(node["address"], node["host"]))


def query_nodes(
    options: NodeOptions, program_for: Callable[[str], Program], prefix: str = ""
) -> list[Member]:
    """Query the hosts of a list or the nodes of a cluster, and print on standard error that it begins.

    Args:
        options: Which nodes, and how they are reached.
        program_for: Returns the program for a host, from the environment that the list names for it.
        prefix: The environment whose Python runs the program, or joins the cluster.

    Raises:
        RemoteError: The options, the list, the command or the cluster cannot be used.
    """
    limit_s = options.node_limit
    if not 0 < limit_s <= 3600:
        raise RemoteError(f"--node-limit {limit_s:g}: expected seconds, up to 3600")
    if not options.hosts:
        if options.host_command:
            raise RemoteError("--host-command needs --hosts, not --ray")
        python = options.host_python or (f"{prefix}/bin/python" if prefix else sys.executable)
        print(f"querying Ray's nodes, at most {limit_s:g} s after joining", file=sys.stderr)
        return query_ray(python, options.ray, program_for(""), limit_s)
    hosts = [
        host if host.python or not options.host_python else replace(host, python=options.host_python)
        for host in read_hosts(options.hosts)
    ]
    print(f"querying {len(hosts)} hosts, at most {limit_s:g} s each", file=sys.stderr)
    return query_hosts(
        hosts, lambda host: program_for(host.prefix), template=options.host_command, prefix=prefix, limit_s=limit_s
    )  # fmt: skip


def collect_program(prefix: str = "") -> Program:
    """Return the program that collects the facts of a node; an empty prefix is the environment of its Python."""
    return Program("diagnostics.collect.remote", "collect_node", COLLECT_SOURCES, {"prefix": prefix})


def collect_node(options: dict[str, Any], folder: str) -> dict[str, Any]:
    """Collect the document of this node: facts, and what only matters between nodes."""
    prefix = Path(options["prefix"]) if options.get("prefix") else None
    sys.path[:] = [entry for entry in sys.path if entry != folder]
    try:
        collected = facts.collect(prefix)
    except NoEnvironmentError as error:
        return {"error": str(error)}
    cache = collected.machine.disk("hub cache")
    models = cached_models(Path(cache.path)) if cache else []
    return {"facts": collected.to_json(), "nccl": system_nccl(), "models": models}


def system_nccl() -> list[str]:
    """Return the releases of NCCL outside Python's packages, where the loader and vLLM look first."""
    libraries = [
        Path(place, "libnccl.so.2") for place in os.environ.get("LD_LIBRARY_PATH", "").split(":") if place
    ]
    libraries += [Path(place, "libnccl.so.2") for place in _NCCL_FOLDERS]
    if names := os.environ.get("VLLM_NCCL_SO_PATH"):
        libraries.insert(0, Path(names))
    results = []
    for library in libraries:
        with contextlib.suppress(OSError, RuntimeError):
            match = _NCCL.search(library.resolve().name)
            results += [match[1]] if match else []
    return list(dict.fromkeys(results))


def cached_models(cache: Path) -> list[str]:
    """Return the models in a hub cache that have a snapshot."""
    try:
        names = sorted(entry.name for entry in os.scandir(cache) if entry.name.startswith("models--"))
    except OSError:
        return []
    complete = [name for name in names if any((cache / name / "snapshots").glob("*"))]
    return [name.removeprefix("models--").replace("--", "/") for name in complete[:MAX_MODELS]]
