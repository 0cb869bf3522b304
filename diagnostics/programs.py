"""Commands that are programs of their own, started by name; and what to install where a module is missing."""

from __future__ import annotations

import errno
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

NAME = "grpo-doctor"
# Set to anything, it shows the traceback of a failure that is a program's own.
DEBUG = "GRPO_DOCTOR_DEBUG"
# The command's name: the module that is run, what stands before its arguments, and its line of help.
PROGRAMS: dict[str, tuple[str, tuple[str, ...], str]] = {
    "repro": ("repro", (), "make known failures happen on the vLLM that is installed"),
    "matrix": ("diagnostics.matrix", (), "run the matrix of versions (needs a checkout)"),
    "train": ("grpo_core", ("train",), "the reference trainer (needs the extra 'train')"),
}
# What each extra brings, by the names of its modules.
_EXTRAS = {
    "hang": ("py_spy",),
    "matrix": ("jinja2", "pypi_simple", "remotezip", "requests", "uv"),
    "ray": ("ray",),
    "train": ("fastapi", "safetensors", "torch", "transformers", "uvicorn"),
}
# Where an import is called otherwise than what brings it.
_DISTRIBUTIONS = {"re2": "google-re2", "yaml": "pyyaml"}
_OURS = ("diagnostics", "grpo_core", "repro")


def called() -> str:
    """Returns what the user typed to start us, for usage lines."""
    return NAME if sys.argv[0].rpartition("/")[2] == NAME else "python -m diagnostics"


def missing(error: ModuleNotFoundError) -> str | None:
    """Says in one line what to install for a module that is not there; None for a module of ours: that is a fault.

    >>> missing(ModuleNotFoundError(name="jinja2.nodes"))
    "jinja2 is not installed here: pip install 'grpo-doctor[matrix]'"
    >>> missing(ModuleNotFoundError(name="re2"))
    'google-re2 is not installed here: pip install google-re2'
    """
    module = (error.name or "").partition(".")[0]
    if not module or module in _OURS:
        return None
    for extra, modules in _EXTRAS.items():
        if module in modules:
            return f"{module} is not installed here: pip install '{NAME}[{extra}]'"
    distribution = _DISTRIBUTIONS.get(module, module)
    return f"{distribution} is not installed here: pip install {distribution}"


def failed(error: Exception, program: str) -> int:
    """Says in one line that this program failed, or what it lacks, and returns 2: its faults are nobody's findings."""
    line = missing(error) if isinstance(error, ModuleNotFoundError) else None
    if line is not None:
        print(f"{program}: {line}", file=sys.stderr)
        return 2
    if os.environ.get(DEBUG):
        import traceback

        traceback.print_exception(error)
    from diagnostics.collect.secrets import cut

    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        print(f"{program}: {error.strerror}: the answer is not whole", file=sys.stderr)
        return 2
    said = cut(" ".join(f"{type(error).__name__}: {error}".split()), 400)
    print(f"{program}: failed, which is a fault of its own: {said} ({DEBUG}=1 shows where)", file=sys.stderr)
    return 2


def start(name: str, arguments: Sequence[str]) -> int:
    """Runs a program in this process as `python -m` would, and returns its exit code.

    Args:
        name: of the command, a key of PROGRAMS.
        arguments: those behind it.
    """
    # Here: a command that starts no program needs neither.
    import importlib.util
    import runpy

    module, before, _ = PROGRAMS[name]
    # The matrix reads and writes the project's own files, and a wheel has neither them nor it.
    if importlib.util.find_spec(module) is None:
        print(
            f"{NAME}: {name} needs a checkout of the project, not an installed wheel; there: nox -s {name} "
            f"(what it published: {NAME} versions)",
            file=sys.stderr,
        )
        return 2
    sys.argv = [module, *before, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except ModuleNotFoundError as error:
        line = missing(error)
        if line is None:
            raise
        print(f"{NAME}: {name}: {line}", file=sys.stderr)
        return 2
    except SystemExit as left:
        if isinstance(left.code, str):
            print(left.code, file=sys.stderr)
            return 2
        return left.code or 0
    return 0
