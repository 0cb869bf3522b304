"""This project's own TOML for grpo_core."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnostics.lint.dialects import base
from diagnostics.lint.dialects.dialect import Dialect, Recognised

if TYPE_CHECKING:
    from diagnostics.lint.dialects.dialect import Started
    from diagnostics.lint.plan import RunPlan
    from diagnostics.lint.values import Settings
    from diagnostics.lint.versions import Versions

NAMES = {
    "rollout.mode": "rollout.mode",
    "rollout.engine": "rollout.engine",
    "rollout.max_staleness": "rollout.depth",
    "rollout.host": "server.host",
    "rollout.port": "server.port",
    "rollout.timeout_s": "server.timeout",
    "sampling.group_size": "group.size",
    "sampling.max_tokens": "data.max_completion",
    "sampling.temperature": "sampling.temperature",
    "sampling.top_p": "sampling.top_p",
    "sampling.top_k": "sampling.top_k",
}


def plan(settings: Settings, versions: Versions) -> RunPlan:
    """The plan of a run of grpo_core."""
    del versions
    made = base.start(settings, NAMES)
    mode = made.values.get("rollout.mode")
    if mode is not None and mode.known:
        made.put("rollout.async", mode.but(mode.data == "async"))
    base.truncated(made)
    return made


def _launched(started: Started) -> Recognised | None:
    if started.module == "grpo_core" and started.rest[:1] == ("train",):
        return Recognised("own", "train", started.start + 1)
    return None


DIALECT = Dialect("own", plan, _launched)
