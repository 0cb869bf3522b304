"""Render the results of a run as text and as JSON."""

from __future__ import annotations

import platform
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import Any

from repro import upstream
from repro.base import Attempt, AttemptOutcome, Repro, overall

# Controls except newline and tab, direction marks, surrogates: active or invisible on a terminal. `##[`
# and `::` at the start of a line are commands to a CI runner.
_ACTS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
    r"|(?<=#)#(?=\w{0,32}\[)|(?m:^)(?P<blanks>[^\S\n]*):(?=:)"
)
SCHEMA = "grpo-doctor.repro.v1"
LIST_SCHEMA = "grpo-doctor.repros.v1"
REPEAT_SCHEMA = "grpo-doctor.repeat.v1"
_SHOWN_MODIFIED = 5
_INDENT = 8
# Keys: whether it helped with some trigger, and whether it failed with some trigger.
_VERDICTS = {
    (True, True): "does not help in every case",
    (True, False): "helps",
    (False, True): "does not help",
    (False, False): "not shown",
}


def escape_controls(text: str) -> str:
    r"""The text with what would act spelled out, as JSON writes it: a document stays the same document.

    >>> escape_controls("unknown code '##[error]'")
    "unknown code '#\\u0023[error]'"
    """
    return _ACTS.sub(lambda match: f"{match['blanks'] or ''}\\u{ord(match[0][-1]):04x}", text)


def document(
    repros: Mapping[str, Repro], results: Mapping[str, Sequence[Attempt]], proof: upstream.WheelProof | None
) -> dict[str, Any]:
    """Return the JSON document of a run."""
    return {
        "schema": SCHEMA,
        "python": platform.python_version(),
        "versions": upstream.versions(),
        "upstream": proof.to_json() if proof else None,
        "codes": {
            code: {
                "outcome": overall(attempts).value,
                "title": repros[code].title,
                "mitigations": mitigations(repros[code], attempts),
                "attempts": [attempt.to_json() for attempt in attempts],
            }
            for code, attempts in results.items()
        },
    }


def mitigations(repro: Repro, attempts: Sequence[Attempt]) -> dict[str, Any]:
    """Returns, for each mitigation that was tried, the triggers it helped with and those it did not help with."""
    result = {}
    for mitigation in repro.mitigations:
        tried = [attempt for attempt in attempts if attempt.mitigation == mitigation.name]
        helped = [attempt.trigger for attempt in tried if attempt.outcome is AttemptOutcome.MITIGATED]
        failed = [attempt.trigger for attempt in tried if attempt.outcome is AttemptOutcome.NOT_MITIGATED]
        if tried:
            result[mitigation.name] = {
                "about": mitigation.about,
                "recommended": mitigation.recommended,
                "helped": helped,
                "did_not_help": failed,
                "verdict": _VERDICTS[bool(helped), bool(failed)],
            }
    return result


def short(
    repros: Mapping[str, Repro],
    results: Mapping[str, Sequence[Attempt]],
    proof: upstream.WheelProof | None,
    width: int = 0,
) -> list[str]:
    """Render each code in five lines: outcome, location, the first verified mitigation, and those that do not help.

    Args:
        repros: by code.
        results: by code.
        proof: that upstream's files are its wheel's.
        width: of the terminal; 0 if there is none, for whole lines.
    """
    lines: list[str] = []
    for code, attempts in results.items():
        lines += [*([""] if lines else []), *_code(repros[code], attempts, width)]
    hint = "--verbose shows each attempt, and what is simulated"
    for line in filter(None, (_versions(), _proof(proof) if proof else "", hint)):
        lines += wrap(line, width) if width else [line]
    return lines


def _versions() -> str:
    return ", ".join(f"{name} {version}" for name, version in upstream.versions().items())


def _code(repro: Repro, attempts: Sequence[Attempt], width: int) -> list[str]:
    """Return the lines of a code."""
    wrong = sum(attempt.as_recorded is False for attempt in attempts)
    mark = f"; {wrong} of {len(attempts)} attempts are NOT what is on record" if wrong else ""
    outcome = overall(attempts)
    lines = _fit(f"{repro.code}  {outcome.value}{mark}: {repro.title}", width, indent=0)
    bare = [attempt for attempt in attempts if attempt.mitigation is None and attempt.outcome is outcome]
    triggers = len({attempt.trigger for attempt in attempts})
    observed = f"by {len(bare)} of {triggers} triggers: " if triggers > 1 else ""
    message = observed + next((words for words in map(_attempt_detail, bare) if words), "")
    lines += _fit(message, width) if message else []
    result = mitigations(repro, attempts)
    best = max(
        result, key=lambda name: (not result[name]["did_not_help"], len(result[name]["helped"])), default=""
    )
    if best and result[best]["helped"]:
        against = ", ".join(result[best]["helped"])
        lines += _fit(f"* {best}: {result[best]['about']} (helped with {against})", width, most=2)
    useless = [name for name, sample in result.items() if sample["did_not_help"]]
    return lines + (_fit(f"does not help, or not always: {', '.join(useless)}", width) if useless else [])


