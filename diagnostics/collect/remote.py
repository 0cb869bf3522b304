"""Run one of our functions on other hosts, by ssh or a command of the user, and collect their answers.

A host needs only Python 3.10 or newer. It receives a program on standard input that contains our sources as a zip. The
program unpacks them to a temporary folder, calls the function, prints its result as one line of JSON, and removes the
folder. `read_hosts` reads the list of hosts, `query_hosts` runs a program on them in parallel, each with a time limit.
"""

import base64
import functools
import io
import json
import re
import shlex
import tomllib
import zipfile
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import Popen
from typing import Any

from diagnostics import UserError, process, safe_io
from diagnostics.output.redact import remember_line, truncate

MARK = "grpo-doctor-node:"
LIMIT_S = 30.0
MAX_HOSTS, MAX_PARALLEL = 4096, 32
MAX_ANSWER_BYTES = 8 << 20
_PACKAGE = Path(__file__).resolve().parents[1]
# Patterns of our source files that are sent to a host. Those that run there use the standard library only.
_SOURCES = (
    "__init__.py", "collect/*.py", "collect/*.txt", "frameworks/__init__.py", "frameworks/*.toml", "hang/__init__.py",
    "hang/snapshot.py", "hang/collect/*.py", "hang/collect/*.txt", "memory_limit.py", "output/redact.py",
    "output/redaction.toml", "process.py", "safe_io.py",
)  # fmt: skip
# A name that starts with a dash would be an option of ssh.
_HOST = re.compile(
    r"(?:(?P<user>[\w.][\w.-]*)@)?(?P<name>[A-Za-z0-9_][\w.-]*|\[[0-9A-Fa-f:.%\w]+\])(?::(?P<port>\d{1,5}))?",
    re.ASCII,
)
_SHELL_SAFE = re.compile(r"[\w@%+:,./~-]+")
_HOST_KEYS = ("slots", "max_slots", "max-slots", "prefix", "python")
PROGRAM_START = """\
import sys
# Modules in the working folder are not imported.
sys.path[:] = [entry for entry in sys.path if entry not in ("", ".")]
import json
def say(**document):
    sys.stdout.write("\\n%(mark)s " + json.dumps(document) + "\\n")
    sys.stdout.flush()
"""
"""The start of each program that another Python reads from its standard input: `say` prints a marked line of JSON."""
# Old Pythons can parse it too, and report that they are too old.
_PROGRAM = """\
def run():
    import base64, io, shutil, signal, tempfile, zipfile
    def stop(*_):
        raise SystemExit(1)
    for number in (signal.SIGALRM, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, stop)
    signal.alarm(%(limit)d)
    sys.dont_write_bytecode = True
    folder = tempfile.mkdtemp(prefix="grpo-doctor-")
    try:
        zipfile.ZipFile(io.BytesIO(base64.b64decode("%(sources)s"))).extractall(folder)
        sys.path.insert(0, folder)
        from importlib import import_module
        say(**import_module(%(module)r).%(function)s(json.loads(%(options)r), folder))
    finally:
        signal.alarm(0)
        shutil.rmtree(folder, ignore_errors=True)
if sys.version_info < (3, 10):
    say(error="Python %%d.%%d there is too old: it needs 3.10" %% sys.version_info[:2])
else:
    try:
        run()
    except Exception as error:
        say(error="%%s: %%s" %% (type(error).__name__, error))
"""


class RemoteError(UserError, ValueError):
    """Raised if an option, a list of hosts, a command or a cluster cannot be used; the message is one line."""


class NodeError(ValueError):
    """Raised if a node returned no document; the message is one line."""


@dataclass(frozen=True)
class Program:
    """One of our functions to run on a node: it takes (options, folder of the sources) and returns a document.

    Attributes:
        module: The function's module.
        function: The function's name.
        options: The function's first argument.
    """

    module: str
    function: str
    options: dict[str, Any] = field(default_factory=dict)

    def program_text(self, limit_s: float = 60.0) -> str:
        """Return the source text of the program to send; the program ends itself after the time limit."""
        return (PROGRAM_START + _PROGRAM) % {
            "mark": MARK,
            "limit": max(1, round(limit_s)),
            "module": self.module,
            "function": self.function,
            "sources": base64.b64encode(zip_sources()).decode("ascii"),
            "options": json.dumps(self.options),
        }


@functools.cache
def zip_sources() -> bytes:
    """Zip the sources that a host needs; TOML files are converted to JSON, because Python 3.10 reads no TOML."""
    files: dict[str, bytes] = {}
    for path in sorted(path for pattern in _SOURCES for path in _PACKAGE.glob(pattern)):
        name = path.relative_to(_PACKAGE.parent)
        files = {f"{folder.as_posix()}/__init__.py": b"" for folder in name.parents if folder.name} | files
        if path.suffix == ".toml":
            tables = tomllib.loads(path.read_text(encoding="utf-8"))
            files[name.with_suffix(".json").as_posix()] = json.dumps(tables).encode()
        else:
            files[name.as_posix()] = path.read_bytes()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name_there, data in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(name_there), data, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


