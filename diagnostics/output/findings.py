"""What checks say: findings, with evidence and remedy, and the report they make up."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from diagnostics.output import wording

if TYPE_CHECKING:
    from collections.abc import Iterable

    from diagnostics.output.remedies import Remedy

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
        certainty: hypothesis, supported or established: how sure it is that this concerns the user.
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
class NotJudged:
    """Something that a check could not read or understand: it is neither fine nor wrong.

    Attributes:
        what: What was not judged, in a few words: "process count", "trainer.nnodez".
        why: The reason, as the end of a sentence that begins with `what`.
        remedy: What would let it be judged; "" where nothing is known to.
        place: Where it stands, as file:line, a variable or a log's line; "" where it stands nowhere.
        decides: Whether a fault that the check is there to find could hide in it: then the report is incomplete.
    """

    what: str
    why: str
    remedy: str = ""
    place: str = ""
    decides: bool = True

    @property
    def text(self) -> str:
        """All of it in a line."""
        where = f" [{self.place}]" if self.place else ""
        return f"{self.what}: {self.why}{where}" + (f"; {self.remedy}" if self.remedy else "")


@dataclass(frozen=True)
class CheckResult:
    """What came of one check. Only `ok` is ok.

    Attributes:
        outcome: `ok`, `findings`, `not_judged` (no finding, and not everything could be judged), `ignored` (all left
            out on demand), `skipped` (there is nothing it could concern), `crashed`.
        reads: Whether it is the reading of what was given, rather than a judgement of it.
        not_judged: What of it could not be judged, beside whatever was found.
    """

    check: str
    outcome: str
    reason: str = ""
    findings: tuple[Finding, ...] = ()
    reads: bool = False
    not_judged: tuple[NotJudged, ...] = ()

    @classmethod
    def of(cls, check: str, found: Iterable[Finding], not_judged: Iterable[NotJudged] = ()) -> CheckResult:
        """The result of a check that came to its end."""
        found, not_judged = tuple(dict.fromkeys(found)), tuple(dict.fromkeys(not_judged))
        outcome = "findings" if found else "not_judged" if not_judged else "ok"
        return cls(check, outcome, "", found, not_judged=not_judged)

    @property
    def unseen(self) -> tuple[str, ...]:
        """A line for each thing that it did not look at or could not judge."""
        ended = (f"{self.outcome}: {self.reason}",) if self.outcome in {"crashed", "skipped"} else ()
        return (*ended, *(f"not judged: {each.text}" for each in self.not_judged))

    @property
    def incomplete(self) -> bool:
        """Whether a fault that it is there to find may be where it did not see."""
        return self.outcome == "crashed" or any(each.decides for each in self.not_judged)


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

    @property
    def not_judged(self) -> str:
        """How much could not be judged and why, for a summary: "3 of 11 not judged: no process count"; or ""."""
        open_checks = [check for check in self.checks if check.not_judged]
        if not open_checks:
            return ""
        whys = dict.fromkeys(f"{each.what}: {each.why}" for check in open_checks for each in check.not_judged)
        first, *rest = whys
        more = f", and {len(rest)} more" if rest else ""
        return f"{len(open_checks)} of {len(self.checks)} not judged: {first}{more}"

    def exit_code(self, fail_on: Severity) -> int:
        """0 nothing at or above `fail_on`, 1 something, 3 nothing, but what was not looked at could hold something."""
        if any(finding.severity >= fail_on for finding in self.findings):
            return FINDINGS
        return INCOMPLETE if any(check.incomplete for check in self.checks) else FINE

    def to_json(self) -> dict[str, Any]:
        """The document of `--format json`."""
        return {
            "schema": SCHEMA,
            "tool": self.tool,
            "subject": self.subject,
            "checks": [
                {
                    "check": check.check,
                    "outcome": check.outcome,
                    "reason": check.reason,
                    "not_judged": [asdict(each) for each in check.not_judged],
                }
                for check in self.checks
            ],
            "findings": [finding.to_json() for finding in self.findings],
            "notes": list(self.remarks),
        }
