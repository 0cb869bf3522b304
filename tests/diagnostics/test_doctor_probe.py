"""`doctor --tier probe` imports packages in child processes, and `--tier live` also starts an engine.

The children in these tests are real processes, or prepared answers of `ScriptedChildren`. Children end with doctor, and
their files are removed unless doctor is killed.
"""

import json
import math
import os
import select
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from diagnostics.__main__ import main
from diagnostics.collect.gpus import Gpus
from diagnostics.collect.python_environment import Environment, Package
from diagnostics.doctor.probe import probe_results, tiers
from diagnostics.doctor.probe.child_processes import ChildProcesses, ChildResult
from diagnostics.fixes import fix_text
from tests.cells import cell_python
from tests.diagnostics.test_doctor_machine import HEALTHY
from tests.processes import is_running, run_text

ROOT = Path(__file__).resolve().parents[2]
NO_GPU = replace(HEALTHY, gpus=Gpus("none"))
NO_PACKAGES = Environment("/env", "3.11.7", {}, (), (), {}, None, None)


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """Return a folder whose modules the child processes import first."""
    folder = tmp_path / "modules"
    folder.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return folder


def check_result(ended, rules, current=NO_PACKAGES):
    """Return the result of the import check whose child has ended."""
    return probe_results.check_result_of(ended, "ENV921", current, rules, {})


def run_import(module, limit_s=500):
    """Import a module in a child process; return how it ended."""
    with ChildProcesses(Path(sys.executable), os.environ) as children:
        return children.run_program(f"import {module}", "imports", module, limit_s=limit_s)


def test_importable_module_is_ok_whatever_it_prints(modules):
    (modules / "noisy.py").write_text("__version__ = '1.2'\nprint('{\"ok\": false}' * 1000)")
    ended = run_import("noisy")
    assert ended.ok
    assert ended.answer["version"] == "1.2"


OLD_DRIVER = "The NVIDIA driver on your system is too old (found version 11040). Please update"
MISSING_LIBRARY = (
    "raise ImportError('libcudart.so.12: cannot open shared object file: No such file or directory')"
)
# Lazy imports re-raise the first exception under another message, which names another cause.
LAZY = """
try:
    {root}
except Exception as error:
    raise RuntimeError("Failed to import trl: cannot import name 'AutoProcessor' from 'transformers'") from error
"""
UNKNOWN_LOCATION = (
    "raise ImportError(\"cannot import name 'AutoConfig' from 'transformers' (unknown location)\")"
)


@pytest.mark.parametrize(
    ("text", "reason", "code"),
    [
        (MISSING_LIBRARY, "ImportError: libcudart.so.12", "CMP907"),
        ("import cv2_is_not_here.part", "No module named 'cv2_is_not_here'", "ENV012"),
        ("raise RuntimeError('no idea')", "RuntimeError: no idea", "ENV921"),
        (f"raise RuntimeError({OLD_DRIVER!r})", "too old", "ENV006"),
        ("import sys; sys.exit(7)", "SystemExit: 7", "ENV921"),
        ("import os; os._exit(7)", "ended with 7 and gave no answer", "ENV921"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "crashed with SIGSEGV", "ENG011"),
        ("input()", "EOFError", "ENV921"),
        (LAZY.format(root=MISSING_LIBRARY), "libcudart.so.12", "CMP907"),
        (LAZY.format(root=UNKNOWN_LOCATION), "unknown location", "ENV923"),
    ],
)  # fmt: skip
def test_failed_import_has_the_code_of_its_root_cause(modules, rules, text, reason, code):
    """A failed import has the code of a known issue in its output, of a damaged file, or of the check."""
    (modules / "broken.py").write_text(text)
    damaged = ("transformers/__init__.py: gone",) if code == "ENV923" else ()
    package = Package("transformers", "5.23.0", "/p/transformers", "pip", (), damaged=damaged)
    current = Environment("/p", "3.11.7", {"transformers": package}, (), (), {}, None, None)
    with ChildProcesses(Path(sys.executable), os.environ) as children:
        ended = children.run_program("import broken", "imports", "broken", limit_s=500)
        result = check_result(ended, rules, current)
    (finding,) = result.findings
    assert result.outcome == "findings"
    assert reason in result.reason
    assert (finding.severity.word, finding.known_by, finding.code) == ("error", "executed", code)
    assert "grpo-doctor-tried" not in finding.evidence[0].place
    assert fix_text(finding.remedy)


