"""Define the results of checks and commands: findings with evidence and fix, unchecked inputs, the report, exit codes.

`Report.to_json` builds the document `grpo-doctor.report.v1`, whose keys are named like the fields, or the command's own
document (`Extra`). A check writes the message of its finding and stores the values in it as evidence, so that no
renderer has to parse a message.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from diagnostics.cpu_limit import CpuLimitError
from diagnostics.fixes import Action, Fix

if TYPE_CHECKING:
    from rich.console import Console  # 0.1 s that `--help` does not need

SCHEMA = "grpo-doctor.report.v1"
FINE, FINDINGS, USAGE, INCOMPLETE, INTERRUPTED = 0, 1, 2, 3, 130
"""Exit codes of every command."""


class Severity(IntEnum):
    """Severity of a finding: `blocker` training cannot start, `error` it will fail, `warning` a risk, `info` a note."""

    INFO = 0
    WARNING = 1
    ERROR = 2
    BLOCKER = 3

    @property
    def word(self) -> str:
        """The severity as printed and as given to `--fail-on`: the name in lower case."""
        return self.name.lower()


class Certainty:
    """The values of `Finding.certainty`; TEXT has the printed words."""

    HYPOTHESIS, SUPPORTED, ESTABLISHED = "hypothesis", "supported", "established"
    TEXT = {HYPOTHESIS: "possible", SUPPORTED: "likely", ESTABLISHED: "certain"}  # noqa: RUF012 - never changed


EVIDENCE_LEVELS = {"declared": "reported", "static": "read in source", "executed": "reproduced"}
"""Evidence levels, weakest first, and the printed words for each."""


@dataclass(frozen=True)
class Location:
    """A file and a line in it; line 0 for the whole file."""

    file: str
    line: int = 0

    @classmethod
    def parse(cls, text: str) -> Location:
        """Read `file:line`; a text without a line number is a file.

        >>> Location.parse("run/train.sh:12")
        Location(file='run/train.sh', line=12)
        """
        head, colon, tail = text.rpartition(":")
        if colon and tail.isascii() and tail.isdecimal():
            return cls(head, int(tail[:10]))
        return cls(text)


@dataclass(frozen=True)
class Evidence:
    """An observed value.

    Attributes:
        text: The value.
        place: Source of the value: file:line, a variable, a package.
    """

    text: str
    place: str


@dataclass(frozen=True)
class Finding:
    """A problem that a check reports.

    Attributes:
        code: Code of the known issue, or the check's own code.
        certainty: Certainty that the finding applies to the user's case: one of Certainty.
        known_by: Evidence level of the claim: declared, static or executed.
        remedy: The recommended fix.
        references: Threads and pages about the known issue.
    """

    code: str
    title: str
    severity: Severity
    certainty: str
    known_by: str
    detail: str = ""
    evidence: tuple[Evidence, ...] = ()
    remedy: Fix | None = None
    references: tuple[str, ...] = ()

    @property
    def actions(self) -> tuple[Action, ...]:
        """The actions of the recommended fix; empty without one."""
        return self.remedy.actions if self.remedy else ()

    @property
    def proof(self) -> str:
        """The printed words for evidence level and certainty: "Evidence: reproduced. Match: certain." for example."""
        return f"Evidence: {EVIDENCE_LEVELS[self.known_by]}. Match: {Certainty.TEXT[self.certainty]}."

    def to_json(self) -> dict[str, Any]:
        """Return the finding as JSON data of the report's document."""
        return vars(self) | {
            "severity": self.severity.word,
            "evidence": [asdict(item) for item in self.evidence],
            "remedy": self.remedy.to_json() if self.remedy else None,
            "references": list(self.references),
        }


@dataclass(frozen=True)
class NotChecked:
    """An input that a check could not read or understand. It is neither healthy nor wrong.

    Attributes:
        what: The input, in a few words: "process count", "trainer.nnodez".
        why: The reason, as the end of a sentence that begins with `what`.
        remedy: Change that would make the check possible; empty if unknown.
        place: Location of the input: file:line, a variable or a log line; empty if none.
        decides: Whether a fault that the check looks for could be in this input. Then the report is incomplete.
    """

    what: str
    why: str
    remedy: str = ""
    place: str = ""
    decides: bool = True

    @property
    def text(self) -> str:
        """One line with the input, the reason, the location and the remedy."""
        where = f" [{self.place}]" if self.place else ""
        return f"{self.what}: {self.why}{where}" + (f"; {self.remedy}" if self.remedy else "")


