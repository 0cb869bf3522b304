"""In three cells the vLLM engine passes the conformance suite, refuses bad calls and trains in each mode.

It reports its capabilities, and keeps the process's random state and threads.
"""

import importlib
import json
import os
import shutil
from pathlib import Path

import pytest

from tests.cells import ROOT, cell_python, run_with

pytestmark = pytest.mark.vllm

CELLS = {"vllm-0.8.5+trl-0.17.0": "V0", "vllm-0.10.2+trl-0.25.1": "V1", "vllm-0.31.0+trl-1.16.0": "V1"}
SUITE = Path("tests/grpo_core/conformance/suite.py")
PROGRAM = Path(__file__).parent / "cell_programs" / "vllm_engine.py"
TOLERANCE = 1e-4  # of a log-prob in float32; measured differences are 1e-6 to 1e-5


@pytest.fixture(scope="module", params=CELLS)
def cell(request) -> str:
    """Return the id of one of the three matrix cells."""
    return request.param


@pytest.fixture(scope="module")
def in_cell(cell, tmp_path_factory):
    """Yield a function that runs the cell's Python with copies of the packages, the conformance suite and pytest."""
    python, stage = cell_python(cell), tmp_path_factory.mktemp("stage")
    shutil.copytree(ROOT / SUITE.parent, stage / SUITE.parent)
    shutil.copy(ROOT / "tests" / "__init__.py", stage / "tests")
    for name in ("pytest", "_pytest", "py", "pluggy", "iniconfig", "pygments"):  # plain Python, not in a cell
        path = Path(str(importlib.import_module(name).__file__))
        path = path.parent if path.name == "__init__.py" else path
        (stage / path.name).symlink_to(path)

    def run(*arguments) -> str:
        # Importing vLLM takes minutes where other work is on the cores.
        done = run_with(python, *map(str, arguments), path=[str(stage)], timeout_s=900)
        assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
        return done.stdout

    run.suite = stage / SUITE
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield run


def test_vllm_engine_passes_the_conformance_suite(in_cell):
    options = ["-q", "-c", os.devnull, "--rootdir", ".", "--import-mode=importlib", "-p", "no:cacheprovider"]
    options += ["-p", "tests.grpo_core.conformance.plugin", in_cell.suite, "--engine", "vllm"]
    assert " passed" in in_cell("-m", "pytest", *options)


@pytest.fixture(scope="module")
def cell_report(in_cell, tmp_path_factory) -> dict:
    """Return what `cell_programs/vllm_engine.py` recorded about the engine and its effects on the process."""
    return dict(json.loads(in_cell(PROGRAM, tmp_path_factory.mktemp("model"))))


def test_engine_reports_its_capabilities(cell_report, cell):
    """Each missing one has a reason; all of these releases support updates and seeds."""
    assert cell_report["engine_version"] == CELLS[cell]
    capabilities = cell_report["capabilities"]
    lacks = {name for name, can in capabilities.items() if can is False}
    assert lacks == {"fingerprint", "sleep"}
    assert set(capabilities["why_not"]) == lacks


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("temperature", "temperature 0.001 is below 0.01"),
        ("second owner", "another call is running; an engine has one owner"),
        ("interruption", "an earlier generate did not end; close it and start another"),
    ],
)
def test_unsafe_calls_are_refused(cell_report, what, message):
    """The engine refuses calls that vLLM would change or mix up silently.

    After Ctrl-C, vLLM still has unfinished requests, so the next call is refused.
    """
    assert cell_report["interrupted"]
    assert cell_report["refusals"][what].startswith("vllm engine, ")
    assert message in cell_report["refusals"][what]


def test_start_keeps_random_state_and_threads(cell_report):
    """The trainer's random state and threads stay the same, although vLLM changes them at start."""
    assert cell_report["generator_kept"]
    assert cell_report["threads_kept"]


def test_probe_command_passes(in_cell):
    """Trainer and engine agree on log-probs before and after a weight update."""
    probe = ("-m", "repro.cell_programs.engine_probe", "--rollout.engine=vllm", "--json")
    document = json.loads(in_cell(*probe))
    assert document["outcome"] == "ok"
    assert document["change_seen"]
    assert document["update_moved_logprobs_by"] > 100 * TOLERANCE
    assert document["max_logprob_difference_before"] < TOLERANCE
    assert document["max_logprob_difference_after"] < TOLERANCE


@pytest.mark.slow
@pytest.mark.timeout(2800)
def test_three_modes_train_the_same_parameters(in_cell, cell, tmp_path):
    """The three modes train the same parameters bit for bit, except colocate mode with vLLM 0.10.2.

    That release loads Intel's PyTorch extension there, which changes the rounding in the trainer. Async mode waits for
    each update.
    """
    documents = []
    for mode in ("colocate", "async", "server"):
        settings = ["--rollout.mode", mode, "--rollout.engine", "vllm"]
        if mode != "colocate":
            settings += ["--rollout.max_staleness", "0", "--rollout.timeout_s", "400"]
        settings += ["--train.steps", "8", "--output.dir", tmp_path]
        documents.append(json.loads(in_cell("-m", "grpo_core", "train", *settings, "--json")))
    assert [document["mode"] for document in documents] == ["colocate", "async", "server"]
    for document in documents:
        assert document["outcome"] == "ok"
        assert document["syncs_proven"] == document["syncs"] == 8
        assert document["max_logprob_difference"] < TOLERANCE
    groups = documents[1:] if cell == "vllm-0.10.2+trl-0.25.1" else documents
    assert len({document["parameters"] for document in groups}) == 1
