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
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
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
    "output/redaction.toml", "output/secret_names.py", "process.py", "safe_io.py",
)  # fmt: skip
# A name that starts with a dash would be an option of ssh.
_HOST = re.compile(
    r"((?:[\w.][\w.-]*@)?([A-Za-z0-9_][\w.-]*|[0-9A-Fa-f]*(?::[0-9A-Fa-f]*){2,}))(?:\s+slots=(\d{1,6}))?(?:\s+max[-_]slots=\d+)?",
    re.ASCII,
)
_EXAMPLE = "user@host slots=8"
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
    """The output of a host or of a node of a Ray cluster, or the reason why there is none.

    Attributes:
        text: The output.
        problem: Why there is no output, in one line.
        name: Name or address.
        dead: Whether Ray reports the node as dead.
        slots: Number of processes that a launcher starts on the host; 0 if unknown.
    """

    text: str = ""
    problem: str = ""
    name: str = ""
    dead: bool = False
    slots: int = 0

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
class Host:
    """One line of the list of hosts.

    Attributes:
        target: The host as ssh expects it, with the user if the list names one.
        name: Name or address.
        slots: Number of processes that a launcher starts on the host; 0 if unknown.
    """

    target: str
    name: str
    slots: int = 0


def printable_line(text: str) -> str:
    """Return an untrusted text as one line without control characters, truncated but not masked."""
    printable = "".join(char if char.isprintable() else " " for char in text)
    return truncate(" ".join(printable.split()), 300)


def read_hosts(path: Path) -> list[Host]:
    """Read a list of hosts, one per line, in the format of MPI and DeepSpeed hostfiles.

    Raises:
        RemoteError: The file is unreadable, lists no host or too many, or has an invalid line.
    """
    option = f"--hosts {path}"
    try:
        text = safe_io.read_text(path, safe_io.MIB, pipes=True)
    except OSError as error:
        raise RemoteError(f"{option}: cannot be read: {error.strerror or error}") from None
    hosts: list[Host] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if words := line.partition("#")[0].strip():
            if (match := _HOST.fullmatch(words)) is None:
                remember_line(words)
                raise RemoteError(
                    f"{option}:{number}: {truncate(words, 80)!r}: expected a host, as {_EXAMPLE}"
                )
            hosts.append(Host(match[1], match[2], int(match[3] or 0)))
            if hosts[-1] in hosts[:-1]:
                raise RemoteError(f"{option}:{number}: {match[1]} is listed twice")
    if not hosts:
        raise RemoteError(f"{option}: no host in it: expected one a line, as {_EXAMPLE}")
    if len(hosts) > MAX_HOSTS:
        raise RemoteError(f"{option}: {len(hosts)} hosts; at most {MAX_HOSTS} are queried")
    return hosts


def host_command(host: Host, template: str, python: str, limit_s: float) -> list[str]:
    """Return the command that starts a Python on a host; this Python reads its program from standard input.

    Args:
        host: The host.
        template: The user's command, such as `srun -w {host} -n1`; empty for ssh. Python and `-` are appended.
        python: The Python on the host.
        limit_s: Connection limit of ssh.

    Raises:
        RemoteError: The template is invalid.
    """
    quoted = shlex.quote(python)  # ssh passes the words to a shell
    if not template.strip():
        options = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={max(1, round(limit_s))}"]
        return ["ssh", "-T", *options, "--", host.target, f"{quoted} -"]
    try:
        words = [word.format(host=host.name, target=host.target) for word in shlex.split(template)]
    except (ValueError, LookupError, AttributeError) as error:
        problem = f"cannot be read: {error}; expected {{host}} or {{target}}"
        raise RemoteError(f"--host-command: {problem}") from None
    return [*words, quoted, "-"]


def query_hosts(
    hosts: Sequence[Host],
    program: Program,
    *,
    template: str = "",
    python: str = "python3",
    limit_s: float = LIMIT_S,
) -> list[Answer]:
    """Run a program on all hosts, at most MAX_PARALLEL at a time; return their answers in the same order.

    Args:
        hosts: The hosts.
        program: The program.
        template: See `host_command`.
        python: The Python on the hosts.
        limit_s: Time limit for each host.

    Raises:
        RemoteError: The template is invalid.
    """
    commands = [host_command(host, template, python, limit_s) for host in hosts]
    running: set[Popen[Any]] = set()
    query = functools.partial(_query, text=program.program_text(limit_s), limit_s=limit_s, running=running)
    with ThreadPoolExecutor(MAX_PARALLEL) as pool:
        futures = [pool.submit(query, *job) for job in zip(hosts, commands, strict=True)]
        try:
            # Python handles Ctrl-C only between waits if another thread received the signal.
            while wait(futures, timeout=0.2).not_done:
                pass
        except BaseException:  # such as Ctrl-C: wait for no host any longer
            pool.shutdown(wait=False, cancel_futures=True)
            # A thread may start its program after this, so repeat until all threads are done.
            while wait(futures, timeout=0.05).not_done:
                for child in tuple(running):
                    process.end_group(child)
            raise
    return [future.result() for future in futures]


def _query(host: Host, command: list[str], *, text: str, limit_s: float, running: set[Popen[Any]]) -> Answer:
    answer = Answer(name=host.name, slots=host.slots)
    try:
        done = process.run(
            command, stdin=text, timeout_s=limit_s, max_output=MAX_ANSWER_BYTES, running=running
        )
    except OSError as error:
        return replace(answer, problem=f"{command[0]} cannot be started here: {error.strerror or error}")
    if MARK in done.output:
        return replace(answer, text=done.output)
    return replace(answer, problem=describe_end(command, done, limit_s))


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
