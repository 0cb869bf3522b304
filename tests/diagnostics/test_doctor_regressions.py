"""Past bugs of `doctor` stay fixed: false warnings, unsafe fixes, and running the user's code.

Below the probe tier the examined interpreter runs only for `--ray`, and collectors import no module of the
working directory.
"""

import os
import stat
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from diagnostics import compat_table
from diagnostics.collect import facts, python_environment, remote
from diagnostics.collect.gpus import Gpus
from diagnostics.compat_table import Compat
from diagnostics.doctor import run_checks
from diagnostics.doctor.fix_plan import plan_builder
from diagnostics.findings import Severity
from diagnostics.fixes import Uninstall
from tests.diagnostics.fake_environments import EnvironmentBuilder, load_catalog
from tests.processes import run_python

ROOT = Path(__file__).resolve().parents[2]
NO_TABLE = Compat(problem="no table")


def examine(maker):
    """Return doctor's report on a fake environment, without a compatibility table."""
    return run_checks.examine(python_environment.collect(maker.prefix, {}), load_catalog(), NO_TABLE)


def findings(maker, code):
    """Return the findings of one code."""
    return [finding for finding in examine(maker).findings if finding.code == code]


def test_no_command_removes_cutlass_dsl_or_a_required_package(environment):
    """NCCL for another CUDA release is removed if two NCCLs are installed, but not the cuDNN that vLLM requires.

    CUTLASS's DSL for another CUDA release is no finding.
    """
    environment.add("torch", "2.9.0+cu128").add("vllm", "0.12.0", requires=["nvidia-cudnn-cu13"])
    environment.add("nvidia-nccl-cu12", "1.0").add("nvidia-cutlass-dsl-libs-cu13", "1.0")
    assert findings(environment, "ENV913") == []
    environment.add("nvidia-nccl-cu13", "1.0").add("nvidia-cudnn-cu13", "1.0")
    (result,) = findings(environment, "ENV913")
    removed = [action.names for action in result.remedy.actions if isinstance(action, Uninstall)]
    assert removed == [("nvidia-nccl-cu13",)]


def test_possible_issues_are_not_warnings(environment):
    environment.add("vllm", "0.11.0").add("trl", "0.26.2").add("torch", "2.8.0").add("transformers", "4.57.6")
    assert [item.code for item in examine(environment).findings if item.severity >= Severity.WARNING] == []


def test_plan_keeps_a_pair_if_the_fix_would_break_it(environment):
    """The plan changes transformers instead of TRL, because the newer TRL would fail with this vLLM."""
    environment.add("vllm", "0.8.5").add("trl", "0.17.0").add("transformers", "5.3.0").add("numpy", "2.1.0")
    known, table = python_environment.collect(environment.prefix, {}), compat_table.load()
    plan = plan_builder.build_plan(run_checks.examine(known, load_catalog(), table), known, table)
    (step,) = [step for step in plan.steps if step.kind == "packages"]
    assert "CMP003" in step.codes
    (action,) = step.commands
    assert action.requirements == ("vllm==0.8.5", "trl==0.17.0", "transformers==4.53.3")
    changed = {"transformers": replace(known.packages["transformers"], version="4.53.3")}
    after = run_checks.examine(replace(known, packages=known.packages | changed), load_catalog(), table)
    before = run_checks.examine(known, load_catalog(), table)
    assert {item.code for item in after.findings} < {item.code for item in before.findings}


@pytest.mark.parametrize(
    ("state", "extra", "severity"),
    [
        ("ok", {}, Severity.INFO),
        ("ok", {"pynvml": "12.0.0"}, Severity.WARNING),
        ("none", {}, Severity.WARNING),
    ],
)
def test_cmp001_is_info_only_if_vllm_finds_its_platform(environment, state, extra, severity):
    for name, version in {"vllm": "0.8.5", **extra}.items():
        environment.add(name, version)
    known = facts.collect(environment.prefix, {})
    machine = replace(known.machine, gpus=Gpus(state))
    report = run_checks.examine(known.environment, load_catalog(), NO_TABLE, machine)
    assert [item.severity for item in report.findings if item.code == "CMP001"] == [severity]