def _fit(text: str, width: int, indent: int = _INDENT, most: int = 1) -> list[str]:
    """Wrap a text into a maximum number of terminal lines; without a terminal return one line."""
    blanks = " " * indent
    if not width:
        return [blanks + text]
    return wrap(
        text, width, initial_indent=blanks, subsequent_indent=f"{blanks}  ", max_lines=most, placeholder=" …"
    )


def full_lines(
    repros: Mapping[str, Repro], results: Mapping[str, Sequence[Attempt]], proof: upstream.WheelProof | None
) -> list[str]:
    """Return all lines of a run, for a terminal."""
    lines = [_versions(), *([_proof(proof)] if proof else [])]
    for code, attempts in results.items():
        lines += ["", f"{code}  {repros[code].title}: {overall(attempts).value}"]
        reasons = {attempt.detail for attempt in attempts}
        if len(reasons) == 1 and all(attempt.outcome is AttemptOutcome.INAPPLICABLE for attempt in attempts):
            lines.append(f"  {reasons.pop()}")
            continue
        lines.append(f"  simulated: {'; '.join(repros[code].simulated) or 'nothing'}")
        for trigger in dict.fromkeys(attempt.trigger for attempt in attempts):
            lines.append(f"  {trigger}: {repros[code].trigger(trigger).about}")
            local = repros[code].trigger(trigger).simulated
            lines += [] if local is None else [f"    simulated here: {'; '.join(local) or 'nothing'}"]
            lines += [_attempt_line(attempt) for attempt in attempts if attempt.trigger == trigger]
        lines += _verdicts(repros[code], attempts)
    return lines


def _proof(proof: upstream.WheelProof) -> str:
    head = f"{proof.distribution} {proof.version}: {proof.files_checked} Python files compared with the wheel's RECORD"
    if not proof.modified:
        return f"{head}, none modified"
    more = len(proof.modified) - _SHOWN_MODIFIED
    listed = ", ".join(proof.modified[:_SHOWN_MODIFIED]) + (f" and {more} more" if more > 0 else "")
    return f"{head}; MODIFIED: {listed}. What follows says nothing about the release."


def _label(mitigation: str | None) -> str:
    return f"    {f'with {mitigation}' if mitigation else 'as it is':<28}"


def _attempt_line(attempt: Attempt) -> str:
    mark = "  << not what is on record" if attempt.as_recorded is False else ""
    detail = _attempt_detail(attempt)
    return f"{_label(attempt.mitigation)}{attempt.outcome.value:<16}{detail}{mark}".rstrip()


def _attempt_detail(attempt: Attempt) -> str:
    """Return where an attempt failed, and its message."""
    place = f"{attempt.where} in {attempt.function}: {attempt.assertion}" if attempt.where else ""
    return "; ".join(part for part in (place, attempt.detail) if part)


def _verdicts(repro: Repro, attempts: Sequence[Attempt]) -> list[str]:
    lines = []
    for name, result in mitigations(repro, attempts).items():
        parts = [f"helped with {', '.join(result['helped'])}"] if result["helped"] else []
        parts += [f"not with {', '.join(result['did_not_help'])}"] if result["did_not_help"] else []
        if parts:
            advised = f" [advised by: {result['recommended']}]" if result["recommended"] else ""
            lines.append(f"    {name:<28}{result['verdict']}: {'; '.join(parts)}{advised}")
    return ["  what helps:", *lines] if lines else []


def observed_result(attempt: Attempt) -> tuple[Any, ...]:
    """Return what must be the same each time: the outcome, the place, and what was counted.

    Left out is what differs by nature: seconds, and the words, which hold addresses and ports.
    """
    place = (attempt.where, attempt.function, attempt.assertion)
    counts = (attempt.finished, attempt.expected, attempt.tokens, attempt.leaked_blocks)
    return (attempt.outcome.value, *place, *counts)


def differs(attempts: Sequence[Attempt]) -> bool:
    """Whether not all of these came to the same."""
    return len(set(map(observed_result, attempts))) > 1


