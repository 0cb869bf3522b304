"""SYN002: a pause that waits for what runs forgets a request that is preempted meanwhile, and new weights finish it.

The search over the real V1 scheduler found it (docs/search.md); here it happens on the whole engine: `AsyncLLM`, its
EngineCore process, its CPU worker. Nothing is raised. What shows it is the log-probs of one completion, of which the
first are those of the old weights and the rest those of the new.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from typing import Any

from repro import upstream
from repro.base import InapplicableError, Trigger, Work, repro
from repro.drivers import elsewhere
from repro.drivers.paused_engine import PROMPTS, TOKENS

_ENGINE = "vllm/v1/engine/async_llm.py"
_SCHEDULER = "vllm/v1/core/sched/scheduler.py"
PLANS: dict[str | None, dict[str, Any]] = {
    None: {},
    "abort": {"mode": "abort"},
    "await_requests": {"first_await": True},
    "enough_cache": {"room": "all sequences"},
}


def planned(mitigation: str | None) -> dict[str, Any]:
    """Returns what the other process is asked to do."""
    return {"mode": "wait", "room": "one sequence", "first_await": False} | PLANS[mitigation]


def work(report: Mapping[str, Any]) -> Work:
    """Counts the completions that are of one policy from their first token to their last.

    Raises:
        ElsewhereError: upstream's code ended the other process.
        InapplicableError: no engine can be run there.
    """
    if "inapplicable" in report:
        raise InapplicableError(report["inapplicable"])
    if "failure" in report:
        raise elsewhere.failed(report["failure"])
    completions: Mapping[str, list[str]] = report["completions"]
    if any("?" in policies for policies in completions.values()):
        raise RuntimeError(f"log-probs that are of neither weights: {_told(completions)}")
    whole = [(name, len(policies)) for name, policies in completions.items() if len(set(policies)) == 1]
    at_pause = ", ".join(f"{count} of {name}" for name, count in report["at_pause"].items())
    return Work(
        dict.fromkeys(PROMPTS, TOKENS),
        whole,
        note=f"tokens when the pause was over: {at_pause}; {_told(completions)}",
        counted="completions are of one policy",
    )


def _told(completions: Mapping[str, list[str]]) -> str:
    return "; ".join(
        f"{name}: "
        + ", then ".join(
            f"{len(list(run))} by the {policy} weights" for policy, run in itertools.groupby(kinds)
        )
        for name, kinds in completions.items()
    )


def _carry_out(mitigation: str | None) -> Work:
    return work(elsewhere.ask("repro.drivers.paused_engine", planned(mitigation), os.environ))


def inapplicable() -> str | None:
    """Says which piece of the failure the installed vLLM lacks; None if all are there."""
    distribution = upstream.installed(upstream.VLLM)
    release = f"{distribution.metadata['Name']} {distribution.version}" if distribution else "vLLM"
    if "mode: PauseMode" not in (upstream.source(_ENGINE) or ""):
        return f"pause_generation of {release} has no modes"
    if "PauseState.PAUSED_NEW" not in (upstream.source(_SCHEDULER) or ""):
        return f"the scheduler of {release} does not know of a pause"
    return None


repro(
    "SYN002",
    distributions=upstream.VLLM,
    triggers=[Trigger("preempted", _carry_out, silent=True)],
    mitigations={
        "abort": 'pause_generation(mode="abort"), and ask again for what was cut off',
        "await_requests": "every request is awaited before the pause",
        "enough_cache": "a KV cache that holds all requests whole",
    },
    inapplicable=inapplicable,
)
