"""A plan as a person reads it, as Markdown without anything personal, and as JSON."""

from __future__ import annotations

import json
from textwrap import shorten
from typing import TextIO

from diagnostics.collect.names import redact
from diagnostics.output import clean, wording
from diagnostics.output.formats.finding import STYLES, Line, command_lines, told_first, write_lines
from diagnostics.output.formats.markdown import _block as block
from diagnostics.output.formats.markdown import text_of as prose
from diagnostics.output.paper import Paper
from diagnostics.output.plans import PinnedSet, Plan, Step

# What of a step is there to be copied, and how such a line begins.
_COPIED = {"$": "$ ", "undo": "undo: "}
# So many steps have an empty line before each, on a screen.
_ROOMY = 4
# What a title is left at least.
_LEAST = 20


def as_json(plan: Plan) -> str:
    """One JSON document."""
    return json.dumps(clean.shareable(plan).to_json(), indent=1, ensure_ascii=False)


def head(plan: Plan) -> list[str]:
    """What the plan is for, and the sum of it."""
    packages = ", ".join(f"{name} {version}" for name, version in plan.subject["packages"].items())
    # One sign of it is enough to read; the document has all.
    marks = f" ({plan.marks[0]})" if plan.marks else " (nothing says so)"
    told = [
        f"fix plan: Python {plan.subject['python']} in {plan.subject['prefix']}",
        packages or "none of the packages it knows is installed",
        f"installer: {plan.installer}{marks}; nothing below is run for you",
    ]
    if plan.outcome == "nothing":
        told.append(
            "nothing to do: no finding asks for a change" + (", of what was looked at" if plan.unseen else "")
        )
    if plan.outcome == "unknown":
        told.append("there are findings, and no step of a plan for them")
    return told


def step_lines(step: Step) -> list[tuple[str, str]]:
    """The parts of a step with their names, in the order of reading."""
    told = [("why", line) for line in step.why]
    if step.known_by:
        told.append(("how it is known", step.known_by))
    told += [("do", wording.edit_of(action)) for action in step.text]
    told += [("$", wording.command_of(action)) for action in step.commands]
    told.append(("cost", step.cost))
    return told + [("undo", wording.edit_of(action)) for action in step.undo]


def set_lines(item: PinnedSet) -> list[str]:
    """What a set is, how near it is and what is known of it."""
    far = (
        "the same minor releases"
        if item.distance == 0
        else f"{item.distance} minor release{'s' if item.distance > 1 else ''} away in all"
    )
    told = [
        " ".join(pin.requirement for pin in item.pins),
        f"{item.evidence}, {item.source}; {far}: {'; '.join(map(str, item.changes)) or 'nothing changes'}",
        *(f"{pin.name} {pin.version}: {pin.why}" for pin in item.pins[2:]),
        *(f"seen: {line}" for line in item.verified),
        f"not verified: {'; '.join(item.unverified)}",
    ]
    told += [f"known issues gone: {', '.join(item.gone)}"] if item.gone else []
    return told + ([f"known issues that come with it: {', '.join(item.brings)}"] if item.brings else [])


def terminal(plan: Plan, stream: TextIO, *, verbose: bool = False) -> None:
    """Writes the plan; colour and width follow the terminal and NO_COLOR.

    Args:
        plan: The plan.
        stream: Where it goes.
        verbose: Whether all of it is written: without, of each step what to do, in what order.
    """
    paper = Paper(stream)
    for line in head(plan):
        paper.print(redact(line))
    if not verbose:
        _in_short(paper, plan)
        return
    for number, step in enumerate(plan.steps, start=1):
        _step(paper, number, step)
    for number, item in enumerate(plan.sets, start=1):
        title = "set 1 of versions known to work together" if number == 1 else f"set {number}"
        paper.print(f"\n{title}", style="bold")
        for line in set_lines(item):
            _indented(paper, line)
    for conflict in plan.conflicts:
        paper.print("\ncontradiction", style="bold yellow")
        for line in (*conflict.between, f"so: {conflict.resolution}"):
            _indented(paper, line)
    paper.print()
    for line in (*(f"not looked at: {line}" for line in plan.unseen), *plan.help):
        paper.print(redact(line))