@pytest.mark.parametrize(
    ("vllm", "trl", "swift", "found"),
    [
        ("0.9.2", "0.23.1", "", {"CMP905": Severity.WARNING}),
        ("0.9.2", "0.23.1", "3.10.0", {}),
        ("0.12.0", "0.24.0", "3.10.0", {"CMP905": Severity.ERROR, "CMP906": Severity.WARNING}),
        ("0.12.0", "0.24.0", "3.11.0", {}),
    ],
)
def test_pair_of_a_wrapped_trl_counts_only_names_that_the_trainer_lacks(environment, vllm, trl, swift, found):
    """ms-swift does not install TRL's extra with the range; from 3.11.0 on it defines the name that vLLM 0.12 lacks."""
    environment.add("vllm", vllm).add("trl", trl)
    if swift:
        environment.add("ms-swift", swift)
    known = python_environment.collect(environment.prefix, {})
    report = run_checks.examine(known, load_catalog(), Compat(generated="2026-11-21"))
    results = {
        item.code: item.severity
        for item in report.findings
        if item.code == "CMP905" or (item.code == "CMP906" and "trl" in item.title)
    }
    assert results == found


@pytest.fixture
def environment_with_run_mark(tmp_path):
    """Make an environment whose interpreter writes a file when it runs; return its prefix and the path of that file."""
    created = EnvironmentBuilder(tmp_path / "env").add("transformers", "4.57.6", requires=["numpy>=1.17"])
    python, mark = created.prefix / "bin" / "python", tmp_path / "was_run"
    python.write_text(f"#!/bin/sh\ntouch {mark}\n")
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    return created.prefix, mark


def doctor(folder, *arguments, **environ):
    """Run `doctor` as a process in a folder."""
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from diagnostics.__main__ import main; sys.exit(main())"
    return run_python(
        "-I", "-c", program, "doctor", *map(str, arguments), cwd=folder, env={**os.environ, **environ}
    )


def test_interpreter_is_not_run_below_the_probe_tier(tmp_path, environment_with_run_mark):
    prefix, mark = environment_with_run_mark
    for options in ((), ("--fix-plan",)):
        done = doctor(tmp_path, "--prefix", prefix, *options, UV_OFFLINE="1")
        assert done.returncode in {0, 1, 3}, done.stderr
        assert not mark.exists()


def test_ray_collection_ignores_modules_in_the_working_directory(tmp_path):
    for name in ("ray", "subprocess", "json"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'was_run')!r}, 'w').close()\n")
    done = doctor(tmp_path, "--ray", "auto", "--host-python", sys.executable, PYTHONPATH=str(tmp_path))
    assert done.returncode == 2
    assert not (tmp_path / "was_run").exists()


def test_remote_collection_ignores_modules_in_the_working_directory(tmp_path, monkeypatch):
    (tmp_path / "json.py").write_text(f"open({str(tmp_path / 'was_run')!r}, 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    prefix = str(EnvironmentBuilder(tmp_path / "env").prefix)
    text = remote.program_text("diagnostics.collect.facts", "collect_node", {"prefix": prefix}, 60)
    (answer,) = remote.query_hosts([remote.Host("here")], "env A={host}", sys.executable, text, 60)
    assert answer.document["facts"]
    assert not (tmp_path / "was_run").exists()


def test_ray_option_starts_only_the_collector_in_an_empty_folder(environment_with_run_mark, tmp_path):
    """The examined interpreter reads the program from its standard input, and imports from no folder of the user."""
    prefix, mark = environment_with_run_mark
    python = prefix / "bin" / "python"
    python.write_text(f'#!/bin/sh\n(echo "$#" "$@"; ls; echo "path:$PYTHONPATH") >> {mark}\n')
    done = doctor(tmp_path, "--ray", "auto", "--prefix", prefix, PYTHONPATH=str(tmp_path))
    assert done.returncode == 2
    assert mark.read_text().splitlines() == ["1 -", "path:"]
