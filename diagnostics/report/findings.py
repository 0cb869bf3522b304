"""What checks say: findings, with evidence and remedy, and the report they make up."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from diagnostics.report import wording

if TYPE_CHECKING:
    from diagnostics.report.remedies import Remedy

SCHEMA = "grpo-doctor.report.v1"
FINE, FINDINGS, USAGE, INCOMPLETE = 0, 1, 2, 3


class Severity(IntEnum):
    """What to do: `blocker` training cannot start, `error` it will fail, `warning` a known risk, `info` to know."""

    INFO = 0
    WARNING = 1
    ERROR = 2
    BLOCKER = 3

    @property
    def word(self) -> str:
        """The word in output and on the command line."""
        return self.name.lower()


CERTAINTIES = ("hypothesis", "supported", "established")


@dataclass(frozen=True)
class Evidence:
    """A value that was read, and where."""

    text: str
    place: str


@dataclass(frozen=True)
class Finding:
    """What a check says about something of the user's.

    Attributes:
        code: Of a known issue, or of the check where it is none.
        certainty: One of CERTAINTIES: how sure it is that this concerns the user.
        known_by: How the claim behind it is known: declared, static or executed.
    """

    code: str
    title: str
    severity: Severity
    certainty: str
    known_by: str
    detail: str = ""
    evidence: tuple[Evidence, ...] = ()
    remedy: Remedy | None = None
    references: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As it stands in the report."""
        return vars(self) | {
            "severity": self.severity.word,
            "evidence": [asdict(item) for item in self.evidence],
            "remedy": wording.as_json(self.remedy) if self.remedy else None,
            "references": list(self.references),
        }


@dataclass(frozen=True)
class CheckResult:
    """What came of one check: `ok`, `findings`, `ignored`, `skipped`, `crashed`. Only ok is ok.

    Attributes:
        reads: Whether it is the reading of what was given, rather than a judgement of it.
    """

    check: str
    outcome: str
    reason: str = ""
    findings: tuple[Finding, ...] = ()
    reads: bool = False


@dataclass(frozen=True)
class Report:
    """All that a command found out.

    Attributes:
        how: How it was looked, where that is the first thing to know.
        notes: What else is to be known.
    """

    tool: str
    subject: dict[str, Any]
    checks: tuple[CheckResult, ...]
    notes: tuple[str, ...] = field(default=())
    how: str = ""

    @property
    def findings(self) -> list[Finding]:
        """All findings, the worst first."""
        found = [finding for check in self.checks for finding in check.findings]
        return sorted(found, key=lambda finding: (-finding.severity, finding.code))

    @property
    def remarks(self) -> tuple[str, ...]:
        """How it was looked, and the notes."""
        return (self.how, *self.notes) if self.how else self.notes

    def exit_code(self, fail_on: Severity) -> int:
        """0 nothing at or above `fail_on`, 1 something, 3 nothing but a check did not come to its end."""
        if any(finding.severity >= fail_on for finding in self.findings):
            return FINDINGS
        return INCOMPLETE if any(check.outcome == "crashed" for check in self.checks) else FINE

    def to_json(self) -> dict[str, Any]:
        """The document of `--format json`."""
        return {
            "schema": SCHEMA,
            "tool": self.tool,
            "subject": self.subject,
            "checks": [
                {"check": check.check, "outcome": check.outcome, "reason": check.reason}
                for check in self.checks
            ],
            "findings": [finding.to_json() for finding in self.findings],
            "notes": list(self.remarks),
        }
