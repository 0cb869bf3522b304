"""Remove findings from a report: by their codes, or because an earlier report (the baseline) already had them.

`select` removes findings by code, `without_baseline_findings` by the baseline. A check that loses all its findings has
the outcome `ignored`. `parse_codes` parses the codes of an option and refuses those that are not in the catalog.
`fingerprint` identifies a finding in baselines and in SARIF.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from diagnostics import UserError, safe_io
from diagnostics.cpu_limit import cpu_limit
from diagnostics.findings import Finding, Location, Report
from diagnostics.fixes import count_of
from diagnostics.output.redact import redact, truncate
from diagnostics.toml_source import close_matches

_BASELINE_S = 60.0
"""Limit of processor time."""
CATALOG = Path(__file__).parent.parent / "catalog"
# Free memory and disk differ from one run to the next.
_AMOUNT = re.compile(r"\b[0-9]{1,9}(?:\.[0-9]{1,9})?(?= GB\b)")


def parse_codes(text: str) -> list[str]:
    """Parse codes or families separated by commas.

    >>> parse_codes("sch002,env")
    ['SCH002', 'ENV']

    Raises:
        ValueError: The text has no code, or no code in the catalog begins with one of them; the message names similar
            ones.
    """
    known = {path.stem for path in CATALOG.glob("*/*.toml")}
    codes = [word.strip().upper() for word in text.split(",") if word.strip()]
    for code in codes or [""]:
        if not code or not any(entry.startswith(code) for entry in known):
            families = {entry.rstrip("0123456789") for entry in known}
            hint = close_matches(code, known | families) or f" (families: {', '.join(sorted(families))})"
            raise ValueError(f"unknown code or family {code or text!r}{hint}")
    return codes


def select(report: Report, selected: Iterable[str], ignored: Iterable[str]) -> Report:
    """Keep the findings whose code begins with one of `selected` and with none of `ignored`.

    If `selected` is empty, all codes are selected.
    """
    # Every code begins with an empty text, and no code begins with one of no texts.
    wanted_codes, unwanted_codes = tuple(map(str.upper, selected)) or ("",), tuple(map(str.upper, ignored))

    def is_selected(finding: Finding) -> bool:
        return finding.code.startswith(wanted_codes) and not finding.code.startswith(unwanted_codes)

    return _filter(report, is_selected, "left out by --select or --ignore")


def without_baseline_findings(report: Report, baseline: Path) -> Report:
    """Drop the findings that the baseline already had.

    Raises:
        UserError: The baseline cannot be read, or is no JSON report of the same command.
    """
    known = _baseline_fingerprints(baseline, report.tool)

    def is_new(finding: Finding) -> bool:
        return fingerprint(finding.to_json(), report.tool) not in known

    return _filter(report, is_new, "in the baseline")


def fingerprint(finding: dict[str, Any], tool: str = "lint") -> str:
    """Return a hash of a finding's code and of the texts and file names of its evidence.

    Folders, line numbers, secrets, identities and sizes in GB do not count. For triage only the code counts, because
    log lines contain times, ranks and process ids.

    >>> one, other = ({"code": "ENV905", "evidence": [{"text": f"{n} GB are free", "place": ""}]} for n in (1.5, 2))
    >>> fingerprint(one) == fingerprint(other)
    True
    """
    items = ((item["text"], Location.parse(item["place"]).file) for item in finding["evidence"])
    evidence = sorted((_AMOUNT.sub("#", redact(text)), file.rpartition("/")[2]) for text, file in items)
    identity = [finding["code"]] if tool == "triage" else [finding["code"], evidence]
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32]


def _baseline_fingerprints(baseline: Path, tool: str) -> set[str]:
    """Read a JSON report of the same command, also from a pipe; return the fingerprints of its findings."""
    try:
        document = safe_io.parse_json(safe_io.read_bytes(baseline, safe_io.DOCUMENT_LIMIT, pipes=True))
        with cpu_limit(f"{baseline}: reading it", _BASELINE_S):
            known = {fingerprint(finding, tool) for finding in document["findings"]}
        made_by = document["tool"]
    except OSError as error:
        raise UserError(f"{baseline}: cannot be read: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise UserError(f"{baseline}: expected a report, as --format json writes it") from None
    if made_by != tool:
        raise UserError(f"{baseline}: a report of {truncate(str(made_by), 40)}, expected one of {tool}")
    return known


def _filter(report: Report, keep: Callable[[Finding], bool], reason: str) -> Report:
    """Return a report without some findings; a check that loses some has their number and the reason."""
    checks = []
    for check in report.checks:
        findings = tuple(filter(keep, check.findings))
        dropped = len(check.findings) - len(findings)
        outcome = "ignored" if dropped and not findings else check.outcome
        explanation = f"{count_of(dropped, 'finding')} {reason}" if dropped else check.reason
        checks.append(replace(check, outcome=outcome, reason=explanation, findings=findings))
    return replace(report, checks=tuple(checks))