@dataclass(frozen=True)
class Answer:
    """A host's output, or the reason why there is none."""

    text: str = ""
    problem: str = ""

    def document(self) -> dict[str, Any]:
        """Return the document that the function returned on the host.

        Raises:
            NodeError: The host was not reached, reported an error, or did not print a document.
        """
        if self.problem:
            raise NodeError(self.problem)
        lines = [line for line in self.text.splitlines() if line.startswith(MARK)]
        if not lines:
            raise NodeError("unexpected output: the host did not run the collector")
        try:
            document = safe_io.parse_json(lines[-1].removeprefix(MARK))
        except ValueError as error:
            raise NodeError(printable_line(f"unreadable answer: {error}")) from None
        if not isinstance(document, dict):
            raise NodeError("unreadable answer: expected an object")
        if "error" in document:
            raise NodeError(printable_line(str(document["error"])))
        return document


@dataclass(frozen=True)
class Member:
    """A host of the list or a node of a Ray cluster, with its answer.

    Attributes:
        name: Name or address, with the port if several hosts or nodes share it.
        answer: The host's answer.
        dead: Whether Ray reports the node as dead.
        slots: Number of processes that a launcher starts on the host; 0 if unknown.
        prefix: The environment that the list of hosts names for it.
        secrets: Names and addresses that must not appear in a shared report.
    """

    name: str
    answer: Answer
    dead: bool = False
    slots: int = 0
    prefix: str = ""
    secrets: tuple[str, ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class Host:
    """One line of the list of hosts.

    Attributes:
        name: Name or address.
        user: User for ssh; empty for ssh's default.
        port: Port for ssh; 0 for ssh's default.
        slots: Number of processes that a launcher starts on the host; 0 if unknown.
        prefix: Environment to examine on the host; empty for the environment given for all hosts.
        python: Interpreter that runs the collector on the host; empty for the environment's Python, or `python3`.
    """

    name: str
    user: str = ""
    port: int = 0
    slots: int = 0
    prefix: str = ""
    python: str = ""

    @property
    def target(self) -> str:
        """The host as ssh expects it."""
        return f"{self.user}@{self.name}" if self.user else self.name


def printable_line(text: str) -> str:
    """Return an untrusted text as one line without control characters, truncated but not masked."""
    printable = "".join(char if char.isprintable() else " " for char in text)
    return truncate(" ".join(printable.split()), 300)


def read_hosts(path: Path) -> list[Host]:
    """Read a list of hosts, one per line, in the format of MPI and DeepSpeed hostfiles, also with prefix= and python=.

    Raises:
        RemoteError: The file is unreadable, lists no host or too many, or has an invalid line.
    """
    option = f"--hosts {path}"
    try:
        text = safe_io.read_text(path, safe_io.MIB, pipes=True)
    except OSError as error:
        raise RemoteError(f"{option}: cannot be read: {error.strerror or error}") from None
    hosts: dict[tuple[str, int], Host] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if words := line.partition("#")[0].split():
            host = _parse_host(words, f"{option}:{number}")
            if (host.target, host.port) in hosts:
                raise RemoteError(f"{option}:{number}: {words[0]} is listed twice")
            hosts[host.target, host.port] = host
    if not hosts:
        raise RemoteError(f"{option}: no host in it: expected one a line, as user@host:22 slots=8")
    if len(hosts) > MAX_HOSTS:
        raise RemoteError(f"{option}: {len(hosts)} hosts; at most {MAX_HOSTS} are queried")
    return list(hosts.values())


def _parse_host(words: list[str], place: str) -> Host:
    def unexpected(text: str, expected: str) -> RemoteError:
        remember_line(" ".join(words))
        return RemoteError(f"{place}: {truncate(text, 80)!r}: expected {expected}")

    match = _HOST.fullmatch(words[0])
    if match is None or int(match["port"] or 0) > 65535:
        raise unexpected(words[0], "a host, as user@host:22 slots=8")
    values = dict.fromkeys(_HOST_KEYS, "")
    for word in words[1:]:
        key, _, value = word.partition("=")
        if not value or key not in values:
            raise unexpected(word, f"one of {', '.join(_HOST_KEYS)} as key=value")
        # A dash would make it an option of ssh, kubectl or srun, a `=` an assignment in the remote shell.
        if key in {"prefix", "python"} and (value.startswith("-") or "=" in value.partition("/")[0]):
            raise unexpected(word, "a path")
        values[key] = value
    slots = values["slots"] or "0"
    if not slots.isdecimal() or len(slots) > 6:
        raise unexpected(f"slots={slots}", "a whole number")
    name, user, port = match["name"].strip("[]"), match["user"] or "", int(match["port"] or 0)
    return Host(name, user, port, int(slots), values["prefix"], values["python"])


def host_command(host: Host, template: str, prefix: str, limit_s: float) -> list[str]:
    """Return the command that starts a Python on a host; this Python reads its program from standard input.

    Args:
        host: The host.
        template: The user's command, such as `srun -w {host} -n1`; empty for ssh. Without `{python}`, the path of the
            Python and `-` are appended.
        prefix: The environment whose Python is used unless the list of hosts names another environment or Python.
        limit_s: Connection limit of ssh.

    Raises:
        RemoteError: The template is invalid, or the path of the Python cannot be part of a command.
    """
    where = host.prefix or prefix
    python = host.python or (f"{where}/bin/python" if where else "python3")
    if not template.strip():
        port = ["-p", str(host.port)] if host.port else []
        options = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={max(1, round(limit_s))}"]
        return ["ssh", "-T", *options, *port, "--", host.target, f"{shlex.quote(python)} -"]
    values = {"host": host.name, "user": host.user, "port": host.port or 22}
    values |= {"target": host.target, "python": python}
    try:
        words = [word.format(**values) for word in shlex.split(template)]
    except (ValueError, LookupError, AttributeError) as error:
        expected = ", ".join(f"{{{name}}}" for name in values)
        raise RemoteError(f"--host-command: cannot be read: {error}; expected {expected}") from None
    # ssh passes the words to a shell, srun does not: quotes would be part of the name there.
    if not _SHELL_SAFE.fullmatch(python):
        wrong = truncate(python, 80)
        raise RemoteError(f"--host-command: {wrong!r}: expected a path without spaces and quotes")
    return words if "{python}" in template else [*words, python, "-"]


def query_hosts(
    hosts: Sequence[Host],
    program_for: Callable[[Host], Program],
    *,
    template: str = "",
    prefix: str = "",
    limit_s: float = LIMIT_S,
) -> list[Member]:
    """Run a program on all hosts, at most MAX_PARALLEL at a time; return a member for each host, in their order.

    Raises:
        RemoteError: `host_command` refused the template or the path of a Python.
    """
    commands = [host_command(host, template, prefix, limit_s) for host in hosts]
    running: set[Popen[Any]] = set()
    with ThreadPoolExecutor(MAX_PARALLEL) as pool:
        futures = []
        try:
            for host, command in zip(hosts, commands, strict=True):
                futures.append(pool.submit(_query, command, program_for(host), limit_s, running))
            # Python handles Ctrl-C only between waits if another thread received the signal.
            while wait(futures, timeout=0.2).not_done:
                pass
            answers = [future.result() for future in futures]
        except BaseException:  # such as Ctrl-C: wait for no host any longer
            pool.shutdown(wait=False, cancel_futures=True)
            # A thread may start its program after this, so repeat until all threads are done.
            while wait(futures, timeout=0.05).not_done:
                for child in tuple(running):
                    process.end_group(child)
            raise
    shared = Counter(host.name for host in hosts)
    names = [f"{host.name}:{host.port}" if shared[host.name] > 1 else host.name for host in hosts]
    return [
        Member(name, answer, slots=host.slots, prefix=host.prefix, secrets=(host.target, host.name))
        for name, host, answer in zip(names, hosts, answers, strict=True)
    ]


def _query(command: list[str], program: Program, limit_s: float, running: set[Popen[Any]]) -> Answer:
    limits: dict[str, Any] = {"timeout_s": limit_s, "max_output": MAX_ANSWER_BYTES}
    try:
        done = process.run(command, stdin=program.program_text(limit_s), running=running, **limits)
    except OSError as error:
        return Answer(problem=f"{command[0]} cannot be started here: {error.strerror or error}")
    if MARK in done.output:
        return Answer(done.output)
    return Answer(problem=describe_end(command, done, limit_s))


def describe_end(command: list[str], done: process.Completed, limit_s: float) -> str:
    """Return how a program ended that gave no answer, with the last line of its errors, the most informative one."""
    if done.timed_out:
        return f"no answer within {limit_s:g} s"
    lines = [printable_line(line) for line in done.errors.splitlines() if line.strip()]
    ends = {126: "no such Python there", 127: "no such Python there", 255: f"{command[0]} could not connect"}
    end = ends.get(done.code, f"{command[0]} ended with {done.code}")
    return f"{end}: {lines[-1] if lines else 'no output'}"


def collect_program(prefix: str = "") -> Program:
    """Return the program that collects a host's facts; with an empty prefix, of the environment of its Python."""
    return Program("diagnostics.collect.facts", "collect_node", {"prefix": prefix})
