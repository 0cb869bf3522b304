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
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen
from typing import Any, NamedTuple

from diagnostics import UserError, process, safe_io
from diagnostics.output.redact import remember_host, remember_line, truncate

MARK = "grpo-doctor-node:"
LIMIT_S, MAX_PARALLEL, MAX_ANSWER_BYTES = 30.0, 32, 8 << 20
_PACKAGE = Path(__file__).resolve().parents[1]
# Patterns of our source files that are sent to a host. Those that run there use the standard library only.
_SOURCES = (
    "__init__.py", "memory_limit.py", "process.py", "safe_io.py", "collect/*.*", "frameworks/*.*", "hang/__init__.py",
    "hang/snapshot.py", "hang/collect/*.*", "output/redact.py", "output/redaction.toml",
    "output/secret_names.py",
)  # fmt: skip
# A name that starts with a dash would be an option of ssh.
_HOST = re.compile(
    r"((?:[\w.][\w.-]*@)?(?:[A-Za-z0-9_][\w.-]*|[0-9A-Fa-f]*(?::[0-9A-Fa-f]*){2,}))(?:\s+slots=(\d{1,6}))?(?:\s+max[-_]slots=\d+)?",
    re.ASCII,
)
_EXAMPLE = "user@host slots=8"
# Old Pythons can parse it too, and report that they are too old.
_PROGRAM = """\
import sys
# Modules in the working folder are not imported.
sys.path[:] = [entry for entry in sys.path if entry not in ("", ".")]
import base64, importlib, io, json, signal, tempfile, zipfile
def run():
    if sys.version_info < (3, 10):
        return {"error": "Python %%d.%%d there is too old: it needs 3.10" %% sys.version_info[:2]}
    for number in (signal.SIGALRM, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(1))
    signal.alarm(%(limit)d)
    sys.dont_write_bytecode = True
    with tempfile.TemporaryDirectory(prefix="grpo-doctor-") as folder:
        zipfile.ZipFile(io.BytesIO(base64.b64decode("%(sources)s"))).extractall(folder)
        sys.path.insert(0, folder)
        return getattr(importlib.import_module(%(module)r), %(function)r)(json.loads(%(options)r), folder)
try:
    document = run()
except Exception as error:
    document = {"error": "%%s: %%s" %% (type(error).__name__, error)}
sys.stdout.write("\\n%(mark)s " + json.dumps(document) + "\\n")
"""


class RemoteError(UserError, ValueError):
    """Raised if an option, a list of hosts, a command or a cluster cannot be used; the message is one line."""


def program_text(module: str, function: str, options: dict[str, Any], limit_s: float) -> str:
    """Return a Python program that calls one of our functions on a node and prints the document that it returns.

    Args:
        module: The function's module.
        function: The function's name; it takes (options, folder of the sources).
        options: The function's first argument.
        limit_s: Time after which the program ends itself.
    """
    words = {"module": module, "function": function, "options": json.dumps(options), "mark": MARK}
    return _PROGRAM % (words | {"limit": max(1, round(limit_s)), "sources": zip_sources()})


