"""doctor's tiers that try: children that fail, crash, hang, leave things behind; and real cells."""

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from diagnostics.__main__ import main
from diagnostics.collect.packages import Environment, Package
from diagnostics.doctor.probe import probe_results as outcomes
from diagnostics.doctor.probe import probes as tiers
from diagnostics.doctor.probe.children import ChildEnded, Children
from diagnostics.fixes import fix_text
from diagnostics.triage.rules import Rules
from tests.cells import cell_python
from tests.diagnostics.environments import issues
from tests.diagnostics.test_doctor_machine import GOOD

ROOT = Path(__file__).resolve().parents[2]
NO_GPU = GOOD.__class__(**{**GOOD.__dict__, "gpus": GOOD.gpus.__class__("none")})


@pytest.fixture(scope="module")
def rules():
    return Rules(issues())


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """A folder of modules that the children's Python finds first."""
    folder = tmp_path / "modules"
    folder.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return folder


def outcome(ended, rules, current=None):
    return outcomes.child_result(ended, "ENV921", current, rules, {})


def test_a_module_that_imports_is_ok(modules):
    """Whatever it prints on standard output: the answer goes another way."""
    (modules / "noisy.py").write_text("__version__ = '1.2'\nprint('{\"ok\": false}' * 1000)")
    with Children(Path(sys.executable), os.environ) as children:
        ended = children.run_program("import noisy", "imports", "noisy", limit_s=500)
    assert ended.ok
    assert ended.answer["version"] == "1.2"


OLD_DRIVER = "The NVIDIA driver on your system is too old (found version 11040). Please update"
MISSING_LIBRARY = (
    "raise ImportError('libcudart.so.12: cannot open shared object file: No such file or directory')"
)
# Lazy imports raise others on top of the first exception of a chain, which name another cause.
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
        (MISSING_LIBRARY, "ImportError: libcudart.so.12", "CMP021"),
        ("import cv2_is_not_here.part", "No module named 'cv2_is_not_here'", "ENV012"),
        ("raise RuntimeError('no idea')", "RuntimeError: no idea", "ENV921"),
        (f"raise RuntimeError({OLD_DRIVER!r})", "too old", "ENV006"),
        ("import sys; sys.exit(7)", "SystemExit: 7", "ENV921"),
        ("import os; os._exit(7)", "ended with 7 and gave no answer", "ENV921"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "crashed with SIGSEGV", "ENG011"),
        ("input()", "EOFError", "ENV921"),
        (LAZY.format(root=MISSING_LIBRARY), "libcudart.so.12", "CMP021"),
        (LAZY.format(root=UNKNOWN_LOCATION), "unknown location", "ENV923"),
    ],
)  # fmt: skip
def test_a_module_that_does_not_import_is_a_finding(modules, rules, text, reason, code):
    """The code of a known issue in its output, of a damaged file, or the check's own."""
    (modules / "broken.py").write_text(text)
    damaged = ("transformers/__init__.py: gone",) if code == "ENV923" else ()
    package = Package("transformers", "5.23.0", "/p/transformers", "pip", (), damaged=damaged)
    current = Environment("/p", "3.11.7", {"transformers": package}, (), (), {}, None, None)
    with Children(Path(sys.executable), os.environ) as children:
        ended = children.run_program("import broken", "imports", "broken", limit_s=500)
        result = outcome(ended, rules, current)
    (finding,) = result.findings
    assert result.outcome == "findings"
    assert reason in result.reason
    assert (finding.severity.word, finding.known_by, finding.code) == ("error", "executed", code)
    assert "grpo-doctor-tried" not in finding.evidence[0].place
    assert fix_text(finding.remedy)


