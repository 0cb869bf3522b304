"""The interpreter that an environment's packages are for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnostics.catalogue.own_codes import finding
from diagnostics.doctor.checks.registered import check
from diagnostics.report.findings import Evidence, Severity
from diagnostics.report.remedies import Remedy, Run

if TYPE_CHECKING:
    from diagnostics.facts.environment import Environment
    from diagnostics.report.findings import Finding


@check("package metadata")
def interpreter(environment: Environment) -> list[Finding]:
    """ENV924 where the environment's interpreter is a link to nothing."""
    if not environment.dangling:
        return []
    return [
        finding(
            "ENV924",
            Severity.ERROR,
            known_by="static",
            detail="Nothing in this environment can be started.",
            evidence=tuple(
                Evidence(f"a link to {target}, which is not there", link)
                for link, target in environment.dangling
            ),
            remedy=Remedy.of(
                f"Install that Python again ({environment.python}), or make the environment anew and install into it.",
                Run(("python3", "-m", "venv", "--upgrade", environment.prefix)),
            ),
        )
    ]
