"""CMP002: TRL imports a name that this vLLM does not have, not yet or no more.

In TRL 0.27 to 0.29 that is decided by comparing version texts, and a build whose version has a suffix (0.10.2.post2) is
taken for a newer release.
"""

from __future__ import annotations

import importlib.util

from repro.base import Repro
from repro.drivers import trl_imports


def inapplicable() -> str | None:
    """Says why it can't happen with what is installed, or None. Imports nothing."""
    missing = trl_imports.without_trl()
    if missing is None and importlib.util.find_spec("vllm") is None:
        return "vLLM is not installed here: TRL imports nothing of it"
    return missing


REPRO = Repro(
    code="CMP002",
    title="TRL imports a name that the installed vLLM does not have",
    distributions=trl_imports.DISTRIBUTIONS,
    triggers=trl_imports.triggers("CMP002"),
    mitigations=trl_imports.another_release("a TRL that was made for this vLLM"),
    inapplicable=inapplicable,
)
