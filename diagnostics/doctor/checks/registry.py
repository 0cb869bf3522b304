"""Register doctor's checks: functions that read collected facts and yield findings and unchecked inputs.

`@check` adds a function to one of CHECKS. `CheckInput` is its argument, and `finding` builds a finding from a code.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from diagnostics.catalog import mitigation_ranking
from diagnostics.catalog.model import Issue
from diagnostics.collect.machine import Machine
from diagnostics.collect.python_environment import Environment, Package
from diagnostics.compat_table import Compat
from diagnostics.findings import Evidence, Finding, NotChecked

CHECKS = (
    "package metadata", "search path", "entry points", "known issues", "compatibility table", "names of other packages",
    "declared requirements", "compiled modules", "mixed builds", "environment variables", "shared memory", "limits",
    "disks", "memory", "processors", "system libraries", "GPU driver", "GPUs", "network devices", "Ray",
    "default files",
)  # fmt: skip
"""Names of the checks, in the order of the report."""
finding = mitigation_ranking.finding
"""Builds a finding with the title of its code; lint uses the same function."""


class NotApplicableError(Exception):
    """Raised by a check that does not apply here; the message says why."""


class NoMachineError(Exception):
    """Raised if a check needs the facts of the machine and there are none."""


@dataclass(frozen=True)
class CheckInput:
    """Input of a check.

    Attributes:
        environment: The environment.
        issues: The known issues of the catalog, by code.
        compat: The compatibility table.
        host: The facts of the machine; None if it was not examined.
    """

    environment: Environment
    issues: dict[str, Issue]
    compat: Compat
    host: Machine | None = None

    @property
    def machine(self) -> Machine:
        """The facts of the machine; raise NoMachineError if there are none."""
        if self.host is None:
            raise NoMachineError
        return self.host

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables that affect a run."""
        return self.environment.variables


CheckFunction = Callable[[CheckInput], Iterator[Finding | NotChecked]]
_Function = TypeVar("_Function", bound=CheckFunction)
REGISTERED: dict[str, list[CheckFunction]] = {name: [] for name in CHECKS}
"""The functions of each check."""


def check(name: str) -> Callable[[_Function], _Function]:
    """Return a decorator that registers a function as a check of CHECKS or a part of one; KeyError for other names."""

    def register(function: _Function) -> _Function:
        REGISTERED[name].append(function)
        return function

    return register


def evidence_of(package: Package) -> Evidence:
    """Return the evidence that a package is installed."""
    return Evidence(str(package), package.place)
