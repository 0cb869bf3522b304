"""Remedies as text: the one place where an action becomes a sentence and a command is quoted."""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from diagnostics import frameworks
from diagnostics.output import remedies
from diagnostics.output.remedies import (
    Advice,
    Explain,
    Install,
    Run,
    SetOption,
    SetVariables,
    Uninstall,
    Unset,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from diagnostics.output.remedies import Action, Edit, Offer, Remedy, Words

STANDINGS = {
    remedies.SHOWN: "shown by a run",
    remedies.UNTRIED: "untried against this",
    remedies.FAILS: "does not help, shown by a run",
}
# Of a change that a run showed to help, in other words than those that are offered.
IN_OTHER_WORDS = "shown by a run in other words"
# A word of a command as it was quoted, the note behind a command, and what a folded line is left at least.
_WORD = re.compile(r"""(?:[^\s'"]|'[^']*'|"[^"]*")+""")
_NOTE = "  # "
_LEAST = 20
# What is not printed is said in the JSON document under these names.
KINDS: dict[type, str] = {
    Install: "install", Uninstall: "uninstall", Unset: "unset", SetVariables: "set_variables",
    SetOption: "set_option", Advice: "advice", Explain: "explain", Run: "run",
}  # fmt: skip


def quoted(words: Words) -> str:
    """A command as a shell takes it: every command that is printed went through here.

    >>> quoted(("pip", "install", "numpy<2"))
    "pip install 'numpy<2'"
    """
    return " ".join(map(_quoted, words))


def _quoted(word: str) -> str:
    """A word; the user's home folder as `~`, which no quotes may stand around."""
    home = os.path.expanduser("~")  # noqa: PTH111 - as a string, to be compared with strings
    word = f"~{word[len(home) :]}" if len(home) > 1 and word.startswith(f"{home}/") else word
    if word.startswith("~/"):
        return f"~/{shlex.quote(word[2:])}" if word[2:] else word
    return shlex.quote(word)


def number(count: int, word: str) -> str:
    """So many of something.

    >>> number(1, "line"), number(2, "process")
    ('1 line', '2 processes')
    """
    return f"{count} {word}" if count == 1 else f"{count} {word}{'es' if word.endswith('s') else 's'}"


def one_line(text: str) -> str:
    """A text without its line breaks."""
    return " ".join(text.split())


def command_of(action: Action) -> str:
    """The line to copy; empty where an action is no command."""
    if isinstance(action, Advice | SetOption):
        return ""
    line = quoted(action.words)
    if isinstance(action, Run):
        line = " | ".join([line, *map(quoted, action.piped)])
        line += f" > {_quoted(action.into)}" if action.into else ""
        line += f" && {command_of(action.then)}" if action.then else ""
    note = one_line(action.note) if isinstance(action, Install | Run) else ""
    return f"{line}  # {note}" if note else line


def folded(command: str, width: int) -> list[str]:
    r"""A command in lines that a shell joins again; a note behind it in comments of their own.

    A line is longer than that only where a word is.

    >>> folded("uv pip install --python /opt/env vllm==0.7.3  # or wait", 30)
    ['uv pip install --python \\', '    /opt/env vllm==0.7.3', '# or wait']
    """
    line, _, note = command.partition(_NOTE)
    if len(line) <= width and not note:
        return [line]
    width = max(width, _LEAST)
    lines = _filled(_WORD.findall(line), width - 2, "    ")
    return [
        *(f"{each} \\" for each in lines[:-1]),
        *lines[-1:],
        *_filled(note.split(), width - 2, "# ", "# "),
    ]


def _filled(words: list[str], width: int, before: str, first: str = "") -> list[str]:
    """Words in lines; `before` stands before each line but the first."""
    lines: list[str] = []
    for word in words:
        if lines and len(lines[-1]) + 1 + len(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append((before if lines else first) + word)
    return lines


def sentence_of(action: Action) -> str:
    """The line to read; empty where an action is a command."""
    return _named(action) if isinstance(action, Advice | SetOption) else ""


def edit_of(action: Action) -> str:
    """An action within a line: its sentence, or its command."""
    if isinstance(action, Install):
        return _named(action)
    return sentence_of(action) or command_of(action)


def plain(action: Edit) -> str:
    """An edit of the catalogue without the name of its framework.

    >>> plain(Install(("numpy<2",), note="or wait", framework="trl"))
    "pip install 'numpy<2', or wait"
    """
    if isinstance(action, Install):
        line = quoted(action.words)
        return f"{line}, {action.note}" if action.note else line
    return action.text if isinstance(action, Advice) else action.edit


def _named(action: Edit) -> str:
    if not action.framework:
        return plain(action)
    versions = action.versions if isinstance(action, SetOption) else ""
    return f"{frameworks.SHOWN[action.framework]} {versions}".rstrip() + f": {plain(action)}"


def offer_line(offer: Offer) -> str:
    """A mitigation with its standing, and against what it was seen to fail."""
    told = "; ".join(map(edit_of, offer.edits)) or offer.about
    line = f"{offer.mitigation} ({_proof(offer)}): {told}."
    return line + (f" Does not help against: {', '.join(offer.fails)}." if offer.fails else "")


def _proof(offer: Offer) -> str:
    """How it is known to help; a run that says it of one trigger says it of no other."""
    if offer.evidence != "executed":
        return f"untried: {offer.evidence} only"
    shown = STANDINGS[remedies.SHOWN] if offer.as_run else IN_OTHER_WORDS
    elsewhere = f"{shown} against {', '.join(offer.helps)}"
    if offer.standing == remedies.UNTRIED:
        return f"{STANDINGS[remedies.UNTRIED]}; {elsewhere}"
    if offer.untried:
        return f"{elsewhere}; untried against {', '.join(offer.untried)}"
    known = set(offer.triggers) <= set(offer.helps) if offer.triggers else not offer.fails
    return shown if known else elsewhere


def failure_line(offer: Offer) -> str:
    """A mitigation that was run and failed: against the triggers of this case, where they are known."""
    run = f": {command_of(offer.run)}" if offer.run else ""
    against = [name for name in offer.fails if name in offer.triggers] or offer.fails
    return f"Does not help: {offer.mitigation} against {', '.join(against)} (shown by a run{run})."


def lines_of(remedy: Remedy) -> list[str]:
    """What to read of a remedy, one line each."""
    told = [line for action in remedy.actions for line in sentence_of(action).splitlines()]
    told += map(offer_line, remedy.offers)
    return [*told, *map(failure_line, remedy.does_not_help)]


def text_of(remedy: Remedy) -> str:
    """What to read of a remedy."""
    return "\n".join(lines_of(remedy))


def commands_of(actions: Iterable[Action]) -> tuple[str, ...]:
    """What to copy of actions."""
    return tuple(line for action in actions if (line := command_of(action)))


def as_json(remedy: Remedy) -> dict[str, Any]:
    """A remedy in a report's document: as text and commands, and as the data they were made from."""
    return {
        "text": text_of(remedy),
        "commands": list(commands_of(remedy.actions)),
        "actions": [_action(action) for action in remedy.actions],
        "offers": [_offer(offer) for offer in remedy.offers],
        "does_not_help": [_offer(offer) for offer in remedy.does_not_help],
    }


def _action(action: Action) -> dict[str, Any]:
    words = {} if isinstance(action, Advice | SetOption) else {"words": list(action.words)}
    return {"kind": KINDS[type(action)], **asdict(action), **words}


def _offer(offer: Offer) -> dict[str, Any]:
    run = command_of(offer.run) if offer.run else ""
    return asdict(offer) | {"edits": [_action(action) for action in offer.edits], "run": run}
