"""What a sweep found, as one document: by failure, trigger and mitigation, which releases gave which outcome."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from diagnostics import given
from diagnostics.catalog.affects import CONCERNED, claims_of, of_package
from diagnostics.collect.shapes import Each, problem
from diagnostics.matrix.ask.attempts import UNMITIGATED, WHOLE
from diagnostics.matrix.build.wheels import ranges
from diagnostics.tables import TableError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from diagnostics.catalog.model import Issue
    from diagnostics.matrix.records.events import Event
    from diagnostics.matrix.sweep.plan import Sweep

SCHEMA = "grpo-doctor.sweep.v1"
_SHAPE = {
    "schema": str,
    "generated": str,
    "sweeps": Each(
        {
            "package": str,
            "releases": [str],
            "without_an_answer": [str],
            "beside": Each(str),
            "codes": Each({"places": Each([str]), "outcomes": Each(Each(Each([str])))}),
        }
    ),
}

Found = dict[str, dict[str, dict[str, dict[str, list[str]]]]]
"""Code -> trigger -> mitigation -> outcome -> releases."""


def document(
    sweep: Sweep, releases: Sequence[str], asked: Sequence[str], events: Mapping[str, Event]
) -> dict[str, Any]:
    """Returns the results of one sweep; releases that gave no answer are named, not left out.

    Args:
        sweep: What was asked.
        releases: All that there are, oldest first.
        asked: Those that count.
        events: Version -> its answer.
    """
    finished = {version: event for version, event in events.items() if event.finished}
    found: Found = {}
    places: dict[str, dict[str, list[str]]] = {}
    for version in asked:
        event = finished.get(version)
        for code, trigger, mitigation, outcome, where in event.answer.told("attempt") if event else ():
            outcomes = found.setdefault(code, {}).setdefault(trigger, {}).setdefault(mitigation, {})
            outcomes.setdefault(outcome, []).append(version)
            if mitigation == UNMITIGATED and where:
                places.setdefault(code, {}).setdefault(where, [])
                if version not in places[code][where]:
                    places[code][where].append(version)
    beside = next((dict(event.answer.ran_with) for event in finished.values()), {})
    return {
        "package": sweep.package,
        "releases": list(releases),
        "without_an_answer": [version for version in asked if version not in finished],
        "beside": {name: text for name, text in beside.items() if name != sweep.package},
        "codes": {
            code: {"places": places.get(code, {}), "outcomes": triggers} for code, triggers in found.items()
        },
    }


def to_text(found: Mapping[str, Any], generated: str) -> str:
    """Returns the file: readable, one line for each list of releases."""
    text = json.dumps({"schema": SCHEMA, "generated": generated, "sweeps": found}, indent=1)
    return re.sub(r"\[\s+([^\[\]{}]*?)\s+\]", lambda found: f"[{' '.join(found[1].split())}]", text) + "\n"


def read(path: Path) -> dict[str, Any]:
    """Returns what a file of published sweeps holds, by sweep; nothing where there is no file.

    Raises:
        TableError: it is none: what it said would be lost.
    """
    if not path.exists():
        return {}
    try:
        found = json.loads(given.read(path, given.LIST))
    except (OSError, ValueError, RecursionError) as error:
        raise TableError(f"{path}: cannot be read: {error}") from None
    wrong = problem(found, _SHAPE)
    if wrong or found["schema"] != SCHEMA:
        raise TableError(f"{path}: expected a document of the schema {SCHEMA}: {wrong or 'it says another'}")
    sweeps: dict[str, Any] = found["sweeps"]
    return sweeps


def occurs(found: Mapping[str, Any], code: str) -> dict[str, bool]:
    """Returns release -> whether the failure was reproduced there by any trigger; those that answered alone."""
    plain = [
        outcomes[UNMITIGATED]
        for outcomes in found["codes"][code]["outcomes"].values()
        if UNMITIGATED in outcomes
    ]
    answered = {version for outcomes in plain for versions in outcomes.values() for version in versions}
    reproduced = {version for outcomes in plain for version in outcomes.get("reproduced", ())}
    return {version: version in reproduced for version in found["releases"] if version in answered}


def disagreements(found: Mapping[str, Any], issues: Mapping[str, Issue]) -> list[str]:
    """Returns one line for each release of which the catalogue says otherwise than its run."""
    lines = []
    for code in found["codes"]:
        claims = claims_of(issues[code], found["package"])
        for version, reproduced in occurs(found, code).items():
            claimed = of_package(claims, version)[0] == CONCERNED
            if claimed != reproduced:
                what = (
                    "happens there, and the catalogue does not say so" if reproduced else "is claimed there"
                )
                lines.append(f"{code}, {found['package']} {version}: {what}")
    return lines


def applying(
    outcomes: Mapping[str, Mapping[str, Mapping[str, Sequence[str]]]],
) -> Iterator[tuple[str, dict[str, Mapping[str, Sequence[str]]]]]:
    """Yields the triggers that apply to a release at all, each with the mitigations that apply somewhere."""
    for trigger, mitigations in outcomes.items():
        told = {name: found for name, found in mitigations.items() if set(found) != {"inapplicable"}}
        if trigger != WHOLE and UNMITIGATED in told:
            yield trigger, told


def summary(found: Mapping[str, Any]) -> list[str]:
    """Returns lines for people: each trigger bare, then what each mitigation did, by ranges of releases."""
    lines = []
    for code, item in found["codes"].items():
        lines.append(code)
        if WHOLE in item["outcomes"]:
            shown = _by_outcome(item["outcomes"][WHOLE][UNMITIGATED], found["releases"])
            lines.append(f"  the code is not there: {shown}")
        for trigger, mitigations in applying(item["outcomes"]):
            lines.append(f"  {trigger}: {_by_outcome(mitigations[UNMITIGATED], found['releases'])}")
            apart = mitigations[UNMITIGATED].get("inapplicable", [])
            lines += [
                f"      {name:<21} {_by_outcome(outcomes, found['releases'], apart)}"
                for name, outcomes in mitigations.items()
                if name != UNMITIGATED
            ]
    if found["without_an_answer"]:
        lines.append(f"no answer: {ranges(found['without_an_answer'], found['releases'])}")
    return lines


def _by_outcome(
    outcomes: Mapping[str, Sequence[str]], releases: Sequence[str], apart: Sequence[str] = ()
) -> str:
    """Words, leaving out releases in which the trigger itself does not apply."""
    kept = {outcome: [v for v in versions if v not in apart] for outcome, versions in outcomes.items()}
    return "; ".join(f"{name} {ranges(versions, releases)}" for name, versions in kept.items() if versions)
