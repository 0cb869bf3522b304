"""What a run found, for people and for programs."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping, Sequence
from textwrap import shorten, wrap
from typing import Any

from repro import upstream
from repro.base import Attempt, AttemptOutcome, Repro, overall

# Controls but newline and tab, marks of direction, halves of characters: what a terminal obeys, or nobody sees. `##[`
# and `::` behind nothing but blanks are commands to a CI runner, wherever the text comes from.
_ACTS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
    r"|(?<=#)#(?=\w{0,32}\[)|(?m:^)(?P<blanks>[^\S\n]*):(?=:)"
)
SCHEMA = "grpo-doctor.repro.v1"
LIST_SCHEMA = "grpo-doctor.repros.v1"
_SHOWN_MODIFIED = 5
_INDENT = 8
# Of a code on a screen: lines that its best mitigation takes.
_ADVICE = 2


def visible(text: str) -> str:
    r"""The text with what would act spelled out, as JSON writes it: a document stays the same document.

    >>> visible("unknown code '##[error]'")
    "unknown code '#\\u0023[error]'"
    """
    return _ACTS.sub(lambda match: f"{match['blanks'] or ''}\\u{ord(match[0][-1]):04x}", text)


def document(
    repros: Mapping[str, Repro], results: Mapping[str, Sequence[Attempt]], proof: upstream.WheelProof | None
) -> dict[str, Any]:
    """Returns the JSON document of a run."""
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
    found = {}
    for mitigation in repro.mitigations:
        tried = [attempt for attempt in attempts if attempt.mitigation == mitigation.name]
        helped = [attempt.trigger for attempt in tried if attempt.outcome is AttemptOutcome.MITIGATED]
        failed = [attempt.trigger for attempt in tried if attempt.outcome is AttemptOutcome.NOT_MITIGATED]
        if tried:
            found[mitigation.name] = {
                "about": mitigation.about,
                "recommended": mitigation.recommended,
                "helped": helped,
                "did_not_help": failed,
                "verdict": _verdict(helped, failed),
            }
    return found


def _verdict(helped: Sequence[str], failed: Sequence[str]) -> str:
    if helped and failed:
        return "does not help in every case"
    if helped:
        return "helps"
    return "does not help" if failed else "not shown"


def short(
    repros: Mapping[str, Repro],
    results: Mapping[str, Sequence[Attempt]],
    proof: upstream.WheelProof | None,
    width: int = 0,
) -> list[str]:
    """Returns a run in five lines a code: what came of it and where, what helps first, what does not.

    Args:
        repros: by code.
        results: by code.
        proof: that upstream's files are its wheel's.
        width: of the terminal; 0 where nobody looks, for whole lines.
    """
    lines: list[str] = []
    for code, attempts in results.items():
        lines += [*([""] if lines else []), *_code(repros[code], attempts, width)]
    versions = ", ".join(f"{name} {version}" for name, version in upstream.versions().items())
    for told in (
        versions,
        _proof(proof) if proof else "",
        "--verbose shows each attempt, and what is simulated",
    ):
        lines += (wrap(told, width) if width else [told]) if told else []
    return lines


def _code(repro: Repro, attempts: Sequence[Attempt], width: int) -> list[str]:
    """Returns the lines of a code."""
    wrong = sum(attempt.as_recorded is False for attempt in attempts)
    mark = f"; {wrong} of {len(attempts)} attempts are NOT what is on record" if wrong else ""
    outcome = overall(attempts)
    head = _cut(f"{repro.code}  {outcome.value}{mark}: {repro.title}", width)
    bare = [attempt for attempt in attempts if attempt.mitigation is None and attempt.outcome is outcome]
    triggers = len({attempt.trigger for attempt in attempts})
    seen = f"by {len(bare)} of {triggers} triggers: " if triggers > 1 else ""
    said = next((words for words in map(_said, bare) if words), "")
    told = [_cut(f"{' ' * _INDENT}{seen}{said}", width)] if said or seen else []
    found = mitigations(repro, attempts)
    best = max(
        found, key=lambda name: (not found[name]["did_not_help"], len(found[name]["helped"])), default=""
    )
    if best and found[best]["helped"]:
        against = ", ".join(found[best]["helped"])
        told += _wrapped(f"* {best}: {found[best]['about']} (helped with {against})", width)
    useless = [name for name, one in found.items() if one["did_not_help"]]
    if useless:
        told.append(_cut(f"{' ' * _INDENT}does not help, or not always: {', '.join(useless)}", width))
    return [head, *told]


def _wrapped(told: str, width: int) -> list[str]:
    """Returns a text in two lines at the most, where somebody looks."""
    if not width:
        return [" " * _INDENT + told]
    return wrap(
        told, width, initial_indent=" " * _INDENT, subsequent_indent=" " * (_INDENT + 2),
        max_lines=_ADVICE, placeholder=" …",
    )  # fmt: skip


def _cut(line: str, width: int) -> str:
    """Returns a line that fits, where somebody looks."""
    blanks = len(line) - len(line.lstrip())
    return (
        line
        if not width or len(line) <= width
        else " " * blanks + shorten(line, width - blanks, placeholder=" …")
    )


def text(
    repros: Mapping[str, Repro], results: Mapping[str, Sequence[Attempt]], proof: upstream.WheelProof | None
) -> list[str]:
    """Returns all lines of a run, for a terminal."""
    lines = [", ".join(f"{name} {version}" for name, version in upstream.versions().items())]
    if proof:
        lines.append(_proof(proof))
    for code, attempts in results.items():
        lines += ["", f"{code}  {repros[code].title}: {overall(attempts).value}"]
        reasons = {attempt.detail for attempt in attempts}
        if len(reasons) == 1 and all(attempt.outcome is AttemptOutcome.INAPPLICABLE for attempt in attempts):
            lines.append(f"  {reasons.pop()}")
            continue
        lines.append(f"  simulated: {'; '.join(repros[code].simulated) or 'nothing'}")
        lines += _attempts(repros[code], attempts)
        lines += _verdicts(repros[code], attempts)
    return lines


def _proof(proof: upstream.WheelProof) -> str:
    head = f"{proof.distribution} {proof.version}: {proof.files_checked} Python files compared with the wheel's RECORD"
    if not proof.modified:
        return f"{head}, none modified"
    more = len(proof.modified) - _SHOWN_MODIFIED
    shown = ", ".join(proof.modified[:_SHOWN_MODIFIED]) + (f" and {more} more" if more > 0 else "")
    return f"{head}; MODIFIED: {shown}. What follows says nothing about the release."


def _attempts(repro: Repro, attempts: Sequence[Attempt]) -> list[str]:
    lines, told = [], ""
    for attempt in attempts:
        if attempt.trigger != told:
            told = attempt.trigger
            lines.append(f"  {told}: {repro.trigger(told).about}")
            own = repro.trigger(told).simulated
            if own is not None:
                lines.append(f"    simulated here: {'; '.join(own) or 'nothing'}")
        name = f"with {attempt.mitigation}" if attempt.mitigation else "as it is"
        mark = "  << not what is on record" if attempt.as_recorded is False else ""
        lines.append(f"    {name:<28}{attempt.outcome.value:<16}{_said(attempt)}{mark}".rstrip())
    return lines


def _said(attempt: Attempt) -> str:
    """Returns where an attempt failed, and what it says."""
    place = f"{attempt.where} in {attempt.function}: {attempt.assertion}" if attempt.where else ""
    return "; ".join(part for part in (place, attempt.detail) if part)


def _verdicts(repro: Repro, attempts: Sequence[Attempt]) -> list[str]:
    lines = []
    for name, found in mitigations(repro, attempts).items():
        parts = [f"helped with {', '.join(found['helped'])}"] if found["helped"] else []
        parts += [f"not with {', '.join(found['did_not_help'])}"] if found["did_not_help"] else []
        if parts:
            advised = f" [advised by: {found['recommended']}]" if found["recommended"] else ""
            lines.append(f"    {name:<28}{found['verdict']}: {'; '.join(parts)}{advised}")
    return ["  what helps:", *lines] if lines else []


def codes(repros: Mapping[str, Repro]) -> list[str]:
    """Returns the lines of `list`: one a code."""
    return [f"{code}  {repro.title}" for code, repro in repros.items()]


def listing(repros: Mapping[str, Repro]) -> list[str]:
    """Returns all lines of `list`: triggers and mitigations, too."""
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
    """Returns the JSON document of `list`."""
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
