"""Released wheels of vLLM and TRL sample, train and reproduce known issues, on a GPU or, with CPU builds, on a CPU.

grpo_core trains with vLLM, too. A GPU cell has the releases in its name. A sleeping vLLM frees memory. A shortage of
memory has its code in triage, and `doctor --tier live` starts an engine of the cell.

The cells for a GPU are in the folder that the variable GRPO_DOCTOR_GPU_CELLS names, each built from `locks/CELL.txt`.
The CPU tests run in the cells that `nox -s tests-cells` builds. A test whose cell is missing is skipped, and the skip
says how to build the cell.
"""

import json

import pytest

from tests.cells import ROOT, run_with
from tests.gpu.devices import DEVICES, ON_GPU, cell_on, gpu_cell, on_gpu
from tests.processes import run_python

PROGRAM = ROOT / "tests" / "gpu" / "programs" / "start_vllm.py"
NEWEST = "vllm-0.31.0+trl-1.16.0"
# The last release whose default is the V0 scheduler, and one of the first that refuse over-long prompts.
OLD = ("vllm-0.7.3+trl-0.16.1", "vllm-0.8.5.post1+trl-0.17.0")
IN_CELLS = ("vllm-0.10.2+trl-0.25.1", NEWEST)
TOLERANCE = {"cpu": 1e-3, "cuda": 0.05}  # of a log-prob, in float32 and in bfloat16
pytestmark = [pytest.mark.vllm, pytest.mark.slow]


def start_vllm(device, cell, **options):
    """Start one engine; return its process, and its document if it printed one."""
    done = run_with(cell_on(device, cell), str(PROGRAM), json.dumps(options), timeout_s=900)
    return done, json.loads(done.stdout) if done.returncode == 0 else None


def triage_codes(text, tmp_path):
    """Return the codes that triage finds in a log."""
    (tmp_path / "log").write_text(text)
    done = run_python("-m", "diagnostics", "triage", tmp_path / "log", "--format", "json", cwd=ROOT)
    return [finding["code"] for finding in json.loads(done.stdout)["findings"]]


@pytest.mark.parametrize("cell", IN_CELLS)
@pytest.mark.parametrize(
    ("device", "eager"),
    [("cpu", True), pytest.param("cuda", True, marks=ON_GPU), pytest.param("cuda", False, marks=ON_GPU)],
)
def test_vllm_logprobs_match_transformers(device, cell, eager):
    """Sampled log-probs match, with captured CUDA graphs and without them; a CPU has no graphs."""
    done, answer = start_vllm(device, cell, eager=eager, share=0.3)
    assert answer is not None, done.stderr[-3000:]
    assert (answer["device"], {len(row) for row in answer["ids"]}) == (device, {12})
    assert answer["largest_difference"] < TOLERANCE[device]


@on_gpu
@pytest.mark.parametrize("cell", IN_CELLS)
def test_sleeping_vllm_frees_memory(cell):
    """A sleeping engine returns most of its memory to the driver, and samples the same tokens after it wakes."""
    done, answer = start_vllm("cuda", cell, share=0.5, sleep=True)
    assert answer is not None, done.stderr[-3000:]
    before, asleep, awake = answer["free"]
    assert asleep - before > 0.4 * answer["total"]
    assert asleep - awake > 0.4 * answer["total"]
    assert answer["after"] == answer["ids"]


@pytest.mark.parametrize(
    ("device", "options", "expected"),
    [
        ("cpu", {}, set()),
        ("cpu", {"kv_bytes": 2**16, "length": 4096}, {"MEM005"}),  # less than a block
        ("cpu", {"kv_bytes": 2**20, "length": 4096}, {"MEM006"}),
        pytest.param("cuda", {"share": 0.3}, set(), marks=ON_GPU),
        pytest.param("cuda", {"share": 0.9, "trainer_share": 0.5}, {"MEM004"}, marks=ON_GPU),
        pytest.param("cuda", {"share": 0.005}, {"MEM005"}, marks=ON_GPU),
        pytest.param("cuda", {"share": 0.3, "kv_bytes": 2**20, "length": 4096}, {"MEM006"}, marks=ON_GPU),
        pytest.param("cuda", {"share": 0.6, "later_share": 0.8}, {"MEM007"}, marks=ON_GPU),
    ],
)
def test_memory_shortage_has_its_code(device, options, expected, tmp_path):
    """Triage reports the code of the shortage and no other from MEM004 to MEM007; with enough memory vLLM starts."""
    done, answer = start_vllm(device, NEWEST, **options)
    assert (answer is not None) == (not expected), done.stderr[-3000:]
    if expected:
        codes = triage_codes(done.stdout + done.stderr, tmp_path)
        assert {code for code in codes if "MEM004" <= code <= "MEM007"} == expected


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("cell", OLD)
@pytest.mark.parametrize("code", ["SCH001", "SCH002"])
def test_scheduler_assertion_reproduces_in_the_released_wheel(device, cell, code):
    """The assertion is reproduced, and no attempt ends with an error of the harness or a timeout."""
    done = run_with(cell_on(device, cell), "-m", "repro", "run", code, "--json", timeout_s=1800)
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout)["codes"][code]
    assert result["outcome"] == "reproduced"
    assert not [attempt for attempt in result["attempts"] if attempt["outcome"] in {"error", "timeout"}]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("cell", OLD)