def by_pair(attempts: Sequence[Attempt]) -> dict[tuple[str, str | None], list[Attempt]]:
    """Return the attempts of each (trigger, mitigation)."""
    result: dict[tuple[str, str | None], list[Attempt]] = {}
    for attempt in attempts:
        result.setdefault((attempt.trigger, attempt.mitigation), []).append(attempt)
    return result


def repeat_lines(
    results: Mapping[str, Sequence[Attempt]], proof: upstream.WheelProof | None, seconds: float
) -> list[str]:
    """Return the table of attempts that were made many times."""
    pairs = {code: by_pair(attempts) for code, attempts in results.items()}
    every = [pair for listed in pairs.values() for pair in listed.values()]
    tried = sum(attempt.outcome is not AttemptOutcome.INAPPLICABLE for pair in every for attempt in pair)
    differences = sum(map(differs, every))
    lines = [f"{tried} attempts in {seconds:.0f} s; pairs that differ from time to time: {differences}"]
    lines += [_versions(), *([_proof(proof)] if proof else [])]
    for code, listed in pairs.items():
        lines += ["", code]
        for trigger in dict.fromkeys(trigger for trigger, _ in listed):
            lines.append(f"  {trigger}:")
            for (name, mitigation), pair in listed.items():
                lines += _pair_lines(mitigation, pair) if name == trigger else []
    return lines


def _pair_lines(mitigation: str | None, pair: Sequence[Attempt]) -> list[str]:
    """Return the outcome counts of a pair; if outcomes differ, each with an example's message."""
    counts = Counter(attempt.outcome.value for attempt in pair)
    line = _label(mitigation)
    line += ", ".join(f"{count} of {len(pair)} {outcome}" for outcome, count in counts.most_common())
    line += "  << differs" if differs(pair) else ""
    if any(attempt.as_recorded is False for attempt in pair):
        line += "  << not what is on record"
    lines = [line]
    for kind, count in Counter(map(observed_result, pair)).most_common() if differs(pair) else ():
        example = next(attempt for attempt in pair if observed_result(attempt) == kind)
        place = f"{example.where} in {example.function}; " if example.where else ""
        lines.append(f"        {count}: {example.outcome.value}; {place}{example.detail}")
    return lines


def repeat_document(
    results: Mapping[str, Sequence[Attempt]], proof: upstream.WheelProof | None, seconds: float
) -> dict[str, Any]:
    """Return the JSON document of attempts that were made many times."""
    return {
        "schema": REPEAT_SCHEMA,
        "versions": upstream.versions(),
        "upstream": proof.to_json() if proof else None,
        "seconds": round(seconds, 1),
        "codes": {
            code: [
                {
                    "trigger": trigger,
                    "mitigation": mitigation,
                    "times": len(pair),
                    "outcomes": dict(Counter(attempt.outcome.value for attempt in pair)),
                    "differs": differs(pair),
                    "seconds": [attempt.seconds for attempt in pair],
                }
                for (trigger, mitigation), pair in by_pair(attempts).items()
            ]
            for code, attempts in results.items()
        },
    }


def codes(repros: Mapping[str, Repro]) -> list[str]:
    """Return the lines of `list`: one a code."""
    return [f"{code}  {repro.title}" for code, repro in repros.items()]


def listing(repros: Mapping[str, Repro]) -> list[str]:
    """Return all lines of `list`: triggers and mitigations, too."""
    lines: list[str] = []
    for code, repro in repros.items():
        lines += [f"{code}  {repro.title}", f"  {repro.assertion}", "  triggers:"]
        lines += [f"    {trigger.name:<24}{trigger.about}" for trigger in repro.triggers]
        lines += ["  mitigations:"]
        for mitigation in repro.mitigations:
            helps = ", ".join(sorted(mitigation.helps)) or "nothing"
            lines.append(f"    {mitigation.name:<24}{mitigation.about} (helps with: {helps})")
    return lines


def list_document(repros: Mapping[str, Repro]) -> dict[str, Any]:
    """Return the JSON document of `list`."""
    return {
        "schema": LIST_SCHEMA,
        "codes": {
            code: {
                "title": repro.title,
                "assertion": repro.assertion,
                "simulated": list(repro.simulated),
                "triggers": {trigger.name: trigger.about for trigger in repro.triggers},
                "mitigations": {
                    mitigation.name: {
                        "about": mitigation.about,
                        "helps": sorted(mitigation.helps),
                        "recommended": mitigation.recommended,
                    }
                    for mitigation in repro.mitigations
                },
            }
            for code, repro in repros.items()
        },
    }
