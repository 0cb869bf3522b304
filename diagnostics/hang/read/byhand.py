"""Calls that somebody wrote down: names alone, or each thread of a list with what it is in."""

from __future__ import annotations

import re

from diagnostics.hang import frames
from diagnostics.hang.snapshot import NATIVE, Process, StackFrame, Thread

# A call to a line, with what stands around it: a file, a library, what somebody says of it behind an arrow.
_CALL = re.compile(
    r"^\s*(?P<name>[A-Za-z_~][\w:~.]*(?:\([^()\n]{0,80}\)(?:::[^\s(]+)*)?)(?: +\((?P<place>[^()\n]{1,200}(?:\(\))?)\))?"
    r"(?P<said>\s+<-+.*)?\s*$"
)
# `MainThread`: `dist.barrier` (`torch/distributed/distributed_c10d.py`) from …
_THREAD = re.compile(r"(?m)^\s*[-*]\s+`(?P<name>\w+)`: +(?P<calls>[^\n]*`[\w.]+`[^\n]*\.py[^\n]*)$")
_IN = re.compile(r"`([\w.]+)`(?: \(`([^`\s]+\.pyx?)`\))?")
_PLACE = re.compile(r"^(?P<path>[^\s:]+\.(?:pyx?|dll|so[.\d]*|cpp|c))(?::(?P<line>\d+))?$")
_FEWEST = 3
# What stands in a library whoever called it.
_TELLING = ("device", "collective", "rendezvous", "lock", "ring_read")


# What somebody says of a call in a sentence, before or behind its name.
_STUCK = (
    r"(?:block(?:s|ed|ing)|stuck|hung|hang(?:s|ing)|wedged|spin(?:s|ning)|wait(?:s|ing)|parked|deadlocks"
    r"|never returns)"
)
# What looks like a call's name; what is denied is no wait.
_NAMES = re.compile(r"`(?P<quoted>[\w:.~]{3,80})(?:\(\))?`|\b(?P<called>[A-Za-z_][\w:.~]{2,80})\(\)")
_SENTENCES = (
    re.compile(rf"(?i)(?<!not )(?<!never )(?<!n't )\b{_STUCK}\b(?P<behind>[^\n;]{{1,90}})"),
    re.compile(rf"(?i)`(?P<call>[\w:.~]{{3,80}})(?:\(\))?`[^.\n`]{{0,20}}\b{_STUCK}\b"),
    re.compile(rf"(?i)\b(?P<call>[a-z]\w{{0,60}}_\w{{1,60}})\(\)[^.\n`]{{0,30}}\b{_STUCK}\b"),
)
# What somebody says of a hang is short.
_MOST = 65536
_LOCKS = r"[^\n]{0,60}?(?:lock|mutex|\bGIL)\b"
# Sentences that name no call, and one that stands for what they say.
_TOLD = (
    (
        r"\bkernel (?:that )?(?:never (?:returns|ends|finishes|completes)|does not (?:return|end)|spins forever)",
        "cudaDeviceSynchronize",
    ),
    # Who did not come, or who came alone; nobody is named by it.
    (
        r"\branks? \d[\d/, -]{0,20}(?:and \d+ )?(?:never|did not|do not|does not|don't|doesn't|didn't) "
        r"(?:reach|enter|arrive|join|call|come|print|participate)",
        "all_reduce",
    ),
    (
        r"\bonly (?:the )?(?:rank \d+|main process)\b[^.\n]{0,20}(?:calls|reaches|enters|hits|executes|runs|saves)"
        r"\b[^.\n]{0,60}(?:barrier|all_?gather|all_?reduce|broadcast|collective|state_dict)",
        "all_reduce",
    ),
    # One lock is held, another wanted.
    (rf"\bhold(?:s|ing)\b{_LOCKS}[^\x00]{{0,300}}?\bwait(?:s|ing) (?:for|on){_LOCKS}", "acquire"),
    (rf"\bwait(?:s|ing) (?:for|on){_LOCKS}[^\x00]{{0,300}}?\bhold(?:s|ing)\b{_LOCKS}", "acquire"),
)
_WORDS = tuple((re.compile(f"(?i){pattern}"), name) for pattern, name in _TOLD)


def said(text: str) -> list[Process]:
    """The one process of which a sentence says in what it stands; none where that call need not wait."""
    for sentence in _SENTENCES:
        for match in sentence.finditer(text, 0, _MOST):
            told = match.groupdict()
            behind = [one["quoted"] or one["called"] for one in _NAMES.finditer(told.get("behind", ""))]
            for name in [told["call"]] if "call" in told else behind:
                stack = (StackFrame(NATIVE, re.split(r"[.:]", name.rstrip(".:"))[-1]),)
                if _tells(stack):
                    return _one(stack)
    name = next((name for pattern, name in _WORDS if pattern.search(text, 0, _MOST)), "")
    return _one((StackFrame(NATIVE, name),)) if name else []


def _one(stack: tuple[StackFrame, ...]) -> list[Process]:
    return [Process(1, threads=(Thread(1, "MainThread", stack, samples=1, stem=len(stack)),))]


def read(text: str) -> list[Process]:
    """The one process of which it is said; none where no call tells what it waits in."""
    threads = _listed(text) or _stack(text)
    return [Process(1, threads=threads)] if threads else []


def _listed(text: str) -> tuple[Thread, ...]:
    found = []
    for number, match in enumerate(_THREAD.finditer(text), start=1):
        stack = tuple(
            StackFrame(path or NATIVE, name.rpartition(".")[2]) for name, path in _IN.findall(match["calls"])
        )
        found.append(Thread(number, match["name"], stack, samples=1, stem=len(stack)))
    return tuple(found) if any(_tells(thread.frames) for thread in found) else ()


def _stack(text: str) -> tuple[Thread, ...]:
    """The longest run of lines that are a call each."""
    best: list[StackFrame] = []
    run: list[StackFrame] = []
    for line in [*text.splitlines(), "."]:
        match = _CALL.match(line[:300])
        # Prose has no line that is one word; what ends in a colon is a heading.
        if match and not line.rstrip().endswith(":"):
            run.append(_frame(match))
            continue
        if len(run) > len(best) and len(run) >= _FEWEST and _tells(run):
            best = run
        run = [] if line.strip() and not line.strip().startswith("...") else run
    return (Thread(1, "MainThread", tuple(best), samples=1, stem=len(best)),) if best else ()


def _frame(match: re.Match[str]) -> StackFrame:
    place = _PLACE.match(match["place"] or "")
    name = match["name"].partition("(")[0]
    return (
        StackFrame(place["path"].replace("\\", "/"), name, int(place["line"] or 0))
        if place
        else StackFrame(NATIVE, name)
    )


def _tells(stack: list[StackFrame] | tuple[StackFrame, ...]) -> bool:
    return any(set(frames.kinds(frame.path, frame.function)) & set(_TELLING) for frame in stack)
