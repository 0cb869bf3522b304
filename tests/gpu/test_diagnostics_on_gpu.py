"""On a machine with a GPU, doctor checks it and reports what nvidia-smi does; hang and audit find injected faults."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from diagnostics.audit.live.server_audit import audit_server
from diagnostics.audit.results import CLEAN, FAULT
from diagnostics.collect import gpus
from diagnostics.hang.collect import stacks
from diagnostics.hang.collect.snapshot import Selection, take_snapshot
from evaluation.hang import bench
from tests.cells import ROOT
from tests.diagnostics.audit.conftest import trained  # noqa: F401 - a fixture
from tests.diagnostics.audit.fake_vllm_server import Engine, ServerFaults, serving
from tests.gpu.devices import DEVICES, on_gpu, smi
from tests.processes import run_python, run_text

PROGRAM = Path(__file__).parent / "programs" / "crossed_locks.py"
# Field of `nvidia-smi --query-gpu`, and our attribute.
FACTS = {
    "name": lambda gpu: gpu.name, "uuid": lambda gpu: gpu.uuid, "driver_version": None,
    "memory.total": lambda gpu: gpu.memory_gb, "memory.used": lambda gpu: gpu.used_gb,
    "compute_mode": lambda gpu: gpu.compute_mode, "mig.mode.current": lambda gpu: gpu.mig,
    "ecc.errors.uncorrected.volatile.total": lambda gpu: gpu.ecc_uncorrected,
}  # fmt: skip
# Tolerances in GB: nvidia-smi prints MiB, our facts are rounded to 0.1 GB, and other processes allocate meanwhile.
NEAR_GB = {"memory.total": 0.2, "memory.used": 2.0}
ABSENT = {"[N/A]", "[Not Supported]", "N/A"}
CROSSED = next(case for case in bench.cases() if case.name == "two_locks")
# nvidia-smi prints the MIG mode as a word.
WORDS = {"Enabled": True, "Disabled": False}


def parse_smi_value(text: str, field: str):
    """Convert a value printed by nvidia-smi to the form of our facts, or None if the driver has no value."""
    if text in ABSENT:
        return None
    if field in NEAR_GB:
        return float(text) * 2**20 / 1e9
    if field == "compute_mode":
        return text.lower().replace(" ", "_")
    return WORDS.get(text, int(text) if text.isdigit() else text)


@on_gpu
@pytest.mark.parametrize("field", FACTS)
def test_device_facts_match_nvidia_smi(field):
    """The facts of each device equal the driver's (memory: nearly), in the driver's order."""
    command = [smi(), f"--query-gpu={field}", "--format=csv,noheader,nounits"]
    printed = run_text(command, check=True).stdout.splitlines()
    facts = gpus.collect(limit_s=60)
    assert facts.state == "ok"
    assert len(printed) == len(facts.devices)
    for line, gpu in zip(printed, facts.devices, strict=True):
        expected = parse_smi_value(line.strip(), field)
        fact = facts.driver if FACTS[field] is None else FACTS[field](gpu)
        assert fact == (pytest.approx(expected, abs=NEAR_GB[field]) if field in NEAR_GB else expected)


@pytest.mark.parametrize("device", DEVICES)
def test_doctor_checks_driver_and_devices(device):
    """Driver and devices are checked if there is a GPU; without one, both checks are skipped."""
    if device == "cpu" and torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    done = run_python("-m", "diagnostics", "doctor", "--format", "json", cwd=ROOT)
    checks = {check["check"]: check for check in json.loads(done.stdout)["checks"]}
    expected = {"ok", "findings"} if device == "cuda" else {"skipped"}
    assert {checks[name]["outcome"] for name in ("GPU driver", "GPUs")} <= expected


@on_gpu
@pytest.mark.skipif(stacks.find_py_spy() is None, reason="needs py-spy")
def test_deadlock_is_found_in_a_process_that_uses_a_gpu():
    """Two crossed locks are found as the cause, although the driver adds threads and memory maps of its own."""
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), "cuda"], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        name, pid = process.stdout.readline().split()
        score = {}
        for _ in range(20):  # CUDA takes a while to start: wait until both threads are blocked
            score = bench.score(CROSSED, take_snapshot(Selection((process.pid,))), {name: {int(pid)}})
            if score["right_process"]:
                break
        assert (score["right_process"], score["right_cause"]) == (True, True), score
    finally:
        process.kill()
        process.communicate()


@on_gpu
@pytest.mark.parametrize(
    ("dtype", "sampling", "faults"),
    [
        ("float32", {}, []),
        ("bfloat16", {}, []),
        ("bfloat16", {"temperature": 0.83}, ["sampling/temperature"]),
        ("bfloat16", {"top_k": 23}, ["sampling/top_k"]),
    ],
)
def test_audit_of_a_server_on_a_gpu_reports_its_faults_only(trained, dtype, sampling, faults):  # noqa: F811
    """The audit of a stand-in server on a GPU reports the injected fault; rounding by the GPU's kernels is no fault."""
    engine = Engine(trained / "checkpoint-120", dtype, ServerFaults(sampling=sampling), seed=1)
    engine.model.to("cuda")
    with serving(engine) as url:
        audit = audit_server(url, trained / "checkpoint-120", timeout_s=500)
    assert [answer.family for answer in audit.select(FAULT)] == faults
    assert (audit.outcome == CLEAN) == (not faults)