def test_cmp001_needs_an_undetected_platform(device, cell):
    """CMP001 occurs only without a GPU; with a GPU, vLLM detects its platform."""
    done = run_with(cell_on(device, cell), "-m", "repro", "run", "CMP001", "--json", timeout_s=900)
    result = json.loads(done.stdout)["codes"]["CMP001"]
    outcomes = [
        attempt["outcome"]
        for attempt in result["attempts"]
        if (attempt["trigger"], attempt["mitigation"]) == ("named_device", None)
    ]
    assert outcomes == ["reproduced" if device == "cpu" else "not_reproduced"]


@pytest.mark.parametrize(
    ("device", "cell"),
    [("cpu", IN_CELLS[0]), *(pytest.param("cuda", cell, marks=ON_GPU) for cell in IN_CELLS)],
)
def test_trl_trains_with_vllm(device, cell):
    """Three steps with vLLM in TRL's process change the weights; newer CPU builds of vLLM can't load TRL's weights."""
    # The engine that the release takes by itself: what else runs in a cell here asks for V0.
    program = (
        "import os, runpy, sys; os.environ.pop('VLLM_USE_V1', None); sys.argv[1:] = ['vllm', '--json']; "
        "runpy.run_module('repro.cell_programs.trl_training', run_name='__main__', alter_sys=True)"
    )
    done = run_with(cell_on(device, cell), "-c", program, timeout_s=900)
    answer = json.loads(done.stdout)
    assert (answer["outcome"], answer["steps"]) == ("ok", 3), answer["error"]
    assert answer["moved"] > 0


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mode", ["colocate", "async", "server"])
def test_grpo_core_trains_with_vllm(device, mode, tmp_path):
    """In each rollout mode a run of two steps ends without an error."""
    python = cell_on(device, NEWEST)
    command = ["train", f"--rollout.mode={mode}", "--rollout.engine=vllm", "--rollout.timeout_s=500"]
    where = [f"--train.device={device}", f"--rollout.device={device}", f"--output.dir={tmp_path}"]
    short = ["--train.steps=2", "--train.prompts_per_step=2", "--sampling.group_size=4", "--json"]
    done = run_with(python, "-m", "grpo_core", *command, *where, *short, timeout_s=1500)
    assert done.returncode == 0, done.stderr[-3000:]
    document = json.loads(done.stdout)
    assert document["outcome"] == "ok"
    assert document["syncs_proven"] == document["syncs"]


@pytest.mark.parametrize("device", DEVICES)
def test_doctor_live_starts_an_engine(device):
    """`doctor --tier live` starts an engine on the device of the cell's wheels; its log-probs match transformers."""
    python = cell_on(device, NEWEST)
    options = ("--python", python, "--tier", "live", "--format", "json")
    done = run_python("-m", "diagnostics", "doctor", *options, cwd=ROOT, timeout=1800)
    checks = {check["check"]: check for check in json.loads(done.stdout)["checks"]}
    assert checks["tiny engine"]["outcome"] == "ok", checks["tiny engine"]
    assert f"on the {'GPU' if device == 'cuda' else 'CPU'}" in checks["tiny engine"]["reason"]
    assert checks["log-probs against transformers"]["outcome"] == "ok"


@on_gpu
def test_gpu_cell_has_its_releases():
    """vLLM and TRL have the versions in the cell's name, and PyTorch is built for CUDA."""
    program = (
        "import json, torch; from importlib.metadata import version; "
        "print(json.dumps([version('vllm'), version('trl'), torch.version.cuda]))"
    )
    for cell in (*OLD, *IN_CELLS):
        releases = run_with(gpu_cell(cell), "-c", program)
        vllm, trl, cuda = json.loads(releases.stdout)
        assert f"vllm-{vllm}+trl-{trl}" == cell
        assert cuda
