"""What the document of `python -m repro run` says: which known issues happened, and which mitigations helped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diagnostics.matrix.ask import in_cell
from diagnostics.matrix.build.paths import ROOT
from diagnostics.matrix.plan.verdicts import Answer, EvidenceLevel, Grid, Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from diagnostics.matrix.plan.cells import Cell

SCHEMA = "grpo-doctor.repro.v1"
UNMITIGATED = "unmitigated"
WHOLE = "*"
"""Stands for all triggers, where a release hasn't the code at all."""
_MARKS = {
    "reproduced": "✘ happens",
    "not_reproduced": "✔ does not happen",
    "mitigated": "✔ helps",
    "not_mitigated": "✘ does not help",
    "inapplicable": "- not applicable",
}


_PACKAGE = "repro.issues"
# Code -> the module of its repro; a file that shares its code among several names them all.
MODULES = {
    code.upper(): f"{_PACKAGE}.{path.stem}"
    for path in sorted((ROOT / _PACKAGE.replace(".", "/")).glob("[a-z]*.py"))
    for code in path.stem.split("_")
}


def program(codes: Sequence[str], *, mitigation: str = "all", limit_s: float = 240.0) -> tuple[str, ...]:
    """Returns what `python -m` is given to make known issues happen; of whole engines an attempt starts one or two."""
    return ("repro", "run", *codes, "--mitigation", mitigation, "--timeout", f"{limit_s:g}")


def read(reply: in_cell.Reply, cell: Cell) -> Answer:
    """Makes the answer of a repro's document that came out of a cell."""
    return told(reply, in_cell.ran_with(cell, reply.document.get("versions")))


def told(reply: in_cell.Reply, ran_with: tuple[tuple[str, str], ...]) -> Answer:
    """Makes the answer of a repro's document."""
    found: Mapping[str, Any] = reply.document.get("codes", {})
    attempts = [(code, attempt) for code, item in found.items() for attempt in item.get("attempts", [])]
    upstream: Mapping[str, Any] = reply.document.get("upstream") or {}
    outcome, codes, summary = _verdict(found, attempts, upstream)
    return Answer(
        outcome,
        summary,
        EvidenceLevel.EXECUTED,
        codes=codes,
        signs=tuple(_sign(code, attempt) for code, attempt in attempts),
        details=(
            _proof(upstream),
            *(line for code in found for line in _helps(code, attempts)),
            *(_detail(code, attempt) for code, attempt in attempts),
        ),
        facts=tuple(_fact(code, attempt) for code, attempt in attempts) + tuple(_whole(found)),
        grids=tuple(_grid(code, attempts) for code, item in found.items() if item.get("attempts")),
        ran_with=ran_with,
        excerpt=reply.excerpt if outcome is not Outcome.PASS else "",
        log=reply.log,
    )


def _verdict(
    found: Mapping[str, Any], attempts: list[tuple[str, Any]], upstream: Mapping[str, Any]
) -> tuple[Outcome, tuple[str, ...], str]:
    """Returns (outcome, codes reproduced, summary)."""
    modified = upstream.get("modified") or []
    if modified:
        return (
            Outcome.INFRA_ERROR,
            (),
            f"the installed files are not the wheel's: {', '.join(map(str, modified[:3]))}",
        )
    everywhere = {attempt.get("outcome") for _code, attempt in attempts}
    plain = [(code, attempt) for code, attempt in attempts if not attempt.get("mitigation")]
    # Where the code isn't there a repro may answer for all its triggers at once.
    outcomes = {attempt.get("outcome") for _code, attempt in plain} or {
        item.get("outcome") for item in found.values()
    }
    if "error" in everywhere | outcomes or not outcomes - {None}:
        details = (attempt.get("detail") for _code, attempt in attempts if attempt.get("outcome") == "error")
        return Outcome.INFRA_ERROR, (), f"a repro failed itself: {next(details, 'it tried nothing')}"
    if "timeout" in everywhere | outcomes:
        return Outcome.TIMEOUT, (), "a repro did not end in time"
    reproduced = [(code, attempt) for code, attempt in plain if attempt.get("outcome") == "reproduced"]
    if reproduced:
        codes = tuple(dict.fromkeys(code for code, _attempt in reproduced))
        return Outcome.FAIL, codes, "; ".join(_where(code, reproduced) for code in codes)
    if outcomes == {"inapplicable"}:
        details = (attempt.get("detail") for _code, attempt in attempts if attempt.get("detail"))
        return (
            Outcome.NOT_RUN,
            (),
            str(next(details, "the code of these known issues is not in this release")),
        )
    return Outcome.PASS, (), f"{', '.join(found)}: not reproduced"


