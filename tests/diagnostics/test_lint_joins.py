"""What belongs to one run and stands in several places: joined, or said to be unread."""

import json

import pytest

from diagnostics.lint import judge, reading, versions
from diagnostics.output.findings import INCOMPLETE, Severity

YAML = (
    "num_generations: 8\nper_device_train_batch_size: 3\ngradient_accumulation_steps: 1\nuse_vllm: true\n"
    "vllm_mode: colocate\n"
)
PARSES = "from trl import GRPOConfig, GRPOTrainer, TrlParser\nparser = TrlParser((GRPOConfig,))\n"
HANDS_ON = (
    "import argparse\nfrom trl import GRPOConfig, GRPOTrainer\np = argparse.ArgumentParser()\n"
    "p.add_argument('--group', type=int, default=8)\np.add_argument('--bs', type=int, default=8)\n"
    "a = p.parse_args()\ncfg = GRPOConfig(output_dir='x', num_generations=a.group, per_device_train_batch_size=a.bs,\n"
    "  gradient_accumulation_steps=1)\n"
)
FILES = {"c.yaml": YAML, "hf.py": PARSES, "own.py": HANDS_ON, "env.sh": "export NPROC_PER_NODE=4\n"}
SWIFT = "swift rlhf --rlhf_type grpo --reward_funcs format --use_vllm true --vllm_mode colocate --num_generations 8 "
SIZES = "--per_device_train_batch_size 3 --gradient_accumulation_steps 1"
WORDS = (SWIFT + SIZES).split()


@pytest.fixture
def lint(tmp_path):
    """Lints a file with a text, beside the others of its project."""

    def lint(text, name="run.sh", **known):
        for other, content in FILES.items():
            (tmp_path / other).write_text(content)
        (tmp_path / name).write_text(text)
        return judge.lint([tmp_path / name], versions.collect(known, installed=False))

    return lint


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("run.sh", "accelerate launch --num_processes 4 hf.py --config c.yaml"),
        ("run.sh", "python -m accelerate.commands.launch --num_processes 4 hf.py --config c.yaml"),
        ("run.sh", "python -m torch.distributed.run --nproc_per_node 4 hf.py --config c.yaml"),
        ("run.sh", "deepspeed --num_gpus 4 hf.py --config c.yaml"),
        ("run.sh", "srun -n 4 python hf.py --config c.yaml"),
        ("run.sh", "mpirun -np 4 python hf.py --config c.yaml"),
        ("run.sh", f"source env.sh\n{SWIFT}{SIZES}"),
        ("Dockerfile", f'FROM x\nENV NPROC_PER_NODE=4\nCMD ["bash", "-c", "{SWIFT}{SIZES}"]'),
        ("Dockerfile", f"ENV NPROC_PER_NODE 4\nENTRYPOINT {json.dumps(WORDS[:8])}\nCMD {json.dumps(WORDS[8:])}"),
        # Docker drops comments and empty lines within an instruction.
        ("Dockerfile", f"ENV NPROC_PER_NODE=4\nRUN {SWIFT}\\\n  # sizes\n\n  {SIZES}"),
        ("job.yaml", f"containers:\n- command: [swift, rlhf]\n  args: {json.dumps(WORDS[2:])}\n"
         "  env:\n  - name: NPROC_PER_NODE\n    value: '4'\n"),
        ("a.ipynb", '{"cells": [{"cell_type": "code", "source": ["!accelerate launch --num_processes 4 hf.py '
         '--config c.yaml"]}]}'),
    ],
)  # fmt: skip
def test_a_fault_that_takes_two_files_to_see_is_found(lint, name, text):
    """A group of 8 over 3 x 4 completions, wherever the two stand."""
    found = lint(text, name, trl="1.9.0").findings
    assert [f.severity for f in found if f.code == "CFG101"] == [Severity.ERROR]


def test_a_default_of_the_users_own_parser_is_no_certain_failure(lint):
    """Somebody may call it with another one."""
    report = lint("accelerate launch --num_processes 3 own.py --bs 3", trl="1.9.0")
    [found] = [f for f in report.findings if f.code == "CFG101"]
    assert found.severity is Severity.WARNING


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("accelerate launch --num_processes 4 gone.py --num_generations 8", "gone.py"),
        ("accelerate launch --num_processes 4 hf.py --config gone.yaml --num_generations 8", "gone.yaml"),
        ("accelerate launch --config_file gone.yaml hf.py --num_generations 8", "gone.yaml"),
        (f"source gone.sh\nNPROC_PER_NODE=8 {SWIFT}", "gone.sh"),
        (
            "python -m verl.trainer.main_ppo --config-path=gone --config-name=mine data.train_batch_size=8",
            "mine.yaml",
        ),
    ],
)
def test_a_file_that_is_named_and_not_here_is_said(lint, text, what):
    """By its name and the line that names it; and nothing passes as fine."""
    report = lint(text, trl="1.9.0", **{"ms-swift": "3.7.0", "verl": "0.6.1"})
    assert what in {each.what for check in report.checks for each in check.not_judged}
    assert report.exit_code(Severity.ERROR) == INCOMPLETE


