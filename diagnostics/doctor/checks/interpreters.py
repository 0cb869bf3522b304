"""The interpreter that an environment's packages are for."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from diagnostics.catalog.own_codes import finding
from diagnostics.collect.environment import INSTALLERS
from diagnostics.doctor.checks.registered import check
from diagnostics.output.findings import Evidence, Severity
from diagnostics.output.remedies import Remedy, Run

if TYPE_CHECKING:
    from diagnostics.collect.environment import Environment
    from diagnostics.output.findings import Finding


@check("package metadata")
def interpreter(environment: Environment) -> list[Finding]:
    """ENV924 where the environment's interpreter is a link to nothing, missing, or not the packages' own."""
    if not environment.dangling and not environment.misfits:
        return []
    wanted = _python_of(environment)
    return [
        finding(
            "ENV924",
            # An interpreter that knows its library by itself starts without its home.
            Severity.WARNING if environment.homeless else Severity.ERROR,
            known_by="static",
            certainty="supported" if environment.homeless else "established",
            detail="Python may start all the same, where it knows its library by itself."
            if environment.homeless
            else "What is named below cannot be started, or finds nothing of what is installed.",
            evidence=(
                *(
                    Evidence(f"a link to {target}, which is not there", link)
                    for link, target in environment.dangling
                ),
                *(Evidence(text, place) for place, text in environment.misfits),
            ),
            remedy=Remedy.of(
                f"Install that Python again ({wanted}), or make the environment anew and install into it.",
                # A link to nothing is in the way of the one that is to be made.
                *([Run(("rm", *(link for link, _ in environment.dangling)))] if environment.dangling else []),
                Run((wanted, "-m", "venv", "--upgrade", "--without-pip", environment.prefix)),
            ),
        )
    ]


def _python_of(environment: Environment) -> str:
    """The Python that the packages are for, by their folder: another one finds none of them."""
    folders = Counter(
        Path(package.place).parent.parent.name
        for package in environment.packages.values()
        if package.name not in INSTALLERS
    )
    named = [name for name, _ in folders.most_common() if re.fullmatch(r"python3\.\d+", name)]
    return named[0] if named else "python3"
