"""How a check says that it is one: by a decorator with its name. What it needs, it says by its parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from diagnostics.catalog.model import Issue
    from diagnostics.collect.compat import Compat
    from diagnostics.collect.environment import Environment
    from diagnostics.collect.machine import Machine
    from diagnostics.output.findings import Finding, NotJudged

    Look = TypeVar("Look", bound=Callable[..., list[Finding]])

# In the order in which they are told.
CHECKS = (
    "package metadata",
    "search path",
    "entry points",
    "known issues",
    "compatibility table",
    "declared requirements",
    "compiled modules",
    "mixed builds",
    "environment variables",
    "shared memory",
    "limits",
    "disks",
    "memory",
    "processors",
    "system libraries",
    "GPU driver",
    "GPUs",
    "network devices",
    "Ray",
    "default files",
)


@dataclass(frozen=True)
class Examined:
    """What a check can look at, each by the name of a parameter.

    Args:
        environment: The packages and variables.
        issues: The catalogue.
        compat: The table of pairs that were run.
        machine: What is under the environment; None where nobody looked.
    """

    environment: Environment
    issues: dict[str, Issue]
    compat: Compat
    machine: Machine | None


@dataclass(frozen=True)
class DoctorCheck:
    """A function from what was examined to findings. Several of one name are told as one check.

    Args:
        name: One of `CHECKS`.
        look: The function; its parameters are fields of `Examined`.
        skip: Says why there is nothing to look at, or "".
        not_judged: Says what of it could not be judged: a list of `NotJudged`.
    """

    name: str
    look: Callable[..., list[Finding]]
    skip: Callable[..., str] | None = None
    not_judged: Callable[..., list[NotJudged]] | None = None

    @property
    def place(self) -> tuple[str, int]:
        """Its file and line: functions of one check are asked in this order."""
        return self.look.__code__.co_filename, self.look.__code__.co_firstlineno


_registered: list[DoctorCheck] = []


def check(
    name: str,
    *,
    skip: Callable[..., str] | None = None,
    not_judged: Callable[..., list[NotJudged]] | None = None,
) -> Callable[[Look], Look]:
    """Registers the function below it as a check; the words are those of `DoctorCheck`."""

    def register(look: Look) -> Look:
        _registered.append(DoctorCheck(name, look, skip, not_judged))
        return look

    return register


def checks() -> list[DoctorCheck]:
    """All checks of the files that were imported so far, in order."""
    return sorted(_registered, key=lambda each: each.place)


def needs(function: Callable[..., Any]) -> tuple[str, ...]:
    """Which fields of `Examined` a function asks for."""
    code = function.__code__
    return code.co_varnames[: code.co_argcount]


def asked(function: Callable[..., Any], examined: Examined) -> Any:
    """What a function answers to what it needs of all that was examined."""
    return function(*(getattr(examined, name) for name in needs(function)))


def problems() -> list[str]:
    """What is wrong with the checks' registrations, each with its place."""
    found = []
    for each in checks():
        place = ":".join(map(str, each.place))
        if each.name not in CHECKS:
            found.append(f"{place}: there is no check {each.name!r}: expected one of {', '.join(CHECKS)}")
        for function in filter(None, (each.look, each.skip, each.not_judged)):
            unknown = set(needs(function)) - set(Examined.__dataclass_fields__)
            found += [f"{place}: nothing is examined under the name {name}" for name in sorted(unknown)]
        if each.skip and sum(other.name == each.name for other in checks()) > 1:
            found.append(f"{place}: a check that may be skipped is one function; {each.name!r} is several")
    return found