def test_the_project_says_the_release(tmp_path):
    """A pin in its requirements counts before what is installed, an option before both; a copy is said."""
    (tmp_path / "requirements.txt").write_text("trl[vllm]==0.17.0\n# vllm==0.1\nverl>=0.4\n")
    (tmp_path / "run.sh").write_text("trl grpo --use_vllm true --vllm_mode colocate --num_generations 8\n")
    known = versions.collect({}, installed=False)
    report = judge.lint([tmp_path / "run.sh"], known)
    assert report.subject["packages"] == {"trl": "0.17.0"}
    assert "CFG113" in {finding.code for finding in report.findings}
    assert (
        judge.lint([tmp_path / "run.sh"], versions.collect({"trl": "1.9.0"}, installed=False)).findings == []
    )


def test_a_copy_is_asked_by_its_own_config(tmp_path):
    """Not by the release it calls itself; without its config nobody can say."""
    config = tmp_path / "verl/trainer/config"
    config.mkdir(parents=True)
    (tmp_path / "verl/trainer/main_ppo.py").write_text(
        '@hydra.main(config_path="config", config_name="ppo_trainer")\n'
    )
    (tmp_path / "run.sh").write_text(
        "python3 -m verl.trainer.main_ppo data.train_batch_size=64 trainer.mine=1 trainer.nnodes=1\n"
    )
    known = versions.collect({}, installed=False)
    silent = judge.lint([tmp_path / "run.sh"], known)
    assert silent.exit_code(Severity.ERROR) == INCOMPLETE
    (config / "ppo_trainer.yaml").write_text("data:\n  train_batch_size: 1\ntrainer:\n  nnodes: 1\n")
    from diagnostics.lint import known as names

    names.composed_copy.cache_clear()
    [found] = [f for f in judge.lint([tmp_path / "run.sh"], known).findings if f.code == "CFG113"]
    assert found.severity is Severity.ERROR
    assert "trainer.mine" in found.detail


def test_hydras_files_are_read(tmp_path):
    """`--config-path`, `--config-name`, and a list of defaults; what the command says counts first."""
    (tmp_path / "conf/actor").mkdir(parents=True)
    (tmp_path / "conf/mine.yaml").write_text(
        "defaults:\n- actor@actor_rollout_ref.actor: a\ndata: {train_batch_size: 64}\n"
    )
    (tmp_path / "conf/actor/a.yaml").write_text("ppo_mini_batch_size: 128\n")
    text = "python3 -m verl.trainer.main_ppo --config-path=$PWD/conf --config-name=mine data.train_batch_size=32\n"
    [made] = reading.read_text(text, str(tmp_path / "run.sh"))
    assert made.items["data.train_batch_size"].data == 32
    assert made.items["actor_rollout_ref.actor.ppo_mini_batch_size"].data == 128


def test_a_folder_and_standard_input(lint, tmp_path, monkeypatch):
    """All runs below a folder; `-` is read like a script."""
    import io
    import sys
    from pathlib import Path

    lint("accelerate launch --num_processes 4 hf.py --config c.yaml")
    found = judge.lint([tmp_path], versions.collect({"trl": "1.9.0"}, installed=False))
    assert {Path(each["file"]).name for each in found.subject["files"]} == {"run.sh", "c.yaml", "own.py"}
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"trl grpo --num_generations 1\n")))
    report = judge.lint([Path("-")], versions.collect({"trl": "1.9.0"}, installed=False))
    assert "CFG110" in {finding.code for finding in report.findings}


def test_a_server_beside_an_engine_of_the_runs_own(lint):
    """vllm_mode colocate with a server's address: one of the two is not meant."""
    command = "trl grpo --use_vllm true --vllm_mode colocate --vllm_server_host 10.0.0.1 --num_generations 8"
    assert "CFG901" in {finding.code for finding in lint(command, trl="1.9.0").findings}
    assert "CFG901" not in {f.code for f in lint(command.replace("colocate", "server"), trl="1.9.0").findings}