def test_a_module_that_hangs_is_ended_with_its_children(modules, rules):
    """A hanging import is killed with all its children, also those in another session; no process or file remains."""
    (modules / "hangs.py").write_text(
        "import subprocess, sys, pathlib, os, threading\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import threading; threading.Event().wait()'],"
        " start_new_session=True)\n"
        f"pathlib.Path({str(modules)!r}, 'pid').write_text(str(child.pid))\n"
        "threading.Event().wait()\n"
    )
    with Children(Path(sys.executable), os.environ) as children:
        for limit_s in (2, 20, 200):  # where the cores are busy it may not have got so far as to have a child
            ended = children.run_program("import hangs", "imports", "hangs", limit_s=limit_s)
            if (modules / "pid").exists() and (modules / "pid").read_text():
                break
        folder = ended.log.parent
        assert "did not end within its limit" in outcome(ended, rules).reason
    assert not folder.exists()
    assert has_ended(int((modules / "pid").read_text()))


def lend_interpreter(environment):
    """Give an environment of metadata alone an interpreter: this one."""
    python = environment.prefix / "bin" / "python"
    python.parent.mkdir(exist_ok=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)


def read_pipe(pipe, limit_s=500):
    """Return the text written into a named pipe; fail if there is no writer."""
    descriptor = os.open(pipe, os.O_RDWR)
    try:
        assert select.select([descriptor], [], [], limit_s)[0], "nobody wrote"
        return os.read(descriptor, 4096).decode()
    finally:
        os.close(descriptor)