def test_hanging_import_is_killed_with_its_children(modules, rules):
    """A hanging import is killed with its children, also in other sessions, and leaves no file."""
    (modules / "hangs.py").write_text(
        "import subprocess, sys, pathlib, threading\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import threading; threading.Event().wait()'],"
        " start_new_session=True)\n"
        f"pathlib.Path({str(modules)!r}, 'pid').write_text(str(child.pid))\n"
        "threading.Event().wait()\n"
    )
    for limit_s in (2, 20, 200):  # on a busy machine a short limit may end before the child has started
        ended = run_import("hangs", limit_s)
        if (modules / "pid").exists() and (modules / "pid").read_text():
            break
    assert "did not end within its limit" in check_result(ended, rules).reason
    assert not ended.log.parent.exists()
    assert not is_running(int((modules / "pid").read_text()))


# Program that starts the interpreter that runs the tests.
THIS_PYTHON = f'#!/bin/sh\nexec {sys.executable} "$@"\n'


def write_interpreter(environment, script):
    """Make a script the interpreter of a fake environment."""
    python = environment.prefix / "bin" / "python"
    python.write_text(script)
    python.chmod(0o755)


def read_pipe(pipe, limit_s=500):
    """Return the text written into a named pipe; fail if there is no writer."""
    descriptor = os.open(pipe, os.O_RDWR)
    try:
        assert select.select([descriptor], [], [], limit_s)[0], "no writer"
        return os.read(descriptor, 4096).decode()
    finally:
        os.close(descriptor)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_interrupt_removes_child_and_folder(environment, tmp_path, number, code):
    """The child ends even if doctor is killed; otherwise its folder is removed, too."""
    environment.add("torch", "2.6.0")
    pipe = tmp_path / "started"
    os.mkfifo(pipe)
    (environment.site / "torch.py").write_text(
        "import os, threading\n"
        f"with open({str(pipe)!r}, 'w') as pipe: pipe.write(str(os.getpid()))\n"
        "threading.Event().wait()\n"
    )
    (temporary := tmp_path / "temporary").mkdir()
    environ = {**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": f"{ROOT}:{environment.site}"}
    write_interpreter(environment, THIS_PYTHON)
    options = ["--prefix", environment.prefix, "--tier", "probe"]
    command = [sys.executable, "-m", "diagnostics", "doctor", *options]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as doctor:
        try:
            child = os.pidfd_open(int(read_pipe(pipe)))
            assert list(temporary.iterdir())
            doctor.send_signal(number)
            assert select.select([child], [], [], 500)[0] == [child]
            doctor.communicate(timeout=500)
        finally:
            doctor.kill()
            os.close(child)
    assert doctor.returncode == code
    assert number == signal.SIGKILL or list(temporary.iterdir()) == []


def probe(children, rules, *names, machine=NO_GPU):
    """Return a probe of these packages with scripted children."""
    packages = {name: Package(name, "1.0", f"/p/{name}", "pip", ()) for name in names}
    return tiers.Probe(children, replace(NO_PACKAGES, packages=packages), machine, rules)


class ScriptedChildren:
    """A replacement of `ChildProcesses` that returns prepared answers by program and records the calls.

    The import of `sys`, which tests the interpreter, succeeds and is not recorded.
    """

    def __init__(self, folder, **answers):
        self.folder_, self.answers, self.calls = folder, answers, []

    def create_folder(self):
        return self.folder_

    def run_program(self, name, program, *arguments, limit_s):
        if arguments == ("sys",):
            return ChildResult(name, {"ok": True}, 0, False, 0.1, self.folder_ / "log")
        self.calls.append((program, *arguments))
        answer = self.answers.get(program, {"ok": True})
        log = self.folder_ / "log"
        log.write_text(answer.pop("log", ""))
        return ChildResult(name, answer, answer.pop("code", 0), answer.pop("late", False), 1.0, log)


def test_failure_of_torch_is_one_finding_for_all_packages(tmp_path, rules):
    """If PyTorch fails, packages that import it fail too, and their checks refer to the one finding."""
    children = ScriptedChildren(
        tmp_path, imports={"ok": False, "error": "OSError: libtorch.so", "where": "/a.py:1"}
    )
    results = tiers.run_probes(probe(children, rules, "torch", "transformers", "trl"))
    imports = [result for result in results if result.check.startswith("import")]
    assert [result.outcome for result in imports] == ["findings"] * 4, "TRL's trainer is imported separately"
    assert sum(len(result.findings) for result in imports) == 1
    assert "as with import torch" in imports[2].reason


def test_hanging_torch_is_waited_for_once(tmp_path, rules):
    """If importing torch hangs, checks that import torch are skipped."""
    children = ScriptedChildren(tmp_path, imports={"ok": False, "late": True})
    results = tiers.run_probes(probe(children, rules, "torch", "transformers", "trl"))
    assert [result.outcome for result in results] == ["ok", "findings", "skipped"]
    assert len(children.calls) == 1


def test_invisible_gpus_and_unspecified_vllm_platform_are_reported(tmp_path, rules):
    answer = {"ok": True, "cuda": "12.8", "available": False, "devices": 0, "device": ""}
    children = ScriptedChildren(tmp_path, imports=answer | {"platform": "UnspecifiedPlatform"})
    results = tiers.run_probes(probe(children, rules, "torch", "vllm", machine=HEALTHY))
    assert {finding.code for result in results for finding in result.findings} == {"ENV922", "ENG004"}


@pytest.mark.parametrize(
    ("device", "largest_difference", "expected"),
    [
        ("cpu", 1e-6, "ok"), ("cpu", 0.02, "findings"), ("cuda", 0.02, "ok"),
        ("cpu", float("nan"), "findings"), ("cpu", float("inf"), "findings"),
    ],
)  # fmt: skip
def test_logprob_tolerance_depends_on_the_device(tmp_path, rules, device, largest_difference, expected):
    """Log-probs may differ more on a GPU (16 bits) than on a CPU (32 bits); NaN and infinity are findings."""
    answer = {"ok": True, "device": device, "version": "1", "engine": "V1", "tokens": 48}
    children = ScriptedChildren(tmp_path, engine=answer | {"largest": largest_difference})
    live = tiers.run_live(probe(children, rules, "torch", "transformers", "vllm"))
    results = {item.check: item for item in live}
    checked = results["log-probs against transformers"]
    assert checked.outcome == expected
    with_correction = [item for item in checked.findings if "importance sampling" in str(item.remedy)]
    assert bool(with_correction) == (expected == "findings" and math.isfinite(largest_difference))
    assert results["two-rank collective, nccl"].outcome == "skipped"


def test_crashed_engine_is_reported_with_its_step(tmp_path, rules):
    """A crashed engine is reported with its step, and the comparison of log-probs is skipped."""
    children = ScriptedChildren(tmp_path, engine={"ok": False, "step": "starting the engine", "code": -6})
    results = tiers.run_live(probe(children, rules, "torch", "transformers", "vllm"))
    assert results[0].reason == "crashed with SIGABRT, while starting the engine"
    assert results[0].findings[0].code == "ENG901"
    assert results[1].outcome == "skipped"


@pytest.mark.parametrize(
    ("script", "tier", "code", "reason"),
    [
        (THIS_PYTHON, "live", 3, "no supported package is installed"),
        (None, "probe", 3, "no interpreter that can be run"),
        ("#!/no/such/python\n", "live", 3, "cannot be run: No such file"),
        ("#!/bin/sh\nexit 3\n", "live", 1, "ended with 3 and gave no answer"),
    ],
    ids=["no packages", "no interpreter", "no program", "ends at once"],
)
def test_tier_that_cannot_check_anything_is_not_ok(environment, capsys, script, tier, code, reason):
    """The exit code is 3 if nothing can be checked, and 1 if the interpreter starts and ends at once.

    The reason is reported once.
    """
    if script is not None:
        write_interpreter(environment, script)
    if reason != "no supported package is installed":
        environment.add("torch", "2.6.0").add("trl", "1.0")
    assert main(["doctor", "--prefix", str(environment.prefix), "--tier", tier, "--format", "json"]) == code
    checks = json.loads(capsys.readouterr().out)["checks"]
    assert sum(reason in check["reason"] for check in checks) == 1
    assert not {"tiny engine", "log-probs against transformers"} & {
        check["check"] for check in checks if check["outcome"] == "ok"
    }


@pytest.mark.heavy
def test_gloo_collective_works_between_two_processes(tmp_path):
    pytest.importorskip("torch")
    with ChildProcesses(Path(sys.executable), os.environ) as children:
        meeting = str(children.create_folder() / "meeting")
        ended = children.run_program("collective", "collective", "gloo", meeting, limit_s=500)
        assert ended.ok, ended.log.read_text()
    assert ended.answer["device"] == "cpu"


@pytest.mark.vllm
@pytest.mark.heavy
def test_unloadable_extension_of_a_cell_is_found_by_probe_and_metadata():
    """In a cell with vLLM's CUDA wheel and a CPU build of PyTorch, `vllm._C` fails, and libcudart.so.12 is missing."""
    python = cell_python("vllm-0.8.5.post1+trl-0.17.0")
    report, code = doctor_json(python, "probe")
    (static,) = [finding for finding in report["findings"] if finding["code"] == "ENV910"]
    assert "libcudart.so.12" in json.dumps(static["evidence"])
    outcome_of = {check["check"]: check["outcome"] for check in report["checks"]}
    assert (code, outcome_of["import torch"], outcome_of["import vllm._C"]) == (1, "ok", "findings")


@pytest.mark.vllm
@pytest.mark.heavy
@pytest.mark.parametrize(
    ("cell", "engine"),
    [("vllm-0.31.0+trl-1.16.0", "V1"), ("vllm-0.10.2+trl-0.25.1", "V1"), ("vllm-0.8.5+trl-0.17.0", "V0")],
)
def test_tiny_engine_agrees_with_transformers_in_a_cell(cell, engine):
    """On the CPU, the engine, its log-probs and a gloo collective of two ranks are ok."""
    report, _code = doctor_json(cell_python(cell), "live", VLLM_USE_V1="0" if engine == "V0" else "1")
    checks = {check["check"]: check for check in report["checks"]}
    assert checks["tiny engine"]["outcome"] == "ok", checks["tiny engine"]
    assert f"engine {engine}, on the CPU" in checks["tiny engine"]["reason"]
    assert checks["log-probs against transformers"]["outcome"] == "ok"
    assert checks["two-rank collective, gloo"]["outcome"] == "ok"


def doctor_json(python, tier, **environ):
    """Run `doctor` on a cell; return its JSON report and exit code."""
    command = [sys.executable, "-m", "diagnostics", "doctor", "--python", str(python), "--tier", tier]
    done = run_text(
        [*command, "--format", "json"], env={**os.environ, "PYTHONPATH": str(ROOT), **environ}, timeout=1800
    )
    return json.loads(done.stdout), done.returncode