def _in_short(paper: Paper, plan: Plan) -> None:
    """Of each step what it is, what to do, and how it is undone; of all else how much there is."""
    # Of many steps the first would scroll off the screen.
    dense = paper.is_terminal and len(plan.steps) > _ROOMY
    for number, step in enumerate(plan.steps, start=1):
        _step_head(paper, number, step, crop=paper.is_terminal, close=dense and number > 1)
        commands = [wording.command_of(action) for action in step.commands]
        for command in commands:
            write_lines(paper, command_lines(paper, command, 3))
        told = next((wording.edit_of(action) for action in step.text), "")
        if told and not commands:
            write_lines(paper, [*told_first(paper, told)])
        undo = next((wording.edit_of(action) for action in step.undo), "")
        if undo and commands:
            write_lines(paper, [Line([(redact(f"   undo: {undo}"), "dim")])])
    for conflict in plan.conflicts:
        paper.print(redact(f"\ncontradiction: {'; '.join(conflict.between)}"), style="bold yellow")
    counts = ((len(plan.sets), "sets of versions"), (len(plan.unseen), "notes on what was not looked at"))
    more = ["why each step stands and what it costs", *(f"{count} {what}" for count, what in counts if count)]
    paper.print()
    if plan.steps or plan.unseen:
        paper.print(f"--verbose shows {', '.join(more[0 if plan.steps else 1 :])}", style="dim")
    for line in plan.help:
        paper.print(redact(line), style="dim")


def _step_head(paper: Paper, number: int, step: Step, *, crop: bool = False, close: bool = False) -> None:
    codes = f"  {' '.join(step.codes)}" if step.codes else ""
    need = (f"{step.need}: ", STYLES[step.severity])
    told = [(f"{'' if close else chr(10)}{number}. ", ""), need, (step.title, ""), (codes, "dim")]
    # A long title gives way to the codes, by which more is to be had.
    room = paper.width - sum(len(text) for text, _ in told if text != step.title) + 1
    told[2] = (shorten(step.title, max(room, _LEAST), placeholder=" …") if crop else step.title, "")
    paper.print(told, "bold")


def _step(paper: Paper, number: int, step: Step) -> None:
    _step_head(paper, number, step)
    for name, line in step_lines(step):
        if name in _COPIED:
            write_lines(paper, command_lines(paper, line, 3, _COPIED[name]))
        else:
            _indented(paper, f"{name}: {line}")


def _indented(paper: Paper, line: str) -> None:
    paper.print(redact(line), indent=3)


def as_markdown(plan: Plan) -> str:
    """One document to be pasted into an issue."""
    plan = clean.shareable(plan)
    parts = ["### grpo-doctor fix plan", "\n".join(f"- {prose(line)}" for line in head(plan))]
    for number, step in enumerate(plan.steps, start=1):
        parts.append(prose(f"{number}. {step.need}: {step.title} ({' '.join(step.codes) or step.kind})"))
        lines = [line for line in step_lines(step) if line[0] != "$"]
        parts.append("\n".join(f"   - {name}: {prose(line)}" for name, line in lines))
        if step.commands:
            parts.append(block("\n".join(map(wording.command_of, step.commands))))
    for number, item in enumerate(plan.sets, start=1):
        parts.append(f"#### Set {number}")
        parts.append("\n".join(f"- {prose(line)}" for line in set_lines(item)))
    for conflict in plan.conflicts:
        parts.append("#### Contradiction")
        parts.append(
            "\n".join(f"- {prose(line)}" for line in (*conflict.between, f"so: {conflict.resolution}"))
        )
    rest = [*(f"not looked at: {line}" for line in plan.unseen), *plan.help]
    if rest:
        parts.append("\n".join(f"- {prose(line)}" for line in rest))
    return "\n\n".join(parts) + "\n"
