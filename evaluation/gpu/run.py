"""Run every GPU check within a time budget; write one JSON file per step as soon as it ends.

usage: python -m evaluation.gpu.run OUT [--device cuda|cpu] [--budget SECONDS] [--only STEP ...]
       python -m evaluation.gpu.run OUT --publish

Each step is a process with its own time limit, so a step that hangs or is killed costs only itself. OUT receives
`NN-step.json` per step and `gpu.json` with all finished steps, rewritten after each. With --device cpu the same steps
run at toy size, as a rehearsal. Exit code 0 if no step failed, 1 otherwise. --publish runs nothing: it copies
OUT/gpu.json into `evaluation/gpu/results/`, under its day and device, and prints a line per step for docs/gpu.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = "grpo-doctor.gpu.v2"
RESULTS = Path(__file__).with_name("results")
PACKAGES = ("torch", "transformers", "trl", "accelerate", "peft", "safetensors", "numpy", "vllm")
# Test files with tests marked `gpu` that need no vLLM, each run in a process of its own.
TEST_FILES = (
    "tests/gpu/test_device_numerics.py",
    "tests/gpu/test_runs.py",
    "tests/gpu/test_weights.py",
    "tests/gpu/test_diagnostics_on_gpu.py",
    "tests/grpo_core/test_precision.py",
    "tests/grpo_core/test_weight_digest.py",
)
SHORT_RUN = {"train.steps": 4}


class StepError(RuntimeError):
    """Raised when a step's program fails; the message is the end of its output."""


def run(command: list[str], *, timeout_s: float, **environ: str) -> str:
    """Run a program of this checkout and return its standard output.

    Raises:
        StepError: It exited with an error or ran past its time limit.
    """
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1", **environ}
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=max(timeout_s, 1))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, errors = process.communicate()
        raise StepError(f"stopped after {timeout_s:.0f} s: {(errors or output)[-600:]}") from None
    if process.returncode:
        raise StepError(f"exit code {process.returncode}: {(errors + output)[-1500:]}")
    return output


def train(folder: Path, device: str, timeout_s: float, **settings: Any) -> dict[str, Any]:
    """Train the shipped task with settings (`__` in a key stands for a dot); return the main keys of its summary."""
    name = settings.pop("name")
    settings_of_run = {
        "train.device": device,
        "rollout.device": device,
        "output.dir": folder,
        "output.name": name,
        **SHORT_RUN,
    }
    options = [f"--{key.replace('__', '.')}={value}" for key, value in (settings_of_run | settings).items()]
    run(
        [sys.executable, "-m", "grpo_core", "train", *options],
        timeout_s=timeout_s,
        CUBLAS_WORKSPACE_CONFIG=":4096:8",
    )
    summary: dict[str, Any] = json.loads((folder / name / "summary.json").read_text(encoding="utf-8"))
    return {
        key: summary[key]
        for key in ("outcome", "parameters", "seconds", "max_logprob_difference", "syncs_proven", "syncs")
    }


def collect_facts(out: Path, device: str, timeout_s: float) -> dict[str, Any]:
    """Return package versions, the output of nvidia-smi, and doctor's exit code and findings."""
    collected: dict[str, Any] = {"python": platform.python_version(), "packages": {}}
    for name in PACKAGES:
        try:
            collected["packages"][name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            collected["packages"][name] = None
    if device == "cuda":
        query = "name,memory.total,driver_version,compute_cap,ecc.mode.current,mig.mode.current,power.limit"
        collected["nvidia_smi"] = run(
            ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"], timeout_s=30
        ).strip()
    doctor = [sys.executable, "-m", "diagnostics", "doctor", "--python", sys.executable, "--format", "json"]
    done = subprocess.run(doctor, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s, check=False)
    del out
    document = json.loads(done.stdout)
    collected["doctor"] = {
        "exit_code": done.returncode,
        "findings": [f"{finding['code']} {finding['severity']}" for finding in document.get("findings", [])],
    }
    return collected


def shipped_task(out: Path, device: str, timeout_s: float) -> dict[str, Any]:
    """Train twice in float32, which must end with equal parameters, then in bfloat16."""
    del out
    folder = Path(os.environ["GPU_WORK"])
    runs = {
        name: train(folder, device, timeout_s / 3, name=f"task-{name}", **{"model.dtype": dtype})
        for name, dtype in (("float32", "float32"), ("float32-again", "float32"))
    }
    settings = {"model.dtype": "bfloat16", "rollout.dtype": "bfloat16", "rollout.sync_tolerance": 0.5}
    runs["bfloat16"] = train(folder, device, timeout_s / 3, name="task-bfloat16", **settings)
    if runs["float32"]["parameters"] != runs["float32-again"]["parameters"]:
        raise StepError(f"two equal runs end with different parameters: {runs}")
    return runs


def gpu_tests(out: Path, device: str, timeout_s: float) -> dict[str, Any]:
    """Run the tests marked `gpu` (on a CPU: their CPU variants), one process per file; count outcomes by file."""
    del out
    chosen = (
        ("-m", "gpu and not vllm")
        if device == "cuda"
        else ("-k", "cpu and float32 and not modes", "-m", "not vllm")
    )

    def run_file(path: str) -> dict[str, Any]:
        junit = Path(os.environ["GPU_WORK"]) / f"junit-{Path(path).stem}.xml"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            *chosen,
            path,
            "-p",
            "no:cacheprovider",
            "-W",
            "default",
        ]
        command += ["-o", "addopts=--import-mode=importlib", "--timeout=150", f"--junitxml={junit}"]
        problem = ""
        try:
            run(command, timeout_s=timeout_s, OMP_NUM_THREADS="2")
        except StepError as error:
            problem = str(error)[-600:]
        if not junit.is_file():
            return {"problem": problem or "pytest wrote no results"}
        cases = list(ET.parse(junit).getroot().iter("testcase"))
        failed = [
            case.get("name")
            for case in cases
            if case.find("failure") is not None or case.find("error") is not None
        ]
        skipped = sum(case.find("skipped") is not None for case in cases)
        counts = {"passed": len(cases) - len(failed) - skipped, "failed": failed, "skipped": skipped}
        return counts | ({"problem": problem} if failed else {})

    with ThreadPoolExecutor(6 if device == "cuda" else 2) as pool:
        results = dict(zip(TEST_FILES, pool.map(run_file, TEST_FILES), strict=True))
    if any("problem" in counts for counts in results.values()):
        raise StepError(json.dumps(results))
    return results


