"""One module a framework: from its own words to the run plan, and its defaults."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnostics.lint.dialects import easyr1, openrlhf, own, swift, trl, verl, vllm

if TYPE_CHECKING:
    from collections.abc import Callable

    from diagnostics.lint.plan import RunPlan
    from diagnostics.lint.values import Settings
    from diagnostics.lint.versions import Versions

DIALECTS: dict[str, Callable[[Settings, Versions], RunPlan]] = {
    "trl": trl.plan,
    "ms-swift": swift.plan,
    "verl": verl.plan,
    "easyr1": easyr1.plan,
    "openrlhf": openrlhf.plan,
    "vllm": vllm.plan,
    "own": own.plan,
}
