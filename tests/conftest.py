"""Configure the whole test suite: hypothesis profile, signals, test order, worker groups and environment variables.

Garbage collection is off while tests are collected. The fixtures `commands` and `trainer` run programs in forked
processes.
"""

import gc
import os
import shlex
import signal
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests import fork_server
from tests.fork_server import ForkServer

# The examples are the same each time: otherwise a rare failure would stop an unrelated change.
settings.register_profile(
    "deterministic", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("deterministic")


def pytest_configure(config):
    """Disable progress messages and garbage collection, keep bytecode, sort the arguments by folder, restore SIGINT.

    pytest 9.1 loses a folder's fixtures if its tests are named in two places. Background jobs ignore SIGINT.
    """
    # Progress messages of slow commands depend on the machine, so tests disable them.
    os.environ["GRPO_DOCTOR_QUIET"] = "1"
    # Tests start hundreds of programs; without bytecode each of them would compile every source again.
    os.environ["PYTHONDONTWRITEBYTECODE"] = ""
    config.args.sort(key=_folder)
    # Collections during the import of all modules take seconds and free 12 of 600 MB.
    gc.disable()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _folder(argument):
    """Return the parts of the folder that a command-line argument names."""
    path = Path(argument.partition("::")[0])
    return (path if path.is_dir() else path.parent).parts


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config, specs):
    """In a run of the whole suite, fork pytest-xdist's workers from one process that has imported PyTorch."""
    if config.args_source is config.ArgsSource.TESTPATHS:
        folder = tempfile.TemporaryDirectory()
        address = os.environ[fork_server.WORKERS] = f"{folder.name}/workers"
        server = fork_server.start_worker_server(address)
        for clean_up in (folder.cleanup, server.wait, server.stdin.close):  # the last is called first
            config.add_cleanup(clean_up)
        for spec in specs:  # execnet splits the path of Python into words
            spec.python = shlex.join([sys.executable, fork_server.__file__, "fork", address])


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Group tests that share a process or a module fixture on one xdist worker, which starts slow tests first.

    Such a process takes seconds to start. Without the order, a worker runs a slow test at the end and the others wait.
    """
    for item in items:
        definitions = item._fixtureinfo.name2fixturedefs
        servers = [name for name in ("trainer", "commands", "ended_tokenizer_process") if name in definitions]
        if servers or any(one.scope == "module" for several in definitions.values() for one in several):
            item.add_marker(pytest.mark.xdist_group([*servers, item.path.stem][0]))
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_collection_finish(session):
    """Refuse a pytest release that drops pytest-xdist's groups, because each worker would then make each fixture.

    The garbage collector, which is off until here, then leaves out the objects of the imported modules.
    """
    grouped = [item for item in session.items if item.get_closest_marker("xdist_group")]
    if session.config.getoption("loadgroup", False) and any("@" not in item.nodeid for item in grouped):
        raise pytest.UsageError(f"pytest {pytest.__version__}: it drops the group names of pytest-xdist")
    gc.freeze()
    gc.set_threshold(2000, 20, 50)  # full collections took 4 % of the time
    gc.enable()


def pytest_make_parametrize_id(val):
    """Cut the name of a long value: pytest-xdist sends the name of each test more than ten times."""
    return ascii(val[:60]) if isinstance(val, str | bytes) and len(val) > 120 else None


@pytest.hookimpl(trylast=True)  # after the fixtures of the session end
def pytest_sessionfinish():
    """Collect garbage once and freeze the other objects, so that pytest's five collections do not take 0.5 s each."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def neutral_terminal():
    """Remove the caller's terminal settings, which change the output of commands, and set TERM."""
    colors = ("NO_COLOR", "FORCE_COLOR", "COLORTERM")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("COLUMNS", "LINES", *colors, "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
            patch.delenv(name, raising=False)
        patch.setenv("TERM", "xterm-256color")
        yield


@pytest.fixture(scope="session")
def commands():
    """Yield a runner of `python -m` with diagnostics, repro or the matrix; it forks a process that imported them."""
    with closing(ForkServer("commands")) as server:
        yield server


@pytest.fixture(scope="session")
def trainer():
    """Yield a runner of `python -m grpo_core`; it forks a process that has imported PyTorch and warmed it up."""
    with closing(ForkServer("trainer")) as server:
        yield server
