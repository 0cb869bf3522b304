"""A TOML file alone describes a framework: its commands, scripts and configs are recognised, and rules check them.

Options without an index are reported as not checked. docs/lint.md names the keys of the file.
"""

import re
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

import diagnostics
from diagnostics.frameworks import Framework
from diagnostics.lint.dialects import Dialect, PlanValue, Removed, Start
from diagnostics.lint.settings_reader import read_file
from diagnostics.lint.steps import plans_of
from diagnostics.lint.versions import Versions
from tests.case_files import each_case, read_cases
from tests.diagnostics.lint_reports import lint, plans

PACKAGE = Path(diagnostics.__file__).parent
DOCUMENT = Path(__file__).parents[2].joinpath("docs", "lint.md").read_text(encoding="utf-8")
CASES = read_cases(__file__, "lint_runs.yaml")
RUNS = read_cases(__file__, "lint_forms.yaml")["plans"]
UNSLOTH = """
from unsloth import FastLanguageModel
from trl import GRPOConfig
model, tokenizer = FastLanguageModel.from_pretrained(
    "m", max_seq_length=1024, fast_inference=True, gpu_memory_utilization=0.9
)
args = GRPOConfig(num_generations=6, per_device_train_batch_size=1, gradient_accumulation_steps=1)
"""


def test_a_toml_file_alone_adds_a_framework(tmp_path):
    """A copy of the package with one more TOML file recognises the command, and a rule quotes its options."""
    copy = tmp_path / "diagnostics"
    (copy / "frameworks").mkdir(parents=True)
    for path in PACKAGE.iterdir():
        if path.name not in {"frameworks", "__pycache__"}:
            (copy / path.name).symlink_to(path)
    for path in (PACKAGE / "frameworks").glob("*.*"):
        (copy / "frameworks" / path.name).write_bytes(path.read_bytes())
    shutil.copy(Path(__file__).with_name("newrl.toml"), copy / "frameworks")
    script = tmp_path / "run.sh"
    script.write_text(
        "python -m newrl.train --share-gpus true --engine-len 2048 --prompt-len 1024 --answer-len 2000\n"
    )
    command = [sys.executable, "-m", "diagnostics", "lint", str(script)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=500, check=False)
    assert "newrl run" in done.stdout
    assert "Set engine_len to 3024, or lower one of the two." in done.stdout
    assert "no release of NewRL is indexed with its options" in done.stdout
    assert done.returncode == 3


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run["framework"])
def test_settings_become_values_of_the_run_plan(run):
    """An example run of a framework gives the values of the run plan that the case lists."""
    [plan] = plans(run["text"], run["syntax"])
    assert plan.framework == run["framework"]
    assert {name: plan.get(name) for name in run["plan"]} == run["plan"]


def test_unsloth_script_has_no_batch_rule_of_trl(tmp_path):
    """A script of unsloth may have a batch that TRL refuses, because unsloth raises it to the group size."""
    renamed = UNSLOTH.replace("from unsloth", "from other")
    for name, source, codes in (("a.py", UNSLOTH, []), ("b.py", renamed, ["CFG101"])):
        (tmp_path / "run.sh").write_text(f"python3 {name}\n")
        (tmp_path / name).write_text(source)
        assert [finding.code for finding in lint(tmp_path / "run.sh", trl="0.20").findings] == codes


@each_case(CASES["entry_modules"])
def test_entry_module_is_recognised_by_its_imports(source, arguments, framework, tmp_path):
    """An entry module counts if it, or a project's file that it imports, imports a GRPO trainer; `--help` is no run."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "main.py").write_text(source)
    (tmp_path / "mine" / "trainer.py").write_text("from verl.trainer.ppo.ray_trainer import RayPPOTrainer\n")
    script = tmp_path / "run.sh"
    script.write_text(f"python3 -m mine.main {arguments}\n")
    frameworks = [plan.framework for plan in plans_of(read_file(script), Versions())]
    assert frameworks == ([framework] if framework else [])


def test_config_inherits_the_values_of_the_configs_that_it_extends(tmp_path):
    """A config takes precedence over the one that it extends."""
    base = "grpo: {num_prompts_per_step: 32, num_generations_per_prompt: 16, val_period: 10}\n"
    (tmp_path / "base.yaml").write_text(base)
    (tmp_path / "middle.yaml").write_text("defaults: base.yaml\ngrpo: {num_prompts_per_step: 64}\n")
    (tmp_path / "top.yaml").write_text("defaults: middle.yaml\ngrpo: {num_generations_per_prompt: 8}\n")
    [plan] = plans_of(read_file(tmp_path / "top.yaml"), Versions())
    assert (plan.get("batch.prompts"), plan.get("group.size")) == (64, 8)
    assert plan.get("train.evaluates") is True


def test_keys_of_a_framework_are_documented():
    """The section "Add a framework" names the keys of a framework, its dialect, starts, plan values and `removed`."""
    section = DOCUMENT.partition("## Add a framework")[2]
    documented = set(re.findall(r"`([a-z_]+)`", section))
    keys = {field.name for field in fields(Framework)} | {
        name for kind in (Dialect, Start, PlanValue, Removed) for name in kind.__struct_fields__
    }
    assert keys - documented == {"framework"}  # it is the file's `name`
