"""The in-process vLLM engine in a real cell: this process has no vLLM and reads what was seen there."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

import grpo_core
from tests.cells import cell_python

pytestmark = pytest.mark.vllm

CELLS = {"vllm-0.8.5+trl-0.17.0": "V0", "vllm-0.10.2+trl-0.25.1": "V1", "vllm-0.31.0+trl-1.16.0": "V1"}
PROGRAM = Path(__file__).parent / "cell_programs" / "vllm_engine.py"
TOLERANCE = 1e-4  # of a log-prob in float32: seen are 1e-6 to 1e-5


@pytest.fixture(scope="module", params=CELLS)
def cell(request) -> str:
    """Each release that has a cell with its real engine."""
    return request.param


@pytest.fixture(scope="module")
def in_cell(cell, tmp_path_factory):
    """Runs the cell's Python on a copy of grpo_core and reads the one JSON document it prints."""
    python = cell_python(cell)
    stage = tmp_path_factory.mktemp("stage")
    shutil.copytree(Path(grpo_core.__file__).parent, stage / "grpo_core")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("VLLM_", "PYTHON"))}
    environment |= {"PYTHONPATH": str(stage), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}

    def run(*arguments) -> dict:
        done = subprocess.run(
            [python, "-P", *map(str, arguments)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=900,  # importing vLLM takes minutes where other work is on the cores
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(done.stdout)

    return run


@pytest.fixture(scope="module")
def seen(in_cell, tmp_path_factory) -> dict:
    """What `cell_programs/vllm_engine.py` printed: one engine, everything asked of it."""
    return in_cell(PROGRAM, tmp_path_factory.mktemp("model"))


def test_the_engine_says_what_it_is_and_what_it_lacks(seen, cell):
    """Each lack with its reason; updates, seeds and aborts work in all of these releases."""
    assert seen["engine_version"] == CELLS[cell]
    capabilities = seen["capabilities"]
    lacks = {name for name, can in capabilities.items() if can is False}
    assert lacks == {"fingerprint", "sleep"}
    assert set(capabilities["why_not"]) == {*lacks, "slices"}


def test_logprobs_are_the_trainers_before_and_after_every_update(seen):
    """Over six updates, at temperature 0.8, on prompts whose keys the version before cached."""
    assert [update["version"] for update in seen["updates"]] == [-1, 0, 1, 2, 3, 4, 5]
    for update in seen["updates"]:
        assert update["tokens"] == 192
        assert update["difference"] < TOLERANCE, update


def test_the_comparison_would_notice_stale_weights(seen):
    """Each update moves the log-probs by far more than the tolerance."""
    for update in seen["updates"][1:]:
        assert update["difference_to_previous_version"] > 100 * TOLERANCE, update


def test_every_token_carries_the_version_that_sampled_it(seen):
    """Version -1 is the model on disk; then the versions as they were given."""
    assert seen["version_at_start"] == -1
    assert [update["token_versions"] for update in seen["updates"]] == [[version] for version in range(-1, 6)]


def test_the_engine_holds_copies(seen):
    """An optimizer step in place, after an update, does not reach the engine."""
    assert seen["difference_after_trainer_moved_on"] < TOLERANCE


def test_the_same_seed_gives_the_same_ids(seen):
    """Twice the same requests, twice the same completions; another seed on the same prompt gives others."""
    assert seen["ids_again"] == seen["ids"]
    assert len({tuple(ids) for ids in seen["ids"]}) == len(seen["ids"])


def test_what_is_sampled_does_not_depend_on_the_neighbours(seen):
    """Alone, or in another order, each request gets the completion it got in the batch."""
    assert seen["ids_alone"] == seen["ids"]
    assert seen["ids_reversed"] == seen["ids"]


def test_completions_come_in_the_order_of_the_requests(seen):
    """Each is paired with its request by id; asking nothing gives nothing."""
    assert seen["request_ids"] == [f"r{i}" for i in range(8)]
    assert seen["nothing_asked"] == []


def test_a_completion_ends_with_the_stop_id_or_at_the_length(seen):
    """The stop id is kept, is the only one of its kind, and nothing else ends a completion early."""
    reasons = {reason for reason, _ in seen["stops"]}
    assert reasons == {"stop", "length"}
    for reason, ids in seen["stops"]:
        if reason == "stop":
            assert ids.index(7) == len(ids) - 1
        else:
            assert len(ids) == 40
            assert 7 not in ids


def test_the_models_generation_config_is_not_read(seen):
    """It asks for an end at id 12 (config.json at 8), yet completions go on after both."""
    assert any(12 in ids[:-1] for ids in seen["ids"])
    assert any(8 in ids[:-1] for ids in seen["ids"])


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("missing", "nothing was loaded: lm_head.weight is missing"),
        ("unknown", "extra is not in the model"),
        ("shape", "model.embed_tokens.weight is (1, 64), not (32, 64)"),
        ("length", "request r0 has 150 prompt tokens and asks for 4096 more"),
        ("empty", "request none has 0 prompt tokens"),
        ("vocabulary", "request odd has a token id outside of 0 to 31"),
        ("temperature", "temperature 0.001 is below 0.01"),
        ("second owner", "another call is running; an engine has one owner"),
    ],
)
def test_refusals_say_what_was_wrong(seen, what, says):
    """What vLLM would pass over in silence is refused by name."""
    assert seen["refusals"][what].startswith("vllm engine, ")
    assert says in seen["refusals"][what]


