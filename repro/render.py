"""Render the results of a run as text and JSON, and the list of repros as JSON.

`report_lines` returns the text, `run_document` and `list_document` the JSON. `print_to_stderr` prints a text, escaped.
`without_secrets` masks secrets if `diagnostics` can be imported; in a cell it returns the text unchanged.
"""

import platform
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from grpo_core.console_text import escape
from repro import upstream
from repro.registry import Attempt, AttemptOutcome, Repro, overall_outcome
from repro.upstream import WheelComparison

SCHEMA = "grpo-doctor.repro.v1"
LIST_SCHEMA = "grpo-doctor.repros.v1"
_SHOWN_MODIFIED = 5
# Repros by code, and the attempts of each by code.
Repros = Mapping[str, Repro]
Results = Mapping[str, Sequence[Attempt]]
# (whether the mitigation helped with any trigger, whether it did not help with any trigger) -> verdict.
_VERDICTS = {
    (True, True): "does not help in every case",
    (True, False): "helps",
    (False, True): "does not help",
    (False, False): "not shown",
}


def print_to_stderr(text: str) -> None:
    """Print a text on standard error, without secrets, and with control characters and CI commands escaped."""
    print(escape(without_secrets(text, shared=False)), file=sys.stderr, flush=True)


def without_secrets(text: str, *, shared: bool) -> str:
    """Mask secrets and, in a document to share, redact what identifies a person or a machine.

    In a cell, where repro is without diagnostics, the text stays; the matrix masks it.
    """
    try:
        from diagnostics.output.redact import mask, redact
    except ImportError:
        return text
    return "\n".join(map(redact, text.split("\n"))) if shared else mask(text)


def run_document(repros: Repros, results: Results, comparison: WheelComparison) -> dict[str, Any]:
    """Return the JSON document of a run."""
    return {
        "schema": SCHEMA,
        "python": platform.python_version(),
        "versions": upstream.versions(),
        "upstream": asdict(comparison),
        "codes": {
            code: {
                "outcome": overall_outcome(attempts).value,
                "title": repros[code].title,
                "mitigations": mitigation_results(repros[code], attempts),
                "attempts": [
                    asdict(attempt) | {"simulated": repros[code].simulates(attempt.trigger)}
                    for attempt in attempts
                ],
            }
            for code, attempts in results.items()
        },
    }


def mitigation_results(repro: Repro, attempts: Sequence[Attempt]) -> dict[str, Any]:
    """Return, for each mitigation with an attempt, the triggers with which it helped or did not help, and a verdict."""
    result = {}
    for mitigation in repro.mitigations:
        tried = [attempt for attempt in attempts if attempt.mitigation == mitigation.name]
        helped, failed = (
            list(dict.fromkeys(attempt.trigger for attempt in tried if attempt.outcome is outcome))
            for outcome in (AttemptOutcome.MITIGATED, AttemptOutcome.NOT_MITIGATED)
        )
        if tried:
            result[mitigation.name] = {
                "about": mitigation.about,
                "recommended": mitigation.recommended,
                "helped": helped,
                "did_not_help": failed,
                "verdict": _VERDICTS[bool(helped), bool(failed)],
            }
    return result


def report_lines(
    repros: Repros, results: Results, comparison: WheelComparison, *, verbose: bool = False
) -> list[str]:
    """Return the lines of a run: outcome, failure and mitigations of each code, then versions and modified files.

    Args:
        repros: Repros by code.
        results: Attempts by code.
        comparison: Comparison of upstream's files with the wheel.
        verbose: Whether to list each attempt, and what is simulated.
    """
    lines: list[str] = []
    for code, attempts in results.items():
        lines += _code_lines(repros[code], attempts)
        lines += [*(_attempt_lines(repros[code], attempts) if verbose else []), ""]
    hint = [] if verbose else ["--verbose shows each attempt, and what is simulated"]
    return [*lines, versions_line(), _comparison_line(comparison), *hint]


def versions_line() -> str:
    """Return a line with the versions of the installed packages."""
    return ", ".join(f"{name} {version}" for name, version in upstream.versions().items())


