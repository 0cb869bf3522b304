"""In a cell with vLLM's V1 scheduler, the fuzzer replays saved stories, detects broken drivers, and searches.

A story is a sequence of engine calls.
"""

import importlib.util
import json
from pathlib import Path

import pytest

from tests.cells import run_in_cell

pytestmark = pytest.mark.vllm

HERE = Path(__file__).parent
STORIES = HERE / "stories"
V1_CELL = "vllm-0.31.0+trl-1.16.0"


def replay_story(cell, name):
    """Replay a saved story in a cell; return the exit code and the printed document."""
    done = run_in_cell(cell, "-m", "repro", "fuzz", "--replay", str(STORIES / name), "--json")
    assert done.returncode in {0, 1}, done.stderr[-3000:]
    return done.returncode, json.loads(done.stdout)


@pytest.fixture
def run_fuzzer(tmp_path):
    """Return a function that runs the fuzzer in a cell, with this environment's Hypothesis on the path."""
    site = Path(importlib.util.find_spec("hypothesis").origin).parent.parent
    for name in ("hypothesis", "sortedcontainers", *(path.name for path in site.glob("_hypothesis_*.py"))):
        (tmp_path / name).symlink_to(site / name)
    program = (
        f"import sys; sys.path.append({str(tmp_path)!r})\n"
        "from repro.__main__ import main; sys.exit(main(sys.argv[1:]))"
    )

    def run(cell, *arguments):
        done = run_in_cell(cell, "-c", program, "fuzz", *arguments, "--json", timeout_s=3000)
        assert done.returncode in {0, 1}, done.stderr[-3000:]
        return json.loads(done.stdout)

    return run


def test_waiting_pause_leaves_a_preempted_request():
    """In V1, a pause in mode `wait` while a request is preempted stops the engine with this request unfinished."""
    status, document = replay_story(V1_CELL, "v1-pause-wait.json")
    assert (status, document["as_saved"]) == (0, True)
    assert document["lines"][-1].startswith("=> broken invariant: a pause in mode 'wait' lets what runs end")


def test_story_with_another_end_is_reported(tmp_path):
    """A story that is cut before the pause ends without a failure, so the exit code is 1."""
    story = json.loads((STORIES / "v1-pause-wait.json").read_text())
    (tmp_path / "short.json").write_text(json.dumps({**story, "steps": story["steps"][:2]}))
    status, document = replay_story(V1_CELL, tmp_path / "short.json")
    assert (status, document["as_saved"]) == (1, False)
    assert document["lines"][-1] == "=> nothing is wrong"


@pytest.fixture(scope="module")
def findings():
    """Return the findings for each broken driver."""
    done = run_in_cell(V1_CELL, str(HERE / "cell_programs" / "broken_v1_engines.py"))
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


# The check that detects each broken driver, with plain and with asynchronous scheduling.
FLIGHT, TEXT = "tokens in flight are counted", "a completion is whole and in order"
READS = "a step reads what was computed for it"
DETECTED_BY = {
    "V1Engine": ("nothing", "nothing"), "SkipsAnUpdate": (FLIGHT, FLIGHT),
    "AppliesAnOutputTwice": (FLIGHT, FLIGHT), "DeliversTwice": (TEXT, TEXT),
    "EndsTwice": ("no request ends twice",) * 2, "LosesAnOutput": ("no request is lost",) * 2,
    "ExceedsTheBudget": ("a step keeps its budget",) * 2, "LeaksABlock": ("KV blocks are conserved",) * 2,
    "QueuesTwice": ("queues are disjoint and complete",) * 2,
    "ComputesTooFar": ("computed tokens stay within the request",) * 2, "OverwritesTheCache": (READS, READS),
    "ForgetsToReset": (READS, READS), "SamplesTooEarly": ("computed tokens stay within the request", TEXT),
    "WithholdsAToken": ("every request ends", TEXT),
}  # fmt: skip


@pytest.mark.parametrize("engine", DETECTED_BY)
def test_broken_driver_is_detected_by_its_check(findings, engine):
    """Each broken driver is detected by its check, and the correct driver passes."""
    for result, expected in zip(findings[engine].values(), DETECTED_BY[engine], strict=True):
        assert (result or "nothing").removeprefix("broken invariant: ").startswith(expected)


@pytest.mark.slow
def test_v1_search_covers_preemptions_and_resets(run_fuzzer):
    """In 20 CPU seconds, over 1,000 steps have more than 10 preemptions, cache resets and ended requests each."""
    document = run_fuzzer(V1_CELL, "--engine", "v1", "--seconds", "20")
    assert document["upstream"]["modified"] == []
    [result] = document["seeds"]
    assert result["steps"] > 1000
    counted = ("requests preempted", "caches reset", "requests ended")
    assert min(result["tally"][name] for name in counted) > 10