def benchmark(out: Path, device: str, timeout_s: float) -> dict[str, Any]:
    """Run benchmarks.gpu against TRL; if this fails, run it without TRL, and return TRL's error under `TRL`."""
    del out
    options = ["--json", "--device", device, "--rounds", "4", "--trl", sys.executable]
    command = [sys.executable, "-m", "benchmarks.gpu", *options]
    try:
        return dict(json.loads(run(command, timeout_s=timeout_s * 0.8)))
    except StepError as error:
        alone = json.loads(run(command[:-2], timeout_s=timeout_s / 2))
        return {"TRL": str(error)[-800:], **alone}


def profile(out: Path, device: str, timeout_s: float) -> dict[str, Any]:
    """Profile three steps of the 0.5B model; return the slowest operations, phase times and peak memory."""
    del out
    return dict(
        json.loads(run([sys.executable, "-m", "evaluation.gpu.profile_steps", device], timeout_s=timeout_s))
    )


def one_gpu_modes(out: Path, device: str, timeout_s: float) -> dict[str, Any]:
    """Train in three modes with trainer and engine on one GPU; they must end with equal parameters."""
    del out
    folder = Path(os.environ["GPU_WORK"])
    runs: dict[str, Any] = {}
    for mode in ("colocate", "async", "server"):
        settings = {"rollout.mode": mode} | ({"rollout.max_staleness": 0} if mode == "async" else {})
        try:
            runs[mode] = train(folder, device, timeout_s / 3, name=f"mode-{mode}", **settings)
        except StepError as error:
            runs[mode] = {"outcome": str(error)[-800:], "parameters": None}
    if len({run["parameters"] for run in runs.values()}) != 1:
        raise StepError(json.dumps(runs))
    return runs