@functools.cache
def zip_sources() -> str:
    """Zip the sources that a host needs, in Base64; TOML becomes JSON, because Python 3.10 reads no TOML."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(path for pattern in _SOURCES for path in _PACKAGE.glob(pattern)):
            name, text = path.relative_to(_PACKAGE.parent), path.read_text(encoding="utf-8")
            if path.suffix == ".toml":
                name, text = name.with_suffix(".json"), json.dumps(safe_io.parse_toml(text))
            archive.writestr(name.as_posix(), text)
    return base64.b64encode(buffer.getvalue()).decode("ascii")


class Host(NamedTuple):
    """One line of the list of hosts.

    Attributes:
        target: The host as ssh expects it, with the user if the list names one.
        slots: Number of processes that a launcher starts on the host; 0 if unknown.
    """

    target: str
    slots: int = 0

    @property
    def name(self) -> str:
        """Name or address."""
        return self.target.rpartition("@")[2]


@dataclass(frozen=True)
class Answer:
    """What a function returned on a host or on a node of a Ray cluster, or the reason why there is nothing.

    Attributes:
        document: The function's document; empty if there is a problem.
        problem: Why there is no document, in one line.
        name: Name or address.
        dead: Whether Ray reports the node as dead.
        slots: Number of processes that a launcher starts on the host; 0 if unknown.
    """

    document: dict[str, Any]
    problem: str = ""
    name: str = ""
    dead: bool = False
    slots: int = 0


def read_output(output: str, problem: str, **fields: Any) -> Answer:
    """Return the answer in the untrusted output of a program; `problem` is the reason if there is none."""
    document: Any = {"error": problem or "unexpected output: the host did not run the collector"}
    if lines := [line for line in output.splitlines() if line.startswith(MARK)]:
        try:
            document = safe_io.parse_json(lines[-1].removeprefix(MARK))
        except ValueError as error:
            document = {"error": f"unreadable answer: {error}"}
    if not isinstance(document, dict):
        document = {"error": "unreadable answer: expected an object"}
    if "error" in document:
        return Answer({}, printable_line(str(document["error"])), **fields)
    return Answer(document, **fields)


def printable_line(text: str) -> str:
    """Return an untrusted text as one line without control characters, truncated but not masked."""
    printable = "".join(char if char.isprintable() else " " for char in text)
    return truncate(" ".join(printable.split()), 300)


def read_hosts(path: Path) -> list[Host]:
    """Read a list of hosts, one per line, in the format of MPI and DeepSpeed hostfiles; `redact` replaces their names.

    Raises:
        RemoteError: The file is unreadable, lists no host or one twice, or has an invalid line.
    """
    option = f"--hosts {path}"
    try:
        text = safe_io.read_text(path, safe_io.MIB, pipes=True)
    except OSError as error:
        raise RemoteError(f"{option}: cannot be read: {error.strerror or error}") from None
    hosts: dict[str, Host] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if words := line.partition("#")[0].strip():
            if (match := _HOST.fullmatch(words)) is None:
                remember_line(words)
                problem = f"{truncate(words, 80)!r}: expected a host, as {_EXAMPLE}"
                raise RemoteError(f"{option}:{number}: {problem}")
            host = Host(match[1], int(match[2] or 0))
            if host.target in hosts:
                raise RemoteError(f"{option}:{number}: {host.target} is listed twice")
            hosts[host.target] = host
            remember_host(host.target)
            remember_host(host.name)
    if not hosts:
        raise RemoteError(f"{option}: no host in it: expected one a line, as {_EXAMPLE}")
    return list(hosts.values())


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
        words = shlex.split(template)
    except ValueError as error:
        raise RemoteError(f"--host-command: cannot be read: {error}") from None
    if "{host}" not in template:
        raise RemoteError("--host-command: expected {host} in it")
    return [*(word.replace("{host}", host.target) for word in words), quoted, "-"]


def query_hosts(hosts: Sequence[Host], template: str, python: str, text: str, limit_s: float) -> list[Answer]:
    """Run a program on all hosts, at most MAX_PARALLEL at a time; return their answers in the same order.

    Args:
        hosts: The hosts.
        template: See `host_command`.
        python: The Python on the hosts.
        text: The program.
        limit_s: Time limit for each host.

    Raises:
        RemoteError: The template is invalid.
    """
    commands = [host_command(host, template, python, limit_s) for host in hosts]
    running: set[Popen[Any]] = set()
    query = functools.partial(run_program, text=text, limit_s=limit_s, running=running)
    with ThreadPoolExecutor(MAX_PARALLEL) as pool:
        futures = [
            pool.submit(query, command, name=host.name, slots=host.slots)
            for host, command in zip(hosts, commands, strict=True)
        ]
        try:
            # Python handles Ctrl-C only between waits if another thread received the signal.
            while wait(futures, timeout=0.2).not_done:
                pass
        finally:  # after Ctrl-C, wait for no host any longer
            pool.shutdown(wait=False, cancel_futures=True)
            # A thread may start its program after this, so repeat until all threads are done.
            while wait(futures, timeout=0.05).not_done:
                for child in tuple(running):
                    process.end_group(child)
    return [future.result() for future in futures]


def run_program(
    command: list[str],
    text: str,
    limit_s: float,
    *,
    name: str = "",
    slots: int = 0,
    max_output: int = MAX_ANSWER_BYTES,
    **limits: Any,
) -> Answer:
    """Start a command, pass it the text of a program, and return its answer, or how it ended without one."""
    try:
        done = process.run(command, stdin=text, timeout_s=limit_s, max_output=max_output, **limits)
    except OSError as error:
        problem = f"{command[0]} cannot be started here: {error.strerror or error}"
        return Answer({}, problem, name, slots=slots)
    # The last line of the errors says the most.
    errors = [line for line in done.errors.splitlines() if line.strip()] or ["no output"]
    problem = f"{command[0]} ended with {done.code}: {errors[-1]}"
    if done.timed_out:
        problem = f"no answer within {limit_s:g} s"
    return read_output(done.output, problem if done.code or not done.output else "", name=name, slots=slots)