def _where(code: str, reproduced: Iterable[tuple[str, Any]]) -> str:
    """Returns 'SCH001 at vllm/core/scheduler.py:1278 (lost_step, two_owners)'."""
    places: dict[str, list[str]] = {}
    for found, attempt in reproduced:
        if found == code:
            place = f"at {attempt['where']}" if attempt.get("where") else "silently"
            places.setdefault(place, []).append(str(attempt.get("trigger")))
    shown = [f"{place} ({', '.join(dict.fromkeys(triggers))})" for place, triggers in places.items()]
    return f"{code} {', '.join(shown)}"


def _grid(code: str, attempts: Iterable[tuple[str, Any]]) -> Grid:
    """Returns mitigations by triggers: where it broke, and what helped."""
    rows: dict[str, dict[str, str]] = {}
    for found, attempt in attempts:
        if found == code:
            row = rows.setdefault(str(attempt.get("mitigation") or UNMITIGATED), {})
            row[str(attempt.get("trigger"))] = _mark(attempt)
    triggers = list(dict.fromkeys(name for row in rows.values() for name in row))
    lines = tuple((name, *(row.get(trigger, "") for trigger in triggers)) for name, row in rows.items())
    return Grid(f"{code}: what triggers it, and what helps", ("", *triggers), lines)


def _mark(attempt: Mapping[str, Any]) -> str:
    """Returns the outcome with its symbol, and the place by its last part: the summary has the whole path."""
    mark = _MARKS.get(str(attempt.get("outcome")), str(attempt.get("outcome")))
    if attempt.get("where"):
        return f"{mark} ({str(attempt['where']).rpartition('/')[2]})"
    return f"{mark} silently" if attempt.get("outcome") == "reproduced" else mark


def _helps(code: str, attempts: Iterable[tuple[str, Any]]) -> Iterator[str]:
    """Yields one line a mitigation: against which triggers it helped, and against which it did not."""
    found: dict[str, dict[str, list[str]]] = {}
    for name, attempt in attempts:
        if name == code and attempt.get("mitigation"):
            outcomes = found.setdefault(str(attempt["mitigation"]), {})
            outcomes.setdefault(str(attempt.get("outcome")), []).append(str(attempt.get("trigger")))
    for mitigation, outcomes in found.items():
        parts = [
            f"{words} {', '.join(outcomes[outcome])}"
            for outcome, words in (("mitigated", "helped against"), ("not_mitigated", "did not help against"))
            if outcome in outcomes
        ]
        if parts:
            yield f"{code}: {mitigation} {', '.join(parts)}"


def _sign(code: str, attempt: Mapping[str, Any]) -> str:
    mitigation = attempt.get("mitigation") or UNMITIGATED
    where = f" {attempt['where']}" if attempt.get("where") else ""
    return f"{code} {attempt.get('trigger')} {mitigation} {attempt.get('outcome')}{where}"


def _fact(code: str, attempt: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns an attempt as a fact: code, trigger, mitigation, outcome, place."""
    mitigation = attempt.get("mitigation") or UNMITIGATED
    parts = (code, attempt.get("trigger"), mitigation, attempt.get("outcome"), attempt.get("where") or "")
    return ("attempt", *map(str, parts))


def _whole(found: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yields a fact for each known issue that a repro answered for all triggers at once: its code isn't there."""
    for code, item in found.items():
        if not item.get("attempts") and item.get("outcome"):
            yield "attempt", code, WHOLE, UNMITIGATED, str(item["outcome"]), ""


def _detail(code: str, attempt: Mapping[str, Any]) -> str:
    parts = [
        f"{code} by {attempt.get('trigger')}",
        f"with {attempt['mitigation']}" if attempt.get("mitigation") else "unmitigated",
    ]
    line = f"{', '.join(parts)}: {attempt.get('outcome')}"
    if attempt.get("where"):
        line += f" at {attempt['where']} in {attempt.get('function')}: {attempt.get('assertion')}"
    if attempt.get("detail"):
        line += f" ({attempt['detail']})"
    simulated = attempt.get("simulated") or []
    return line + (f" [simulated: {', '.join(map(str, simulated))}]" if simulated else "")


def _proof(upstream: Mapping[str, Any]) -> str:
    return (
        f"{upstream.get('files_checked', 0)} Python files of {upstream.get('distribution', 'vllm')} hashed "
        f"against the wheel's own record, {len(upstream.get('modified') or [])} modified"
    )
