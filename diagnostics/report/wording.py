"""Remedies as text: the one place where an action becomes a sentence and a command is quoted."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from diagnostics.report import remedies
from diagnostics.report.remedies import (
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

    from diagnostics.report.remedies import Action, Offer, Remedy, Words

NAMES = {
    "trl": "TRL", "ms-swift": "ms-swift", "verl": "verl", "easyr1": "EasyR1", "openrlhf": "OpenRLHF",
    "vllm": "vLLM itself",
}  # fmt: skip
STANDINGS = {
    remedies.SHOWN: "shown by a run",
    remedies.UNTRIED: "untried against this",
    remedies.FAILS: "does not help, shown by a run",
}
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
    return shlex.join(words)


def words_of(action: Action) -> Words:
    """The words of an action that is a command; none of the others."""
    match action:
        case Install():
            return (*action.by, *action.options, *action.requirements)
        case Uninstall():
            return (*action.by, *action.names)
        case Unset():
            return ("unset", *action.names)
        case SetVariables():
            return ("export", *(f"{name}={value}" for name, value in action.values))
        case Explain():
            return ("python", "-m", "diagnostics", "explain", action.code)
        case Run():
            return action.words
        case _:
            return ()


def command_of(action: Action) -> str:
    """The line to copy; empty where an action is no command."""
    line = quoted(words_of(action))
    if isinstance(action, Run):
        line = " | ".join([line, *map(quoted, action.piped)])
        line += f" > {shlex.quote(action.into)}" if action.into else ""
        line += f" && {command_of(action.then)}" if action.then else ""
    note = action.note if isinstance(action, Install | Run) else ""
    return f"{line}  # {note}" if note else line


def sentence_of(action: Action) -> str:
    """The line to read; empty where an action is a command."""
    if isinstance(action, Advice):
        return action.text
    if isinstance(action, SetOption):
        return f"{NAMES[action.framework]}: {action.edit}" if action.framework else action.edit
    return ""


def edit_of(action: Action) -> str:
    """An action within a line: its sentence, or its command."""
    return sentence_of(action) or command_of(action)


def offer_line(offer: Offer) -> str:
    """A mitigation with its standing, and against what it was seen to fail."""
    told = "; ".join(map(edit_of, offer.edits)) or offer.about
    line = f"{offer.mitigation} ({_proof(offer)}): {told}."
    return line + (f" Does not help against: {', '.join(offer.fails)}." if offer.fails else "")


def _proof(offer: Offer) -> str:
    """How it is known to help; a run that says it of one trigger says it of no other."""
    if offer.evidence != "executed":
        return f"{offer.evidence} only"
    elsewhere = f"{STANDINGS[remedies.SHOWN]} against {', '.join(offer.helps)}"
    if offer.standing == remedies.UNTRIED:
        return f"{STANDINGS[remedies.UNTRIED]}; {elsewhere}"
    if offer.untried:
        return f"{elsewhere}; untried against {', '.join(offer.untried)}"
    known = set(offer.triggers) <= set(offer.helps) if offer.triggers else not offer.fails
    return STANDINGS[remedies.SHOWN] if known else elsewhere


def failure_line(offer: Offer) -> str:
    """A mitigation that was run and failed in this case."""
    run = f": {command_of(offer.run)}" if offer.run else ""
    return f"Does not help: {offer.mitigation} against {', '.join(offer.fails)} (shown by a run{run})."


def lines_of(remedy: Remedy) -> list[str]:
    """What to read of a remedy, one line each."""
    told = [line for action in remedy.actions if (line := sentence_of(action))]
    told += map(offer_line, remedy.offers)
    return [*told, *map(failure_line, remedy.does_not_help)]


def commands_of(actions: Iterable[Action]) -> tuple[str, ...]:
    """What to copy of actions."""
    return tuple(line for action in actions if (line := command_of(action)))


def as_json(remedy: Remedy) -> dict[str, Any]:
    """A remedy in a report's document: as text and commands, and as the data they were made from."""
    return {
        "text": "\n".join(lines_of(remedy)),
        "commands": list(commands_of(remedy.actions)),
        "actions": [_action(action) for action in remedy.actions],
        "offers": [_offer(offer) for offer in remedy.offers],
        "does_not_help": [_offer(offer) for offer in remedy.does_not_help],
    }


def _action(action: Action) -> dict[str, Any]:
    words = words_of(action)
    return {"kind": KINDS[type(action)], **asdict(action), **({"words": list(words)} if words else {})}


def _offer(offer: Offer) -> dict[str, Any]:
    run = command_of(offer.run) if offer.run else ""
    return asdict(offer) | {"edits": [_action(action) for action in offer.edits], "run": run}
