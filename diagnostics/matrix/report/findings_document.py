"""The findings as a document: made from the store and the list of releases by a command, never typed."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from diagnostics import door
from diagnostics.matrix.plan.breadth import allowed
from diagnostics.matrix.plan.releases import fits
from diagnostics.matrix.plan.verdicts import EvidenceLevel, Outcome
from diagnostics.matrix.report import findings
from diagnostics.output.personal import strip

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from diagnostics.matrix.plan.releases import Releases
    from diagnostics.matrix.report.findings import Moved
    from diagnostics.matrix.run.board import Board, Row, Square

# These build and drive; what they say of a pair is not that it trains or serves.
_BESIDE = frozenset({"install", "import", "scheduler"})
# Of a pair's packages, those that a reader asks for first.
_SHOWN = ("torch", "transformers", "numpy", "accelerate", "ray", "xgrammar")
_HEAD = """# Findings of the matrix

Made from the store by `python -m diagnostics.matrix findings` on {day}; not edited by hand. {questions} questions of
{pairs} generated pairs, {answered} answered; what is not answered stands in no list. What was read in metadata and
source is no run: "allowed and broken" means that a name which TRL takes is not in that vLLM, "not allowed and whole"
that all of them are there.
"""


def render(wide: Board, written: Board, releases: Releases, day: str) -> str:
    """Returns the document.

    Args:
        wide: the generated cells.
        written: the cells of the matrix file, of which some were run.
        releases: says what each TRL declares.
        day: of making.
    """
    rows = list(wide.rows)
    answered = sum(square.event is not None and square.event.finished for square in wide.squares)
    head = _HEAD.format(day=day, questions=len(wide.squares), pairs=len(rows), answered=answered)
    parts = [
        head,
        *_counted(rows),
        *_run(written, releases),
        *_read(rows),
        *_dates(findings.moved(rows)),
        *_codes(wide.squares),
    ]
    return "\n".join(parts).rstrip() + "\n"


def _counted(rows: Sequence[Row]) -> list[str]:
    count = Counter((allowed(row.cell), findings.outcome(row, "contract")) for row in rows)
    lines = ["| by TRL's metadata | all names there | names missing | not answered |", "|---|---|---|---|"]
    for may, word in ((True, "allowed"), (False, "not allowed")):
        others = sum(
            number
            for (what, said), number in count.items()
            if what is may and said not in {Outcome.PASS, Outcome.FAIL}
        )
        lines.append(f"| {word} | {count[may, Outcome.PASS]} | {count[may, Outcome.FAIL]} | {others} |")
    return [*lines, "", "```", *findings.pair_map(rows), "```", ""]


def _run(written: Board, releases: Releases) -> list[str]:
    """The pairs that were run and did other than their metadata says."""
    broken, working = [], []
    for row in written.rows:
        trainer = releases.find("trl", row.cell.trl)
        if trainer is None or trainer.vllm is None:
            continue
        ran = [
            it
            for it in row.squares
            if it.evidence is EvidenceLevel.EXECUTED and it.question.layer.name not in _BESIDE
        ]
        failed = [it for it in ran if it.event and it.event.answer.outcome is Outcome.FAIL]
        passed = [it for it in ran if it.event and it.event.answer.outcome is Outcome.PASS]
        may = fits(trainer.vllm, row.cell.vllm)
        declares = f"`{row.cell.id}` (TRL declares vllm{trainer.vllm or ', any'})"
        if may and failed:
            broken += [f"- {declares}: {it.question.layer.name}: {_failed(it)}" for it in failed]
        if not may and passed:
            names = ", ".join(it.question.layer.name for it in passed)
            working.append(f"- {declares}: passed {names}{_but(failed)}")
    return [
        "## Run, and otherwise than the metadata says",
        "",
        f"Allowed, and a layer failed: {len(broken) or 'none'}.",
        "",
        *broken,
        "",
        f"Not allowed, and layers passed: {len(working) or 'none'}.",
        "",
        *working,
        "",
    ]


def _failed(square: Square) -> str:
    """Returns what was seen, and the reason where it was expected: it may lie in how the pair is run here."""
    why = f" ({_escaped(square.judged.remark)})" if square.judged.expected and square.judged.remark else ""
    return f"{_escaped(square.summary)[:200]}{why}"


def _but(failed: Iterable[Square]) -> str:
    names = ", ".join(square.question.layer.name for square in failed)
    return f"; failed {names}" if names else ""


def _read(rows: Sequence[Row]) -> list[str]:
    lines = []
    for title, chosen in findings.contradictions(rows).items():
        layer = "resolve" if title == findings.ALLOWED_UNSOLVED else "contract"
        listed = [f"- {_escaped(line.strip())}" for line in findings.by_trainer(chosen, layer)]
        lines += [f"## {title}: {len(chosen)} pairs", "", *(listed or ["None."]), ""]
    return lines


def _dates(found: Sequence[Moved]) -> list[str]:
    lines = ["## At their own date, and with today's packages", "", *findings.summary_of_moved(found), ""]
    other = [item for item in found if item.differs]
    if not other:
        return lines
    lines += ["| pair | date cut | packages with another version today | of them |", "|---|---|---|---|"]
    for item in other:
        number = (
            "no solution any more"
            if item.lost
            else "a solution only today"
            if item.won
            else str(len(item.packages))
        )
        shown = ", ".join(
            f"{name} {then} → {now}" for name, (then, now) in item.packages.items() if name in _SHOWN
        )
        lines.append(f"| `{item.row.cell.id}` | {item.row.cell.exclude_newer} | {number} | {shown} |")
    return [*lines, ""]


def _codes(squares: Iterable[Square]) -> list[str]:
    """Every failure with the code that triage found, and those without one."""
    count: Counter[tuple[str, str, str]] = Counter()
    for square in squares:
        if square.event is None or square.event.answer.outcome not in {Outcome.FAIL, Outcome.UNRESOLVABLE}:
            continue
        code = " ".join(square.codes) or "none known"
        count[square.question.layer.name, code, _kind(square)] += 1
    lines = [
        "## Failures by the code that triage found",
        "",
        "| layer | code | why | questions |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {layer} | {code} | {_escaped(why)} | {number} |"
        for (layer, code, why), number in sorted(count.items())
    ]
    return [*lines, ""]


def _kind(square: Square) -> str:
    """Returns why, short enough to count: the rule's reason, that metadata forbids it, or what was seen."""
    if square.question.layer.name != "contract" and not allowed(square.question.cell):
        return "TRL's metadata does not allow this vLLM"
    return square.judged.remark if square.judged.expected else f"not as expected: {square.summary[:100]}"


def _escaped(text: str) -> str:
    return door.line(strip(text)).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
