"""Compare lint's rules with the frameworks' own checks: lint must report what a framework refuses, and nothing else.

    python evaluation/lint/framework_comparison.py NAME PYTHON...
    python evaluation/lint/framework_comparison.py easyr1 PYTHON --source DIR

NAME is a key of FRAMEWORKS: trl, trl-options, verl, verl-options, ms-swift, openrlhf or openrlhf-options.
PYTHON is the interpreter of an environment with the framework. These checks of the frameworks run:

- TRL 0.18 or newer (`trl-options`: 1.7 or newer): the constructor of GRPOConfig.
- verl: `validate_config`, and `DataProto.chunk`, which splits a batch among the devices.
- ms-swift 4.2 or newer: the constructor of GRPOConfig.
- OpenRLHF: `train_ppo_ray.py` up to the first engine, with stand-ins for Ray and DeepSpeed.
- EasyR1, from a checkout DIR: the size checks of `RayPPOTrainer.__init__` and `FSDPWorker`.

Every combination of the settings in FRAMEWORKS goes to the framework, in one process of PYTHON, and to lint, in this
process. The first 20 disagreements are printed. The exit code is 1 if there is any, or if a program fails.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from packaging.version import Version

from diagnostics.findings import Severity
from diagnostics.lint.rules.declared import DECLARED
from diagnostics.lint.rules.registry import registered_rules
from diagnostics.lint.settings_reader import read_command_line
from diagnostics.lint.steps import check_rule, plans_of
from diagnostics.lint.versions import Versions

TRL_PROGRAM = """
import contextlib, json, logging, sys, tempfile, warnings
warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)
import trl
from trl import GRPOConfig
answers = []
with tempfile.TemporaryDirectory() as folder:
    for case in json.load(sys.stdin):
        try:
            GRPOConfig(output_dir=folder, use_cpu=True, report_to=[], **case)
            answers.append("")
        except ValueError as error:
            answers.append(str(error))
print("\\n" + json.dumps([trl.__version__, answers]))
"""
VERL_PROGRAM = """
import contextlib, io, json, os, sys, warnings
warnings.simplefilter("ignore")
import torch, verl
from hydra.errors import InstantiationException
from omegaconf import OmegaConf
from verl.utils.config import validate_config
base = OmegaConf.load(os.path.join(os.path.dirname(verl.__file__), "trainer/config/_generated_ppo_trainer.yaml"))
base.actor_rollout_ref.rollout.name = "vllm"
base.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu = 1
base.actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu = 1
answers = []
for case in json.load(sys.stdin):
    for key, value in case.items():
        OmegaConf.update(base, key, None if value == "null" else value)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            validate_config(base, use_reference_policy=False, use_critic=False)
        # The first step splits the completions among the devices.
        completions = torch.zeros(base.data.train_batch_size * base.actor_rollout_ref.rollout.n, 1)
        batch = verl.DataProto.from_dict({"completions": completions})
        batch.chunk(base.trainer.n_gpus_per_node * base.trainer.nnodes)
        answers.append("")
    except (ValueError, AssertionError, InstantiationException) as error:
        answers.append(str(error))
print("\\n" + json.dumps([verl.__version__, answers]))
"""

VERL_OPTIONS_PROGRAM = VERL_PROGRAM.replace(
    "use_reference_policy=False", "use_reference_policy=bool(base.actor_rollout_ref.actor.use_kl_loss)"
)
SWIFT_PROGRAM = """
import json, logging, os, sys, tempfile, warnings
warnings.simplefilter("ignore")
real, said = sys.stdout, open(os.devnull, "w")
sys.stdout = said
logging.disable(logging.CRITICAL)
import swift
from swift.rlhf_trainers.arguments import GRPOConfig
answers = []
with tempfile.TemporaryDirectory() as folder:
    for case in json.load(sys.stdin):
        try:
            GRPOConfig(output_dir=folder, use_cpu=True, report_to=[], **case)
            answers.append("")
        except ValueError as error:
            answers.append(str(error))
real.write("\\n" + json.dumps([swift.__version__, answers]) + "\\n")
"""
OPENRLHF_PROGRAM = """
import argparse, ast, contextlib, io, json, os, sys, warnings
from importlib import metadata
from types import ModuleType
from unittest.mock import MagicMock
warnings.simplefilter("ignore")

class Reached(Exception):
    pass

class Names(dict):
    def __missing__(self, name):
        if hasattr(__builtins__, name):
            return getattr(__builtins__, name)
        return MagicMock(name=name)

def reached(*args, **kwargs):
    raise Reached