def killed_run(out: Path, device: str, timeout_s: float) -> dict[str, Any]:
    """Kill a run after its third checkpoint and resume it; it must end like an uninterrupted run."""
    del out
    folder = Path(os.environ["GPU_WORK"])
    settings = {"train.steps": 6, "checkpoint.every": 1}
    uninterrupted = train(folder, device, timeout_s / 3, name="whole", **settings)
    command = [
        sys.executable,
        "-m",
        "grpo_core",
        "train",
        f"--train.device={device}",
        f"--rollout.device={device}",
    ]
    command += [f"--output.dir={folder}", "--output.name=killed", "--output.completions_every=0"]
    options = [f"--{key}={value}" for key, value in settings.items()]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    environment["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    process = subprocess.Popen(
        [*command, *options], cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    reached, deadline = (
        folder / "killed" / "checkpoints" / "step-00000003" / "state.json",
        time.monotonic() + timeout_s / 3,
    )
    while not reached.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    process.kill()
    process.wait()
    if not reached.exists():
        raise StepError(f"no checkpoint of step 3 within {timeout_s / 3:.0f} s, or before the run ended")
    run([*command, *options, "--resume"], timeout_s=timeout_s / 3, CUBLAS_WORKSPACE_CONFIG=":4096:8")
    summary = json.loads((folder / "killed" / "summary.json").read_text(encoding="utf-8"))
    if summary["parameters"] != uninterrupted["parameters"]:
        raise StepError(f"resumed: {summary['parameters']}, uninterrupted: {uninterrupted['parameters']}")
    return {"parameters": uninterrupted["parameters"], "killed_after_step": 3}


def hang_and_audit(out: Path, device: str, timeout_s: float) -> dict[str, Any]:
    """Check that `hang` names a deadlock in a CUDA process, and `audit` no fault in the shipped task's run."""
    del out
    program = [sys.executable, "tests/gpu/programs/crossed_locks.py", device]
    process = subprocess.Popen(program, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        hang = diagnose(["hang", "--pid", str(process.pid), "--seconds", "4", "--patience", "3"], timeout_s)
    finally:
        process.kill()
        process.wait()
    audit = diagnose(["audit", str(Path(os.environ["GPU_WORK"]) / "task-float32")], timeout_s)
    results = {"hang": hang, "audit": audit}
    # hang exits with 1 (findings); audit with 0, or 3 if it could not check everything.
    if hang["exit_code"] != 1 or "HNG006" not in hang["output"] or audit["exit_code"] not in (0, 3):
        raise StepError(json.dumps(results))
    return results


def diagnose(arguments: list[str], timeout_s: float) -> dict[str, Any]:
    """Run a command of `diagnostics` and return its exit code and the end of its output."""
    command = [sys.executable, "-m", "diagnostics", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s, check=False)
    return {"exit_code": done.returncode, "output": (done.stdout + done.stderr)[-1500:]}


# Time limits on a CPU, which may be shared with other work, are this many times those on a GPU.
CPU_FACTOR = 6
# Steps in their order: name, function, time limit in seconds on a GPU.
STEPS = (
    ("facts", collect_facts, 60),
    ("shipped_task", shipped_task, 90),
    ("one_gpu_modes", one_gpu_modes, 120),
    ("gpu_tests", gpu_tests, 170),
    ("benchmark", benchmark, 200),
    ("killed_run", killed_run, 75),
    ("profile", profile, 90),
    ("hang_and_audit", hang_and_audit, 60),
)


def main() -> int:
    """Run the steps within the budget and print them; return 1 if a step failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--budget", type=float, default=540, metavar="SECONDS")
    parser.add_argument("--only", nargs="*", choices=[name for name, _, _ in STEPS])
    parser.add_argument("--publish", action="store_true", help="copy OUT/gpu.json into the published results")
    options = parser.parse_args()
    if options.publish:
        return publish(options.out / "gpu.json", RESULTS)
    options.out.mkdir(parents=True, exist_ok=True)
    # Not in OUT: checkpoints are too large to be brought back.
    os.environ["GPU_WORK"] = tempfile.mkdtemp(prefix="grpo-doctor-gpu-")
    started, steps, wrong = time.monotonic(), [], 0
    factor = CPU_FACTOR if options.device == "cpu" else 1
    for number, (name, step, gpu_limit_s) in enumerate(STEPS, 1):
        if options.only and name not in options.only:
            continue
        left_s = options.budget - (time.monotonic() - started)
        limit_s = min(gpu_limit_s * factor, left_s)
        began = time.monotonic()
        record: dict[str, Any] = {"step": name}
        if left_s < 10:
            record |= {"outcome": "skipped", "reason": "the time budget is used up"}
        else:
            try:
                record |= {"outcome": "ok", "result": step(options.out, options.device, limit_s)}
            except Exception as error:  # noqa: BLE001 - one step's failure must not end the others
                record |= {"outcome": "failed", "reason": f"{type(error).__name__}: {error}"[-3000:]}
        record["seconds"] = round(time.monotonic() - began, 1)
        wrong += record["outcome"] == "failed"
        steps.append(record)
        write_json(options.out / f"{number:02}-{name}.json", record)
        started_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        write_json(
            options.out / "gpu.json",
            {"schema": SCHEMA, "made": started_at, "device": device_name(options.device), "steps": steps},
        )
        print(f"== {name}: {record['outcome']} in {record['seconds']} s")
        print(json.dumps(record.get("result", record.get("reason")), indent=1)[:2500], flush=True)
    return 1 if wrong else 0


def publish(path: Path, results: Path) -> int:
    """Copy a `gpu.json` into a folder of results, and print its steps as rows of a Markdown table."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        day, device, steps = document["made"][:10], document["device"], document["steps"]
        rows = [f"| {step['step']} | {step['outcome']} | {step['seconds']} s |" for step in steps]
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"{path}: no results of the GPU checks: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    if document.get("schema") != SCHEMA:
        print(f"{path}: schema {document.get('schema')!r}, expected {SCHEMA!r}", file=sys.stderr)
        return 2
    target = results / f"{day}-{re.sub('[^a-z0-9]+', '-', device.lower()).strip('-')}.json"
    write_json(target, document)
    print(f"{target}\n| step | outcome | time |\n|---|---|---|", *rows, sep="\n")
    return 0


def device_name(device: str) -> str:
    """Return the name of the device, such as `NVIDIA H100 80GB HBM3`."""
    if device == "cpu":
        return f"CPU ({platform.machine()})"
    return run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], timeout_s=30).strip()


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Write JSON to a temporary file and rename it, so that readers never see half a file."""
    aside = path.with_suffix(".part")
    aside.write_text(json.dumps(document, indent=1), encoding="utf-8")
    aside.replace(path)


if __name__ == "__main__":
    sys.exit(main())
