"""Lint's rules on batches against the frameworks themselves: what they refuse, and nothing else.

    python tests/diagnostics/programs/lint_against.py trl PYTHON...
    python tests/diagnostics/programs/lint_against.py verl PYTHON...

PYTHON is the interpreter of an environment with that framework: TRL 0.18 or newer, where GRPOConfig checks sizes
itself, or verl with `validate_config`. Every combination of the sizes below is given to it there, in one process, and
to lint here; each disagreement is printed. Exit code 1 if there is any.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from packaging.version import Version

from diagnostics.checks.plan import batches
from diagnostics.findings import Severity
from diagnostics.lint import judge, reading
from diagnostics.lint.versions import Versions

ASK_TRL = """
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
ASK_VERL = """
import contextlib, io, json, os, sys, warnings
warnings.simplefilter("ignore")
import verl
from omegaconf import OmegaConf
from verl.utils.config import validate_config
base = OmegaConf.load(os.path.join(os.path.dirname(verl.__file__), "trainer/config/_generated_ppo_trainer.yaml"))
base.actor_rollout_ref.rollout.name = "vllm"
base.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu = 1
base.actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu = 1
answers = []
for case in json.load(sys.stdin):
    for key, value in case.items():
        OmegaConf.update(base, key, value)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            validate_config(base, use_reference_policy=False, use_critic=False)
        answers.append("")
    except (ValueError, AssertionError) as error:
        answers.append(str(error))
print("\\n" + json.dumps([verl.__version__, answers]))
"""


@dataclass(frozen=True)
class Peer:
    """A framework: how it is asked, which sizes, and how a case is written for lint."""

    ask: str
    sizes: dict[str, tuple[Any, ...]]
    rules: tuple[Any, ...]

    def cases(self) -> list[dict[str, Any]]:
        """Every combination; a size that is None is not set."""
        combined = (
            zip(self.sizes, values, strict=True) for values in itertools.product(*self.sizes.values())
        )
        return [{key: value for key, value in case if value is not None} for case in combined]


PEERS = {
    "trl": Peer(
        ASK_TRL,
        {
            "per_device_train_batch_size": (1, 2, 3, 8),
            "gradient_accumulation_steps": (1, 2, 3),
            "num_generations": (1, 2, 3, 4, 8),
            "generation_batch_size": (None, 4, 6, 8, 12, 24),
            "steps_per_generation": (None, 1, 2),
        },
        (batches.whole_groups, batches.whole_steps, batches.group_of_one),
    ),
    "verl": Peer(
        ASK_VERL,
        {
            "data.train_batch_size": (3, 8, 16, 64),
            "actor_rollout_ref.actor.ppo_mini_batch_size": (1, 8, 32, 128),
            "actor_rollout_ref.rollout.n": (1, 2, 5),
            "trainer.n_gpus_per_node": (4, 7, 8),
            "trainer.nnodes": (1, 2),
            "actor_rollout_ref.actor.use_dynamic_bsz": (False, True),
        },
        (batches.verl_batches,),
    ),
}


def main() -> int:
    """Compares lint with each environment's framework; returns the exit code."""
    name, *pythons = sys.argv[1:]
    peer, wrong = PEERS[name], 0
    for python in pythons:
        done = subprocess.run(
            [python, "-c", peer.ask], input=json.dumps(peer.cases()), capture_output=True, text=True, timeout=900,
            check=False,
        )  # fmt: skip
        if done.returncode:
            print(f"{python}: {done.stderr.strip().splitlines()[-1]}")
            wrong += 1
            continue
        version, answers = json.loads(done.stdout.strip().splitlines()[-1])
        found = disagreements(name, version, answers)
        for line in found:
            print(line)
        wrong += len(found)
        refused = sum(map(bool, answers))
        print(
            f"{name} {version}: {len(answers)} combinations, {refused} refused by it, {len(found)} disagreements"
        )
    return 1 if wrong else 0


def disagreements(name: str, version: str, answers: list[str]) -> list[str]:
    """The cases in which a framework and lint do not say the same."""
    found = []
    for case, answer in zip(PEERS[name].cases(), answers, strict=True):
        said = errors(name, case, version)
        if bool(said) != bool(answer):
            found.append(f"{case}: {name} says {answer or 'nothing'!r}, lint says {said or 'nothing'}")
    return found


def errors(name: str, case: dict[str, Any], version: str) -> list[str]:
    """What lint finds at error in a case, for one process."""
    if name == "trl":
        words = [word for key, value in case.items() for word in (f"--{key}", str(value))]
        found = reading.read_command(["python", "grpo.py", "--use_vllm", "true", *words])
    else:
        words = [f"{key}={value}" for key, value in case.items()]
        found = reading.read_command(["python3", "-m", "verl.trainer.main_ppo", "data.train_files=x", *words])
    versions = Versions({name: Version(version)})
    [plan] = judge.plans_of(found, versions)
    findings = [finding for rule in PEERS[name].rules for finding in rule(plan, versions)]
    return [finding.code for finding in findings if finding.severity >= Severity.ERROR]


if __name__ == "__main__":
    sys.exit(main())