def has_ended(pid):
    """Return whether a process has ended, also as a zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_nothing_behind(environment, tmp_path, number):
    """Child and folder are removed; doctor reports the interrupt."""
    environment.add("torch", "2.6.0")
    pipe = tmp_path / "started"
    os.mkfifo(pipe)
    (environment.site / "torch.py").write_text(
        "import os, threading\n"
        f"with open({str(pipe)!r}, 'w') as pipe: pipe.write(f'{{os.getpid()}} {{os.getcwd()}}')\n"
        "threading.Event().wait()\n"
    )
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environ = {**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": f"{ROOT}:{environment.site}"}
    lend_interpreter(environment)
    command = [
        sys.executable,
        "-m",
        "diagnostics",
        "doctor",
        "--prefix",
        environment.prefix,
        "--tier",
        "probe",
    ]
    # A shell starts what it puts into the background with Ctrl-C ignored; as in a terminal it has to be otherwise.
    with subprocess.Popen(
        command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as doctor:
        try:
            pid, folder = read_pipe(pipe).split()
            assert str(temporary) in folder
            doctor.send_signal(number)
            doctor.communicate(timeout=500)
        finally:
            doctor.kill()
    assert doctor.returncode == (130 if number == signal.SIGINT else 143)
    assert has_ended(int(pid))
    assert list(temporary.iterdir()) == []


def test_a_child_ends_with_the_tool_that_was_killed(modules, tmp_path):
    """Even where doctor has no chance to do anything about it."""
    pipe = tmp_path / "started"
    os.mkfifo(pipe)
    (modules / "waits.py").write_text(
        f"import os, threading\nopen({str(pipe)!r}, 'w').write(str(os.getpid()))\nthreading.Event().wait()\n"
    )
    program = (
        "import os, sys; from pathlib import Path; from diagnostics.doctor.probe.children import Children\n"
        "with Children(Path(sys.executable), os.environ) as c: c.run_program('x', 'imports', 'waits', limit_s=500)"
    )
    environ = {**os.environ, "PYTHONPATH": f"{modules}:{ROOT}", "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", program], env=environ) as doctor:
        pid = int(read_pipe(pipe))
        descriptor = os.pidfd_open(pid)
        doctor.kill()
    assert select.select([descriptor], [], [], 500)[0] == [descriptor]
    os.close(descriptor)


def environment_of(*names):
    packages = {name: Package(name, "1.0", f"/p/{name}", "pip", ()) for name in names}
    return Environment("/env", "3.11.7", packages, (), (), {}, None, None)


def probe(children, rules, *names, machine=NO_GPU):
    return tiers.Probe(children, environment_of(*names), machine, issues(), rules, lambda _text: None)


class Scripted:
    """Probe children with scripted results."""

    def __init__(self, folder, **answers):
        self.folder_, self.answers, self.asked = folder, answers, []

    def folder(self):
        return self.folder_

    def run_program(self, what, program, *arguments, limit_s, offline=False):
        if arguments == ("sys",):
            return ChildEnded(what, {"ok": True}, 0, False, 0.1, self.folder_ / "log")
        self.asked.append((program, *arguments))
        answer = self.answers.get(program, {"ok": True})
        log = self.folder_ / "log"
        log.write_text(answer.pop("log", ""))
        return ChildEnded(what, answer, answer.pop("code", 0), answer.pop("late", False), 1.0, log)


def test_the_same_failure_is_told_once(tmp_path, rules):
    """If PyTorch fails, packages that need it fail too: one finding, which each check refers to."""
    children = Scripted(tmp_path, imports={"ok": False, "error": "OSError: libtorch.so", "where": "/a.py:1"})
    results = tiers.run_probes(probe(children, rules, "torch", "transformers", "trl"))
    imports = [result for result in results if result.check.startswith("import")]
    assert [result.outcome for result in imports] == ["findings"] * 4, "TRL's trainer has an entry of its own"
    assert sum(len(result.findings) for result in imports) == 1
    assert "as with import torch" in imports[2].reason


def test_a_torch_that_hangs_is_waited_for_once(tmp_path, rules):
    """If importing torch hangs, checks that import it are skipped with that reason."""
    children = Scripted(tmp_path, imports={"ok": False, "late": True})
    results = tiers.run_probes(probe(children, rules, "torch", "transformers", "trl"))
    assert [result.outcome for result in results] == ["ok", "findings", "skipped"]
    assert len(children.asked) == 1


def test_a_platform_that_does_not_fit_the_machine(tmp_path, rules):
    """GPUs that PyTorch does not see, and a vLLM that names no platform."""
    children = Scripted(
        tmp_path,
        imports={
            "ok": True,
            "cuda": "12.8",
            "available": False,
            "devices": 0,
            "platform": "UnspecifiedPlatform",
            "device": "",
        },
    )
    results = tiers.run_probes(probe(children, rules, "torch", "vllm", machine=GOOD))
    assert {finding.code for result in results for finding in result.findings} == {"ENV922", "ENG004"}


@pytest.mark.parametrize(
    ("device", "largest", "outcome_"),
    [
        ("cpu", 1e-6, "ok"),
        ("cpu", 0.02, "findings"),
        ("cuda", 0.02, "ok"),
        ("cpu", None, "findings"),
        ("cpu", float("inf"), "findings"),
    ],
)
def test_logprobs_are_judged_by_the_device(tmp_path, rules, device, largest, outcome_):
    """16-bit floats are allowed more than 32-bit ones; no number is no agreement."""
    answer = {"ok": True, "device": device, "version": "1", "engine": "V1", "tokens": 48, "largest": largest}
    children = Scripted(tmp_path, engine=answer)
    context = probe(children, rules, "torch", "transformers", "vllm")
    if largest is None:
        ended = children.run_program("engine", "engine", limit_s=500)
        (matches,) = outcomes.parity_findings(ended)
        assert matches.code == "NUM901"
        assert "no number" in matches.detail
        assert "importance sampling" not in str(matches.remedy)
        return
    results = {item.check: item for item in tiers.run_live(context)}
    checked = results["log-probs against transformers"]
    assert checked.outcome == outcome_
    corrects = [finding for finding in checked.findings if "importance sampling" in str(finding.remedy)]
    assert bool(corrects) == (outcome_ == "findings" and largest != float("inf"))
    assert results["two-rank collective, nccl"].outcome == "skipped"


def test_an_engine_that_dies_says_at_which_step(tmp_path, rules):
    """And parity is skipped, not ok."""
    children = Scripted(tmp_path, engine={"ok": False, "step": "starting the engine", "code": -6})
    results = tiers.run_live(probe(children, rules, "torch", "transformers", "vllm"))
    assert results[0].reason == "crashed with SIGABRT, while starting the engine"
    assert results[0].findings[0].code == "ENG901"
    assert results[1].outcome == "skipped"


@pytest.mark.parametrize(
    ("script", "tier", "code", "reason"),
    [
        (f'#!/bin/sh\nexec {sys.executable} "$@"\n', "live", 3, "no supported package is installed"),
        (None, "probe", 3, "no interpreter that can be run"),
        ("#!/no/such/python\n", "live", 3, "cannot be run: No such file"),
        ("#!/bin/sh\nexit 3\n", "live", 1, "ended with 3 and gave no answer"),
    ],
    ids=["no packages", "no interpreter", "no program", "ends at once"],
)
def test_a_tier_that_cannot_check_anything_is_not_ok(environment, capsys, script, tier, code, reason):
    """It is incomplete, or an error where the interpreter itself fails: once, in one line; static results stay."""
    python = environment.prefix / "bin" / "python"
    if script is not None:
        python.write_text(script)
        python.chmod(0o755)
    if reason != "no supported package is installed":
        environment.add("torch", "2.6.0").add("trl", "1.0")
    assert main(["doctor", "--prefix", str(environment.prefix), "--tier", tier, "--format", "json"]) == code
    checks = json.loads(capsys.readouterr().out)["checks"]
    assert sum(reason in check["reason"] for check in checks) == 1
    assert not {"tiny engine", "log-probs against transformers"} & {
        check["check"] for check in checks if check["outcome"] == "ok"
    }


@pytest.mark.heavy
def test_two_ranks_sum_a_tensor(tmp_path):
    """Real processes, real gloo, in this Python."""
    pytest.importorskip("torch")
    with Children(Path(sys.executable), os.environ) as children:
        meeting = str(children.folder() / "meeting")
        ended = children.run_program("collective", "collective", "gloo", meeting, limit_s=500)
        assert ended.ok, ended.log.read_text()
    assert ended.answer["device"] == "cpu"


@pytest.mark.vllm
@pytest.mark.heavy
def test_a_cell_whose_extension_cannot_load():
    """vLLM's CUDA wheel with PyTorch's CPU build: static and probe name the same libraries; exit code 1."""
    python = cell_python("vllm-0.8.5.post1+trl-0.17.0")
    report, code = doctor_json(python, "probe")
    (static,) = [finding for finding in report["findings"] if finding["code"] == "ENV910"]
    assert "libcudart.so.12" in json.dumps(static["evidence"])
    outcomes = {check["check"]: check["outcome"] for check in report["checks"]}
    assert (code, outcomes["import torch"], outcomes["import vllm._C"]) == (1, "ok", "findings")


@pytest.mark.vllm
@pytest.mark.heavy
@pytest.mark.parametrize(
    ("cell", "engine"),
    [("vllm-0.31.0+trl-1.16.0", "V1"), ("vllm-0.10.2+trl-0.25.1", "V1"), ("vllm-0.8.5+trl-0.17.0", "V0")],
)
def test_a_tiny_engine_starts_in_a_cell(cell, engine):
    """And its log-probs are those of transformers."""
    report, _code = doctor_json(cell_python(cell), "live", VLLM_USE_V1="0" if engine == "V0" else "1")
    checks = {check["check"]: check for check in report["checks"]}
    assert checks["tiny engine"]["outcome"] == "ok", checks["tiny engine"]
    assert f"engine {engine}, on the CPU" in checks["tiny engine"]["reason"]
    assert checks["log-probs against transformers"]["outcome"] == "ok"
    assert checks["two-rank collective, gloo"]["outcome"] == "ok"


def doctor_json(python, tier, **environ):
    command = [sys.executable, "-m", "diagnostics", "doctor", "--python", str(python), "--tier", tier]
    done = subprocess.run(
        [*command, "--format", "json"],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=1800,
    )
    return json.loads(done.stdout), done.returncode
