"""Settings and fixtures of the whole suite."""

import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# The same examples each time: a failure that comes once in ten runs stops the wrong change. How long one takes is the
# machine's business.
settings.register_profile(
    "same", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("same")


def pytest_configure(config):
    """Take SIGINT back: a shell has what it starts in the background ignore it, and all that this starts too.

    And puts what was named in the order of its folders: pytest 9.1 forgets a folder's fixtures when it comes back.
    """
    # Progress messages of slow commands depend on the machine, so tests disable them.
    os.environ["GRPO_DOCTOR_QUIET"] = "1"
    config.args.sort(key=_folder)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _folder(argument):
    """Return the folder of an argument's tests."""
    path = Path(argument.partition("::")[0])
    return (path if path.is_dir() else path.parent).parts


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Keep the tests of a file together where they share a fixture; the others go to whichever worker is free."""
    for item in items:
        definitions = item._fixtureinfo.name2fixturedefs.values()
        if any(definition.scope == "module" for several in definitions for definition in several):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))


def pytest_collection_finish(session):
    """Refuse a pytest under which pytest-xdist loses its groups: each worker would make each fixture."""
    grouped = [item for item in session.items if item.get_closest_marker("xdist_group")]
    if session.config.getoption("loadgroup", False) and any("@" not in item.nodeid for item in grouped):
        raise pytest.UsageError(
            f"pytest {pytest.__version__}: the names that pytest-xdist gives are not kept"
        )


@pytest.fixture(scope="session", autouse=True)
def terminal():
    """Commands are tried with no wishes of the caller's terminal: TERM=dumb alone changes what one of them draws."""
    wishes = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLORTERM")
    with pytest.MonkeyPatch.context() as patch:
        for name in wishes:
            patch.delenv(name, raising=False)
        patch.setenv("TERM", "xterm-256color")
        yield
