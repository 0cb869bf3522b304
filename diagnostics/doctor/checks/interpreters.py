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
    """ENV924 where the environment's interpreter is a link to nothing, missing, or not the packages' own."""
    if not environment.dangling and not environment.misfits:
        return []
    return [
        finding(
            "ENV924",
            # An interpreter that knows its library by itself starts without its home.
            Severity.WARNING if environment.homeless else Severity.ERROR,
            known_by="static",
            certainty="supported" if environment.homeless else "established",
            detail="Nothing in this environment can be started, or nothing that is installed is found.",
            evidence=(
                *(
                    Evidence(f"a link to {target}, which is not there", link)
                    for link, target in environment.dangling
                ),
                *(Evidence(text, place) for place, text in environment.misfits),
            ),
            remedy=Remedy.of(
                f"Install that Python again ({environment.python}), or make the environment anew and install into it.",
                Run(("python3", "-m", "venv", "--upgrade", environment.prefix)),
            ),
        )
    ]
