"""Run one check over many cases in one test and list every violation, not only the first."""

from collections.abc import Callable, Iterable


def violations(check: Callable[..., None], cases: Iterable[object]) -> list[str]:
    """Call a check with each case (a tuple as several arguments), and return a line for each failed assertion."""
    problems = []
    for case in cases:
        try:
            check(*case) if isinstance(case, tuple) else check(case)
        except AssertionError as error:
            problems.append(f"{case}: {str(error).splitlines()[0] if str(error) else 'assertion failed'}")
    return problems
