"""Do the known crashes of the scheduler happen in this release, and which mitigations help?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diagnostics.matrix.ask.layers import in_cell
from diagnostics.matrix.ask.layers.base import Layer
from diagnostics.matrix.plan.verdicts import Answer, Evidence, Grid, Outcome
from diagnostics.matrix.records import closure as harness

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from diagnostics.matrix.build.workplace import Workplace
    from diagnostics.matrix.plan.cells import Cell

SCHEMA = "grpo-doctor.repro.v1"
UNMITIGATED = "unmitigated"
_MARKS = {
    "reproduced": "✘ happens",
    "not_reproduced": "✔ does not happen",
    "mitigated": "✔ helps",
    "not_mitigated": "✘ does not help",
    "inapplicable": "- not applicable",
}


def _inputs(workplace: Workplace, cell: Cell) -> Mapping[str, str]:
    codes = workplace.matrix.layer("scheduler").codes
    shared = in_cell.inputs(workplace, cell, "scheduler")
    return {**shared, "codes": " ".join(codes), "repros": programs(workplace, codes)}


def programs(workplace: Workplace, codes: Sequence[str]) -> str:
    """Returns the digest of what these codes' repros are made of; a change to another repro asks nothing again."""
    return workplace.code(harness.files(workplace.programs, codes))


def _ask(workplace: Workplace, cell: Cell) -> Answer:
    codes = workplace.matrix.layer("scheduler").codes
    # Of whole engines an attempt starts one or two.
    arguments = ["repro", "run", *codes, "--mitigation", "all", "--timeout", "240"]
    reply = in_cell.ask(workplace, cell, "scheduler", arguments, SCHEMA)
    if reply.instead:
        return reply.instead
    return read(reply, in_cell.ran_with(cell, reply.document.get("versions")))


def read(reply: in_cell.Reply, ran_with: tuple[tuple[str, str], ...]) -> Answer:
    """Makes the answer of a repro's document."""
    found: Mapping[str, Any] = reply.document.get("codes", {})
    attempts = [(code, attempt) for code, item in found.items() for attempt in item.get("attempts", [])]
    upstream: Mapping[str, Any] = reply.document.get("upstream") or {}
    outcome, codes, summary = _verdict(found, attempts, upstream)
    return Answer(
        outcome,
        summary,
        Evidence.EXECUTED,
        codes=codes,
        signs=tuple(_sign(code, attempt) for code, attempt in attempts),
        details=(
            _proof(upstream),
            *(line for code in found for line in _helps(code, attempts)),
            *(_detail(code, attempt) for code, attempt in attempts),
        ),
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


LAYER = Layer(
    name="scheduler",
    question="Do the known crashes of vLLM's scheduler happen on its own code, and which mitigations help?",
    evidence=Evidence.EXECUTED,
    needs=("install", "import"),
    heavy=True,
    harness=("diagnostics/matrix/ask/layers/scheduler.py", *in_cell.HARNESS),
    inputs=_inputs,
    ask=_ask,
)
