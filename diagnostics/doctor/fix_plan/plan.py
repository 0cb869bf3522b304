"""Define the fix plan with its steps and conflicts, convert it to its JSON document, and print it on a terminal.

Markdown is rendered by the template `plan.md.j2`.
"""

from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.text import Text

from diagnostics.doctor.fix_plan.known_good_pins import PinnedSet
from diagnostics.findings import Extra, Report, Severity
from diagnostics.fixes import Action, Advice, command_of, edit_text
from diagnostics.output.terminal import STYLES, print_command, print_text

SCHEMA = "grpo-doctor.plan.v1"
# In the order of the plan: a driver comes before the packages that need it. `look` is the step that checks again.
STEP_KINDS = ("system", "variables", "repair", "packages", "configuration", "look")


@dataclass(frozen=True)
class Step:
    """One step of the plan.

    Attributes:
        kind: One of STEP_KINDS.
        severity: Highest severity of the findings that the step fixes.
        codes: Codes of these findings.
        why: The reasons, one line each.
        known_by: Evidence that the step helps: declared, static or executed; empty if there is none.
        cost: Cost of the step, or "unknown".
        undo: Command that restores the packages, if the step changes them.
        commands: Exact commands to copy; they are never run.
        text: Advice, and edits that are printed as text.
        established: Whether one of the findings certainly affects the user; a release's known issue may never occur.
    """

    kind: str
    title: str
    severity: Severity = Severity.INFO
    codes: tuple[str, ...] = ()
    why: tuple[str, ...] = ()
    known_by: str = ""
    cost: str = "unknown"
    undo: tuple[Action, ...] = ()
    commands: tuple[Action, ...] = ()
    text: tuple[Action, ...] = ()
    established: bool = True

    @property
    def need(self) -> str:
        """How urgent the step is: `must`, `should` or `consider`; `then` for the last step, which checks again."""
        if self.kind == "look":
            return "then"
        if self.severity >= Severity.ERROR:
            return "must"
        return "should" if self.severity is Severity.WARNING and self.established else "consider"

    @property
    def detail_lines(self) -> list[tuple[str, str]]:
        """The lines of the step without its commands, as (name of the part, line)."""
        parts = {
            "why": self.why, "evidence": [self.known_by] if self.known_by else [],
            "do": map(edit_text, self.text), "cost": [self.cost], "undo": map(edit_text, self.undo),
        }  # fmt: skip
        return [(name, line) for name, lines in parts.items() for line in lines]

    def to_json(self) -> dict[str, Any]:
        """Return the step with its actions as text."""
        return vars(self) | {
            "severity": self.severity.word,
            "undo": list(map(edit_text, self.undo)),
            "commands": list(map(command_of, self.commands)),
            "text": list(map(edit_text, self.text)),
        }


@dataclass(frozen=True)
class Conflict:
    """Requirements that exclude each other, and how the plan resolves that."""

    between: tuple[str, ...]
    resolution: str


@dataclass(frozen=True)
class Plan(Extra):
    """The whole plan, stored as the `extra` of a report.

    Attributes:
        subject: The examined environment, as in the report.
        installer: Name of the environment's installer.
        marks: Files by which the installer was recognised.
        outcome: `nothing` to do, `plan`, or `unknown`: there are findings, but no known fix.
        steps: The steps, in the order to do them.
        sets: Sets of pinned versions that are known to work together.
        conflicts: Requirements that exclude each other.
        not_checked: Texts about inputs that were not checked; the plan has no steps for them.
        help: Lines that say where to find further help.
    """

    subject: dict[str, Any]
    installer: str
    marks: tuple[str, ...]
    outcome: str
    steps: tuple[Step, ...]
    sets: tuple[PinnedSet, ...]
    conflicts: tuple[Conflict, ...]
    not_checked: tuple[str, ...]
    help: tuple[str, ...]
    template = "plan.md.j2"

    def document(self) -> dict[str, Any]:
        """Return the document `grpo-doctor.plan.v1`."""
        return {
            "schema": SCHEMA,
            "tool": "doctor --fix-plan",
            "subject": self.subject,
            "outcome": self.outcome,
            "installer": {"name": self.installer, "known_by": list(self.marks)},
            "steps": [
                {"number": number, "need": step.need} | step.to_json()
                for number, step in enumerate(self.steps, start=1)
            ],
            "pinned_sets": [item.to_json() for item in self.sets],
            "conflicts": [asdict(item) for item in self.conflicts],
            "not_looked_at": list(self.not_checked),
            "help": list(self.help),
        }

    @property
    def head(self) -> list[str]:
        """Lines on the examined environment, its installer and, if no step has a fix, why."""
        packages = ", ".join(f"{name} {version}" for name, version in self.subject["packages"].items())
        outcomes = {
            "nothing": f"nothing to do: no finding needs a change{', in what was checked' if self.not_checked else ''}",
            "unknown": "there are findings, but no step is known to fix them",
        }
        installer = f"{self.installer} ({self.marks[0] if self.marks else 'assumed'})"
        index = "; for an index of yours set UV_INDEX: no uv.toml is read" if self.installer == "uv" else ""
        return [
            f"fix plan: Python {self.subject['python']} in {self.subject['prefix']}",
            packages or "no supported package is installed",
            f"installer: {installer}; these commands are not run for you{index}",
            *([outcomes[self.outcome]] if self.outcome in outcomes else []),
        ]

    @property
    def remarks(self) -> list[str]:
        """Notes for the user: inputs that were not checked, and where to find help."""
        return [*(f"not checked: {line}" for line in self.not_checked), *self.help]

    def render(self, _report: Report, console: Console, *, verbose: bool) -> None:
        """Print the plan; `verbose` adds reasons, costs, sets of versions, resolutions and what was not checked."""
        for line in self.head:
            print_text(console, line)
        for number, step in enumerate(self.steps, start=1):
            _print_step(console, number, step, verbose=verbose)
        for number, item in enumerate(self.sets if verbose else (), start=1):
            print_text(console, f"\nset {number} of versions known to work together", "bold")
            for line in item.detail_lines:
                print_text(console, line, indent=3)
        for conflict in self.conflicts:
            print_text(console, f"\nconflict: {'; '.join(conflict.between)}", "bold yellow")
            if verbose:
                print_text(console, conflict.resolution, indent=3)
        console.print()
        if not verbose:
            print_text(
                console, "--verbose shows reasons, costs, other versions, and what was not checked", "dim"
            )
        for line in self.remarks if verbose else self.help:
            print_text(console, line, "dim")


def _print_step(console: Console, number: int, step: Step, *, verbose: bool) -> None:
    """Print a step and its commands; `verbose` adds the details. Otherwise, advice replaces missing commands."""
    print_text(console, "")
    head = Text(f"{step.need}: ", STYLES[step.severity]) + Text(step.title, "bold")
    head += Text(f"  {' '.join(step.codes)}" if step.codes else "", "dim")
    print_text(console, head, lead=f"{number}. ")
    commands = [command_of(action) or edit_text(action) for action in step.commands]
    undo = next((edit_text(action) for action in step.undo), "")
    options = {edit_text(action) for action in (*step.undo, *step.text) if not isinstance(action, Advice)}
    if verbose:
        for name, line in step.detail_lines:
            print_text(console, f"{name}: {line}", indent=3, whole=line in options)
    elif step.text and not commands:
        print_text(console, edit_text(step.text[0]), indent=3, whole=edit_text(step.text[0]) in options)
    for command in commands:
        print_command(console, command, 3)
    if undo and commands and not verbose:
        print_text(console, f"undo: {undo}", "dim", indent=3, whole=True)
