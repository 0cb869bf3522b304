"""RAY001 has a plan for each mitigation and distinguishes its causes; slow tests use real Ray and verl.

RAY001: verl's engine process finds none of the Ray actors that are its workers.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from repro.base import ElsewhereError
from repro.drivers.verl_rollout import NAMES, OTHER_NAMESPACE, RIGHT
from repro.issues import REPROS
from repro.issues import ray001 as repro
from tests.cells import cell_python, run_in_cell

ROOT = Path(__file__).parent.parent.parent
THERE = [f"training/{name}" for name in NAMES]


def report(**changes):
    """Return the report of an engine process that found its workers, with these changes."""
    result = {
        "engine_environment": {"RAY_ADDRESS": None, "VLLM_WORKER_MULTIPROC_METHOD": "spawn"},
        "engine_address": "127.0.0.1:1",
        "server_address": "127.0.0.1:1",
        "names": list(NAMES),
        "everywhere": THERE,
        "requested": {name: ["init_worker", "init_device", "load_model"] for name in NAMES},
    }
    return {name: value for name, value in (result | changes).items() if value is not None}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, "the workers are there"),
        ({"engine_address": "127.0.0.1:2", "names": [], "everywhere": []}, "another cluster than its server"),
        ({"names": [], "everywhere": [f"other/{NAMES[0]}"]}, "in another namespace (other)"),
        ({"names": [], "everywhere": ["training/someone-else"]}, "the workers are gone"),
        ({"engine_address": None}, "the engine process joined no cluster"),
    ],
)
def test_cause_is_derived_from_the_report(changes, reason):
    """The report shows the cause: another cluster, another namespace, dead workers, or no cluster."""
    assert reason in repro.find_cause(report(**changes))


def test_failure_line_has_expected_and_actual_names():
    """The line has the environment variables, the prefix, and the expected and actual names in all namespaces."""
    line = repro.describe(
        report(names=["k3X9aBWorkerDict_9:9"], everywhere=["training/k3X9aBWorkerDict_9:9"])
    )
    for part in (
        "RAY_ADDRESS=(unset)",
        "VLLM_WORKER_MULTIPROC_METHOD=spawn",
        "prefix k3X9aBWorkerDict",
        f"expected {NAMES[0]}",
        "seen k3X9aBWorkerDict_9:9",
        "in all namespaces training/k3X9aBWorkerDict_9:9",
    ):
        assert part in line


def test_work_counts_calls_of_workers():
    """Work is complete only if each worker received all its calls."""
    assert repro.count_calls(report()).complete
    assert not repro.count_calls(report(requested={NAMES[0]: ["init_worker"]})).complete


def test_remote_failure_keeps_its_type_and_frames():
    """A failure of the engine process is raised here with its type, its frames and a note."""
    failure = {"kind": "AssertionError", "text": "has 0 actors", "frames": [["a.py", 3, "f"]]}
    with pytest.raises(ElsewhereError) as raised_error:
        repro.count_calls(report(failure=failure))
    assert (raised_error.value.kind, raised_error.value.frames) == ("AssertionError", (["a.py", 3, "f"],))
    assert "prefix" in raised_error.value.note


def test_mitigation_changes_only_its_setting():
    """Each mitigation changes only its own variable, namespace or Ray head in the plan."""
    bare = repro.make_plan("wrong_address", None)
    inputs = repro.make_plan("wrong_address", "explicit_address")
    assert inputs.server_env == bare.server_env | {"RAY_ADDRESS": RIGHT}
    assert repro.make_plan("wrong_address", "unset_spawn").server_env == {
        "RAY_ADDRESS": bare.server_env["RAY_ADDRESS"]
    }
    assert repro.make_plan("other_namespace", None).workers_namespace == OTHER_NAMESPACE
    assert repro.make_plan("other_temp_dir", "running_head").head == "default"


def test_every_recorded_pair_has_a_plan():
    """The plans cover each mitigation that the entry records for a trigger."""
    for item in REPROS["RAY001"].mitigations:
        for trigger in item.helps | item.fails:
            repro.make_plan(trigger, item.name)


# Line and function of the assertion in verl's executor, by release.
LINES = {"verl-0.4.1": (57, "_init_executor"), "verl-0.5.0": (61, "_get_model_runner_workers")}


@pytest.mark.ray
@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.parametrize("environment", LINES)
def test_ray_address_prevents_a_new_cluster(environment):
    """Without RAY_ADDRESS verl's executor starts a new cluster and finds no actors; with it, it finds them."""
    pair = ("--trigger", "no_address", "--mitigation", "explicit_address", "--timeout", "500")
    done = run_in_cell(environment, "-m", "repro", "run", "RAY001", *pair, "--json", timeout_s=1100)
    assert done.returncode == 0, done.stderr[-3000:]
    bare, helped = json.loads(done.stdout)["codes"]["RAY001"]["attempts"]
    line, function = LINES[environment]
    assert bare["where"] == f"{repro.FILE}:{line}"
    assert (bare["outcome"], bare["function"]) == ("reproduced", function)
    assert bare["detail"].startswith("the engine process is in another cluster than its server")
    assert (helped["outcome"], helped["finished"], helped["tokens"]) == ("mitigated", 1, 3)


@pytest.mark.ray
@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_run_leaves_no_ray_process(number):
    """When an interrupted command has ended, no Ray process of it runs and its folder is empty."""
    command = [cell_python("verl-0.4.1"), "-m", "repro", "run", "RAY001", "--trigger", "no_address"]
    with tempfile.TemporaryDirectory(prefix="r-", dir="/tmp") as folder:
        environment = os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": folder}
        with subprocess.Popen(
            [*command, "--mitigation", "none", "--timeout", "300"],
            env=environment,
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            for line in process.stderr:
                if "Started a local Ray instance" in line:
                    break
            assert processes_using(folder)
            process.send_signal(number)
            process.stderr.read()  # ends when the last process that inherited stderr has ended
        assert not processes_using(folder)
        assert not list(Path(folder).iterdir())


def processes_using(folder):
    """Return the command lines of other processes that contain this folder."""
    result = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes()
        except OSError:
            continue
        if folder.encode() in command and path.parent.name != str(os.getpid()):
            result.append(command.replace(b"\0", b" ").decode())
    return result


if sys.platform != "linux":
    pytestmark = pytest.mark.skip(reason="orphans are adopted on Linux alone")