path = next(str(f.locate()) for f in metadata.files("openrlhf") if str(f).endswith("cli/train_ppo_ray.py"))
tree = ast.parse(open(path).read())
# Only its module `config` is imported: the __init__ of the package imports what an engine needs.
package = ModuleType("openrlhf.utils")
package.__path__ = [os.path.join(os.path.dirname(os.path.dirname(path)), "utils")]
sys.modules["openrlhf.utils"] = package
function = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "train")
main = next(n for n in tree.body if isinstance(n, ast.If))
names = Names(argparse=argparse, os=os, sys=sys, create_vllm_engines=reached, RayActorGroup=reached)
exec(compile(ast.Module([function], []), path, "exec"), names)
program = compile(ast.Module(main.body, []), path, "exec")
answers = []
for case in json.load(sys.stdin):
    sys.argv = ["train_ppo_ray"]
    for key, value in case.items():
        sys.argv += [] if value is False else ["--" + key] if value is True else ["--" + key, str(value)]
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            exec(program, names)
        answers.append("")
    except Reached:
        answers.append("")
    except AssertionError as error:
        answers.append(str(error) or "refused")
print("\\n" + json.dumps([metadata.version("openrlhf"), answers]))
"""
EASYR1_PROGRAM = """
import ast, contextlib, io, json, os, sys
from types import SimpleNamespace
from unittest.mock import MagicMock
folder = sys.argv[1]

def method(path, kind, name):
    tree = ast.parse(open(os.path.join(folder, path)).read())
    owner = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == kind)
    return next(n for n in owner.body if isinstance(n, ast.FunctionDef) and n.name == name)

trainer = method("verl/trainer/ray_trainer.py", "RayPPOTrainer", "__init__")
worker = next(n for n in ast.parse(open(os.path.join(folder, "verl/workers/fsdp_workers.py")).read()).body
              if isinstance(n, ast.ClassDef) and n.name == "FSDPWorker")
checks = [n for n in trainer.body if isinstance(n, ast.If) and any(isinstance(b, ast.Raise) for b in n.body)
          and ("batch_size" in ast.unparse(n.test) or "rollout.n " in ast.unparse(n.test))]
sizes = next(n for n in worker.body if isinstance(n, ast.FunctionDef)
             and "global_batch_size_per_device" in ast.unparse(n))
start = next(i for i, n in enumerate(sizes.body) if "self.config.rollout.n > 1" in ast.unparse(n))
checks_of_worker = sizes.body[start:]
program = compile(ast.Module(checks, []), "ray_trainer.py", "exec")
of_worker = compile(ast.Module(checks_of_worker, []), "fsdp_workers.py", "exec")
answers = []
for case in json.load(sys.stdin):
    data = SimpleNamespace(rollout_batch_size=case["data.rollout_batch_size"])
    fsdp = SimpleNamespace(enable_cpu_offload=case["worker.actor.fsdp.enable_cpu_offload"])
    actor = SimpleNamespace(
        global_batch_size=case["worker.actor.global_batch_size"], fsdp=fsdp,
        ulysses_size=case["worker.actor.ulysses_size"],
        micro_batch_size_per_device_for_update=case["worker.actor.micro_batch_size_per_device_for_update"],
        micro_batch_size_per_device_for_experience=case["worker.actor.micro_batch_size_per_device_for_experience"])
    rollout = SimpleNamespace(n=case["worker.rollout.n"])
    inside = SimpleNamespace(actor=actor, rollout=rollout)
    estimator = case["algorithm.adv_estimator"]
    config = SimpleNamespace(data=data, worker=inside, algorithm=SimpleNamespace(adv_estimator=estimator))
    kinds = SimpleNamespace(GRPO="grpo", RLOO="rloo", GAE="gae")
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            exec(program, {"config": config, "AdvantageEstimator": kinds, "self": MagicMock()})
            exec(of_worker, {"config": actor, "self": SimpleNamespace(config=inside, print_rank0=lambda *a: None),
                             "role": "actor", "world_size": case["trainer.n_gpus_per_node"]})
        answers.append("")
    except ValueError as error:
        answers.append(str(error))