@dataclass(frozen=True)
class CheckResult:
    """The result of one check. Only `ok` means healthy.

    Attributes:
        outcome: `ok`, `findings`, `not_judged` (no finding, and some input could not be checked), `ignored` (all
            findings filtered out), `skipped` (not applicable), `crashed`.
        reason: Why the check was skipped or crashed; a note on the result for other outcomes.
        reads: Whether the check only reads the input; a crash then means that a file is unreadable.
        not_judged: Inputs that could not be checked.
    """

    check: str
    outcome: str
    reason: str = ""
    findings: tuple[Finding, ...] = ()
    reads: bool = False
    not_judged: tuple[NotChecked, ...] = ()

    @classmethod
    def of(cls, check: str, findings: Iterable[Finding], missing: Iterable[NotChecked] = ()) -> CheckResult:
        """Build the result of a check that finished; duplicates are removed."""
        findings, not_judged = tuple(dict.fromkeys(findings)), tuple(dict.fromkeys(missing))
        outcome = "findings" if findings else "not_judged" if not_judged else "ok"
        return cls(check, outcome, "", findings, not_judged=not_judged)

    @classmethod
    def of_error(cls, check: str, error: BaseException) -> CheckResult:
        """Build the result of a check that raised an exception, or reached its limit of processor time."""
        if isinstance(error, CpuLimitError):
            return cls(check, "crashed", str(error))
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{frame.filename.rpartition('/')[2]}:{frame.lineno}"
        return cls(check, "crashed", f"{type(error).__name__}: {error} ({place}); please report it")

    @property
    def printed_outcome(self) -> str:
        """The outcome, but `unread` for an input that could not be read, and `partly` if no missing input decides."""
        if self.outcome == "not_judged" and not self.incomplete:
            return "partly"
        return "unread" if self.reads and self.outcome == "crashed" else self.outcome

    @property
    def not_checked_lines(self) -> tuple[str, ...]:
        """One line for each input that was not checked, and one if the check crashed or was skipped."""
        not_run = (f"{self.outcome}: {self.reason}",) if self.outcome in {"crashed", "skipped"} else ()
        return (*not_run, *(f"not checked: {entry.text}" for entry in self.not_judged))

    @property
    def incomplete(self) -> bool:
        """Whether the check crashed, or an unchecked input could contain a fault that it looks for."""
        return self.outcome == "crashed" or any(entry.decides for entry in self.not_judged)

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON data of the report's document, which lists the findings of all checks apart."""
        missing = [asdict(entry) for entry in self.not_judged]
        return {"check": self.check, "outcome": self.outcome, "reason": self.reason, "not_judged": missing}


class Extra:
    """Results specific to one command, such as a wait graph; a command that has some defines a subclass."""

    template = "report.md.j2"
    """Name of the Jinja template for Markdown, in `diagnostics/output/templates`."""

    def document(self) -> dict[str, Any]:
        """Return the command's own JSON document; empty if it publishes `grpo-doctor.report.v1`."""
        return {}

    def render(self, report: Report, console: Console, *, verbose: bool) -> None:
        """Print the report on a terminal."""
        raise NotImplementedError


@dataclass(frozen=True)
class Report:
    """The complete result of one of the commands that check something.

    Attributes:
        tool: Name of the command.
        subject: The examined environment, files or run, as in the JSON document.
        notes: Remarks for the reader.
        method_note: A remark on how the subject was examined, printed before the notes; empty if none.
        unresolved: Reason why a report without findings does not mean healthy, such as "the log shows a failure of
            unknown cause"; empty if none.
        extra: Results specific to the command; None if it has only checks and findings.
    """

    tool: str
    subject: dict[str, Any]
    checks: tuple[CheckResult, ...] = ()
    notes: tuple[str, ...] = field(default=())
    method_note: str = ""
    unresolved: str = ""
    extra: Extra | None = None

    @property
    def findings(self) -> list[Finding]:
        """All findings, the worst first."""
        collected = [finding for check in self.checks for finding in check.findings]
        return sorted(collected, key=lambda finding: (-finding.severity, finding.code))

    @property
    def not_checked(self) -> dict[NotChecked, list[str]]:
        """The inputs that were not checked, without duplicates, with the names of the checks that needed them."""
        missing: dict[NotChecked, list[str]] = {}
        for check in self.checks:
            for entry in check.not_judged:
                missing.setdefault(entry, []).append(check.check)
        return missing

    @property
    def outcomes(self) -> Counter[str]:
        """Number of checks by printed outcome."""
        return Counter(check.printed_outcome for check in self.checks)

    @property
    def remarks(self) -> tuple[str, ...]:
        """The remark on how the subject was examined, if any, followed by the notes."""
        return (self.method_note, *self.notes) if self.method_note else self.notes

    @property
    def incomplete_summary(self) -> str:
        """Number of checks with unchecked inputs, and the first: "3 of 11 checks incomplete: process count: not set".

        Empty if there are none; crashed checks do not count.
        """
        incomplete = [check for check in self.checks if check.not_judged]
        if not incomplete:
            return ""
        first, *rest = dict.fromkeys(f"{entry.what}: {entry.why}" for entry in self.not_checked)
        more = f", and {len(rest)} more" if rest else ""
        return f"{len(incomplete)} of {len(self.checks)} checks incomplete: {first}{more}"

    def exit_code(self, fail_on: Severity) -> int:
        """Return 1 for a finding at or above `fail_on`, 3 if a check crashed or lacks a deciding input, else 0."""
        if any(finding.severity >= fail_on for finding in self.findings):
            return FINDINGS
        return INCOMPLETE if any(check.incomplete for check in self.checks) else FINE

    def to_json(self) -> dict[str, Any]:
        """Return the document of `--format json`."""
        if self.extra is not None and (document := self.extra.document()):
            return document
        return {
            "schema": SCHEMA,
            "tool": self.tool,
            "subject": self.subject,
            "checks": [check.to_json() for check in self.checks],
            "findings": [finding.to_json() for finding in self.findings],
            "notes": list(self.remarks),
        }
