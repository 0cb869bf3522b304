"""Define toy repros for tests: attempts that hang, crash, print, fail or lose a token.

The command imports this module by its name as its registry, so the module needs nothing else of the tests. `hang` and
`escape` open the FIFO named in TOY_FIFO, so that a test can observe the end of their processes.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading

from repro.registry import InapplicableError, Repro, Tally, TriedMitigation, Trigger


def hang(_mitigation):
    """Wait forever; with TOY_FIFO, first start a child process that also waits forever."""
    fifo = os.environ.get("TOY_FIFO")
    if fifo:
        writer = os.open(fifo, os.O_WRONLY)
        program = "import threading; threading.Event().wait()"
        subprocess.Popen([sys.executable, "-S", "-c", program], pass_fds=[writer])
        os.write(writer, b"hanging\n")
    with contextlib.suppress(ZeroDivisionError):
        threading.Event().wait()


def escape(_mitigation):
    """Start a process in another session, which killing the attempt's process group does not end, and wait for it.

    With TOY_RETURNS, end with exit code 5 instead of waiting.
    """
    writer = os.open(os.environ["TOY_FIFO"], os.O_WRONLY)
    program = "import os, threading; os.setsid(); print('out', flush=True); threading.Event().wait()"
    command = [sys.executable, "-S", "-c", program]
    with subprocess.Popen(command, pass_fds=[writer], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        os.write(writer, f"{os.environ['TMPDIR']}\n".encode())
        if os.environ.get("TOY_RETURNS"):
            os._exit(5)


def crash(_mitigation):
    """End the process with SIGSEGV."""
    os.kill(os.getpid(), signal.SIGSEGV)


def leave(_mitigation):
    """End the process without a result."""
    os._exit(5)


def chatter(_mitigation):
    """Print with Python and directly to the file descriptor; finish the work."""
    print("chatter", flush=True)
    os.write(1, b"more chatter\n")
    return Tally({"a": 1}, [("a", 1)])


def own_assertion(mitigation):
    """Fail an assertion of the harness."""
    assert mitigation == "never", "the harness is wrong"


def wrong_value(_mitigation):
    """Raise another exception than an assertion."""
    raise ValueError("not an assertion")


def silent(mitigation):
    """Lose a token, unless the mitigation `helps` is applied."""
    if mitigation == "senseless":
        raise InapplicableError("it has no meaning here")
    return Tally({"a": 3, "b": 2}, [("a", 3), ("b", 2 if mitigation == "helps" else 1)])


def toy(code, *triggers, modules=(), inapplicable=None):
    """Return a repro with the mitigations that all toys have."""
    return Repro(
        code=code,
        title="Nothing upstream",
        assertion="assert upstream",
        distributions=("pluggy",),
        modules=modules,
        helpful_modules=("no_such_module",),
        simulated=("everything",),
        triggers=triggers,
        mitigations=(
            TriedMitigation("helps", "does", frozenset({"silent"})),
            TriedMitigation("useless", "is recorded as helping, and does not help", frozenset({"silent"})),
            TriedMitigation("senseless", "has no meaning", frozenset()),
        ),
        inapplicable_reason=lambda: inapplicable,
    )


SILENT = Trigger("silent", silent, "loses a token without an exception", silent=True)
ALL = [
    toy(
        "TOY001",
        Trigger("hang", hang, "waits forever"),
        Trigger("escape", escape, "waits forever, as does a process in another session"),
        Trigger("crash", crash, "dies of a signal"),
        Trigger("leave", leave, "ends its process"),
        Trigger("chatter", chatter, "prints"),
        Trigger("own_assertion", own_assertion, "fails in our own code"),
        Trigger("wrong_value", wrong_value, "raises something else"),
        SILENT,
    ),
    toy("TOY002", SILENT, modules=("no_such_module",)),
    toy("TOY003", SILENT, modules=("endless_import",)),
    toy("TOY004", SILENT, modules=("deadly_import",)),
    toy("TOY005", SILENT, inapplicable="the code is not there"),
    toy("TOY006", SILENT),
]
REPROS = {repro.code: repro for repro in ALL}
# A toy whose upstream package is not installed.
REPROS["TOY007"] = Repro(**{**vars(toy("TOY007", SILENT)), "distributions": ("no-such-distribution",)})