print("\\n" + json.dumps(["0.3.2", answers]))
"""


NULL = "null"
_VERL = (
    "python3", "-m", "verl.trainer.main_ppo", "data.train_files=x",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1",
)  # fmt: skip


@dataclass(frozen=True)
class Framework:
    """A framework and the settings that are compared.

    Attributes:
        program: Program that runs in PYTHON: reads the combinations from stdin, prints the version and all refusals.
        settings: Values of each setting.
        rules: Names of the lint rules that are compared, besides the declared ones.
        command: Command line for lint, to which the settings are added.
    """

    program: str
    settings: dict[str, tuple[Any, ...]]
    rules: tuple[Any, ...]
    command: tuple[str, ...]

    def cases(self) -> list[dict[str, Any]]:
        """Return all combinations of the settings; a value None omits the setting, NULL sets it to null."""
        combined = (
            zip(self.settings, values, strict=True) for values in itertools.product(*self.settings.values())
        )
        return [{key: value for key, value in case if value is not None} for case in combined]


_V = "actor_rollout_ref."
FRAMEWORKS = {
    "trl": Framework(
        TRL_PROGRAM,
        {
            "per_device_train_batch_size": (1, 2, 3, 8),
            "gradient_accumulation_steps": (1, 2, 3),
            "num_generations": (1, 2, 3, 4, 8),
            "generation_batch_size": (None, 4, 6, 8, 12, 24),
            "steps_per_generation": (None, 1, 2),
        },
        ("generation_holds_whole_groups", "group_has_several_completions"),
        ("python", "grpo.py", "--use_vllm", "true"),
    ),
    "trl-options": Framework(
        TRL_PROGRAM,
        {
            "num_generations": (None, 1),
            "auto_find_batch_size": (False, True),
            "log_completions": (False, True),
            "log_completions_hub_repo": (None, "me/x"),
            "bf16": (False, True),
            "fp16": (False, True),
            "steps_per_generation": (None, 2),
            "generation_batch_size": (None, 16),
            "vllm_importance_sampling_clip_min": (None, 0.5),
            "do_eval": (False, True),
            "num_generations_eval": (None, 2, 3),
        },
        ("group_has_several_completions",),
        ("python", "grpo.py", "--use_vllm", "true"),
    ),
    "verl": Framework(
        VERL_PROGRAM,
        {
            "data.train_batch_size": (3, 8, 16, 64),
            _V + "actor.ppo_mini_batch_size": (1, 8, 32, 128),
            _V + "rollout.n": (1, 2, 5),
            "trainer.n_gpus_per_node": (4, 7, 8),
            "trainer.nnodes": (1, 2),
            _V + "actor.use_dynamic_bsz": (False, True),
        },
        (),
        (*_VERL, _V + "actor.ppo_micro_batch_size_per_gpu=1"),
    ),
    "verl-options": Framework(
        VERL_OPTIONS_PROGRAM,
        {
            "trainer.n_gpus_per_node": (8,),
            _V + "actor.use_dynamic_bsz": (False, True),
            _V + "actor.ppo_micro_batch_size": (NULL, 16),
            _V + "actor.ppo_micro_batch_size_per_gpu": (NULL, 2),
            _V + "rollout.log_prob_micro_batch_size": (NULL, 16),
            _V + "rollout.log_prob_micro_batch_size_per_gpu": (NULL, 2),
            _V + "ref.log_prob_micro_batch_size_per_gpu": (NULL, 2),
            _V + "actor.use_kl_loss": (False, True),
            _V + "actor.loss_agg_mode": ("token-mean", "token-sum", "mean"),
            _V + "rollout.temperature": (0, 1.0),
            _V + "rollout.val_kwargs.do_sample": (False, True),
        },
        (),
        _VERL,
    ),
    "ms-swift": Framework(
        SWIFT_PROGRAM,
        {
            "per_device_train_batch_size": (1, 2, 3, 8),
            "gradient_accumulation_steps": (1, 2, 3),
            "num_generations": (2, 3, 4, 8),
            "generation_batch_size": (None, 4, 6, 8, 24),
            "steps_per_generation": (None, 1, 2),
        },
        ("generation_holds_whole_groups",),
        ("NPROC_PER_NODE=1", "swift", "rlhf", "--rlhf_type", "grpo", "--reward_funcs", "format"),
    ),
    "openrlhf": Framework(
        OPENRLHF_PROGRAM,
        {
            "algo.advantage.estimator": ("reinforce",),
            "rollout.batch_size": (1, 8, 64),
            "rollout.n_samples_per_prompt": (1, 4),
            "rollout.micro_batch_size": (1, 4, 16),
            "actor.num_nodes": (1, 2),
            "actor.num_gpus_per_node": (4, 8),
            "ds.ring_attn_size": (1, 2),
            "vllm.num_engines": (2, 8),
            "vllm.tensor_parallel_size": (1, 4),
            "train.colocate_all": (False, True),
            "ref.num_gpus_per_node": (4, 8),
        },
        ("openrlhf_reference_matches_actor",),
        ("python3", "-m", "openrlhf.cli.train_ppo_ray"),
    ),
    "openrlhf-options": Framework(
        OPENRLHF_PROGRAM,
        {
            "algo.advantage.estimator": ("reinforce", "rloo", "group_norm", "dr_grpo"),
            "rollout.n_samples_per_prompt": (1, 4),
            "vllm.num_engines": (0, 8),
            "vllm.enable_sleep": (False, True),
            "train.colocate_all": (False, True),
            "train.async_enable": (False, True),
            "train.partial_rollout_enable": (False, True),
            "rollout.vllm_generate_batch_size": (None, 2048),
            "algo.dynamic_filtering_enable": (False, True),
            "reward.remote_url": (None, "http://localhost:5000"),
            "eval.dataset": (None, "data"),
            "ds.packing_samples": (False, True),
        },
        ("group_has_several_completions", "openrlhf_reference_matches_actor"),
        ("python3", "-m", "openrlhf.cli.train_ppo_ray"),
    ),
    "easyr1": Framework(
        EASYR1_PROGRAM,
        {
            "data.rollout_batch_size": (8, 32, 96),
            "worker.actor.global_batch_size": (4, 8, 32),
            "worker.rollout.n": (1, 2, 5),
            "worker.actor.micro_batch_size_per_device_for_update": (1, 2, 3),
            "worker.actor.micro_batch_size_per_device_for_experience": (4, 16),
            "worker.actor.ulysses_size": (1, 2),
            "worker.actor.fsdp.enable_cpu_offload": (False, True),
            "trainer.n_gpus_per_node": (4, 8, 64),
            "algorithm.adv_estimator": ("grpo", "reinforce_plus_plus"),
        },
        ("group_has_several_completions",),
        ("python3", "-m", "verl.trainer.main"),
    ),
}


def main() -> int:
    """Compare each environment with lint, and print the disagreements; return the exit code."""
    name, *pythons = sys.argv[1:]
    source = pythons.pop() if "--source" in pythons else ""
    pythons = [python for python in pythons if python != "--source"]
    framework = FRAMEWORKS[name]
    wrong = 0
    for python in pythons:
        done = subprocess.run(
            [python, "-c", framework.program, source],
            input=json.dumps(framework.cases()),
            capture_output=True,
            text=True,
            timeout=1800,
            check=False,
        )
        if done.returncode:
            print(f"{python}: {done.stderr.strip().splitlines()[-1]}")
            wrong += 1
            continue
        version, answers = json.loads(done.stdout.strip().splitlines()[-1])
        differences = disagreements(name, version, answers)
        for line in differences[:20]:
            print(line)
        wrong += len(differences)
        refused = sum(map(bool, answers))
        print(
            f"{name} {version}: {len(answers)} combinations, {refused} refused by it, {len(differences)} disagreements"
        )
    return 1 if wrong else 0


def disagreements(name: str, version: str, answers: list[str]) -> list[str]:
    """Return a line for each combination about which the framework and lint disagree."""
    differences = []
    for case, answer in zip(FRAMEWORKS[name].cases(), answers, strict=True):
        reported = lint_errors(name, case, version)
        if bool(reported) != bool(answer):
            differences.append(
                f"{case}: {name} says {answer or 'nothing'!r}, lint says {reported or 'nothing'}"
            )
    return differences


def lint_errors(name: str, case: dict[str, Any], version: str) -> list[str]:
    """Return the codes of lint's errors for a combination."""
    framework, lint_framework = FRAMEWORKS[name], name.removesuffix("-options")
    if lint_framework in {"verl", "easyr1"}:
        words = [f"{key}={_override_text(value)}" for key, value in case.items()]
    else:
        words = [word for key, value in case.items() for word in _flag(key, value)]
    [plan] = plans_of(
        read_command_line([*framework.command, *words]), Versions({lint_framework: Version(version)})
    )
    names = {
        "guards_of_the_release_pass",
        *framework.rules,
        *(declared.name for declared in DECLARED if lint_framework in declared.frameworks),
    }
    rules = [rule for rule in registered_rules() if rule.name in names]
    findings = [finding for rule in rules for finding in check_rule(rule, plan)]
    return [finding.code for finding in findings if finding.severity >= Severity.ERROR]


def _override_text(value: Any) -> str:
    return "null" if value is None or value == NULL else str(value)


def _flag(key: str, value: Any) -> list[str]:
    if value is False:
        return []
    return [f"--{key}"] if value is True else [f"--{key}", str(value)]


if __name__ == "__main__":
    sys.exit(main())