def test_a_refusal_changes_nothing(seen):
    """Samples and version are the ones from before."""
    assert seen["unchanged_by_refusals"]
    assert seen["version_after_refusals"] == 5


def test_an_abort_gives_what_was_sampled_and_leaves_the_engine_as_it_was(seen):
    """Far from all that was asked, right to the last token; then the same samples as before."""
    assert "abort" in seen["abort_reasons"]
    assert 0 < sum(seen["abort_tokens"]) < 64 * 2000
    assert seen["abort_difference"] < TOLERANCE
    assert seen["ids_after_abort"] == seen["ids"]


def test_an_interrupted_engine_does_not_go_on(seen):
    """After Ctrl-C in a rollout vLLM still holds its requests: the next call is refused, not mixed up."""
    assert seen["interrupted"]
    assert "an earlier generate did not end; close it and start another" in seen["after_interruption"]


def test_closing_allows_another_engine_in_the_same_process(seen):
    """A closed engine says so; a second one starts and samples from what it was given."""
    assert "the engine is closed" in seen["after_close"]
    assert seen["difference_second_engine"] < TOLERANCE


def test_starting_leaves_the_trainers_generators_and_threads_alone(seen):
    """Starting vLLM seeds every generator and lowers torch's threads; the trainer must not notice."""
    assert seen["generator_kept"]
    assert seen["threads_kept"]


def test_the_probe_command_passes(in_cell):
    """The shipped check of an engine: same log-probs before and after an update that moves them."""
    document = in_cell("-m", "grpo_core", "probe", "--rollout.engine", "vllm", "--json")
    assert document["outcome"] == "ok"
    assert document["change_seen"]
    assert document["update_moved_logprobs_by"] > 100 * TOLERANCE
    assert (
        max(document["max_logprob_difference_before"], document["max_logprob_difference_after"]) < TOLERANCE
    )


@pytest.mark.slow
@pytest.mark.timeout(2800)
def test_the_three_modes_train_the_same_parameters(in_cell, cell, tmp_path):
    """In this process, in one of its own (waiting for each update) and behind HTTP: not a bit differs.

    Where vLLM brings Intel's extension into the process it shares with the trainer (0.10.2), that alone changes how
    the trainer's own sums are rounded: colocate then trains other bits, on log-probs as close as the others'.
    """
    documents = []
    for mode in ("colocate", "async", "server"):
        settings = ["--rollout.mode", mode, "--rollout.engine", "vllm"]
        if mode != "colocate":
            settings += ["--rollout.max_staleness", "0", "--rollout.timeout_s", "400"]
        settings += ["--train.steps", "8", "--output.dir", tmp_path]
        documents.append(in_cell("-m", "grpo_core", "train", *settings, "--json"))
    assert [document["mode"] for document in documents] == ["colocate", "async", "server"]
    for document in documents:
        assert document["outcome"] == "ok"
        assert document["syncs_proven"] == document["syncs"] == 8
        assert document["max_logprob_difference"] < TOLERANCE
    alike = documents[1:] if cell == "vllm-0.10.2+trl-0.25.1" else documents
    assert len({document["parameters"] for document in alike}) == 1