def _code_lines(repro: Repro, attempts: Sequence[Attempt]) -> list[str]:
    """Return the lines of a code: outcome, decisive failure, and a verdict on each mitigation that has a result."""
    wrong = sum(attempt.as_recorded is False for attempt in attempts)
    marks = f"; {wrong} of {len(attempts)} attempts are NOT what is on record" if wrong else ""
    varying = count_varying(attempts)
    marks += f"; {varying} pairs of trigger and mitigation differ from time to time" if varying else ""
    outcome = overall_outcome(attempts)
    decisive = [attempt for attempt in attempts if attempt.mitigation is None and attempt.outcome is outcome]
    by, triggers = (len({attempt.trigger for attempt in tried}) for tried in (decisive, attempts))
    message = next(filter(None, map(_attempt_detail, decisive)), "")
    lines = [
        f"{repro.code}  {outcome.value}{marks}: {repro.title}",
        f"    by {by} of {triggers} triggers: {message}",
    ]
    for name, result in mitigation_results(repro, attempts).items():
        parts = [f"helped with {', '.join(result['helped'])}"] if result["helped"] else []
        parts += [f"not with {', '.join(result['did_not_help'])}"] if result["did_not_help"] else []
        if parts:
            advised = f" [advised by: {result['recommended']}]" if result["recommended"] else ""
            lines.append(f"    {name}: {result['verdict']}: {'; '.join(parts)}{advised}")
    return lines


def _attempt_lines(repro: Repro, attempts: Sequence[Attempt]) -> list[str]:
    """Return lines of attempts below their triggers; none if all attempts are inapplicable."""
    if all(attempt.outcome is AttemptOutcome.INAPPLICABLE for attempt in attempts):
        return []
    lines = []
    for trigger in dict.fromkeys(attempt.trigger for attempt in attempts):
        lines.append(f"  {trigger}: {repro.trigger(trigger).about}")
        lines.append(f"    simulated: {'; '.join(repro.simulates(trigger)) or 'nothing'}")
        for attempt in attempts:
            if attempt.trigger == trigger:
                label = f"with {attempt.mitigation}" if attempt.mitigation else "as it is"
                mark = "  << not what is on record" if attempt.as_recorded is False else ""
                detail = _attempt_detail(attempt)
                lines.append(f"    {label:<28}{attempt.outcome.value:<16}{detail}{mark}".rstrip())
    return lines


def _comparison_line(result: WheelComparison) -> str:
    """Return a line with the number of files compared with the wheel, and those that are modified."""
    package = f"{result.distribution} {result.version}"
    head = f"{package}: {result.files_checked} Python files compared with the wheel's RECORD"
    if not result.modified:
        return f"{head}, none modified"
    listed = ", ".join(result.modified[:_SHOWN_MODIFIED])
    return f"{head}; {len(result.modified)} MODIFIED: {listed}. This run says nothing about the release."


def _attempt_detail(attempt: Attempt) -> str:
    """Return the location and the statement of an attempt's failure, and its detail; empty if it has none of them."""
    place = f"{attempt.where} in {attempt.function}: {attempt.assertion}" if attempt.where else ""
    return "; ".join(part for part in (place, attempt.detail) if part)


def count_varying(attempts: Sequence[Attempt]) -> int:
    """Count the pairs of trigger and mitigation whose repeated attempts differ in outcome, location or counts.

    Durations and details are not compared, because details may contain addresses and ports.
    """
    distinct = {replace(attempt, detail="", chain=(), seconds=0.0) for attempt in attempts}
    results = Counter((attempt.trigger, attempt.mitigation) for attempt in distinct)
    return sum(count > 1 for count in results.values())


def list_document(repros: Repros) -> dict[str, Any]:
    """Return the JSON document of `list`."""
    codes = {
        code: {
            "title": repro.title,
            "assertion": repro.failure,
            "simulated": list(repro.simulated),
            "triggers": {trigger.name: trigger.about for trigger in repro.triggers},
            "mitigations": {
                item.name: {"about": item.about, "helps": sorted(item.helps), "recommended": item.recommended}
                for item in repro.mitigations
            },
        }
        for code, repro in repros.items()
    }
    return {"schema": LIST_SCHEMA, "codes": codes}
