"""A project's own copy of verl: its config is composed as Hydra does, with the files that a command chooses."""

import json

import pytest

from diagnostics.lint import judge, reading, versions
from diagnostics.lint.sources import hydra
from tests.diagnostics.lint_helpers import codes

CONFIG = {
    "ppo_trainer.yaml": (
        "defaults:\n  - engine: dp\n  - actor@worker.actor: ${engine}_actor\n  - _self_\n"
        "trainer:\n  nnodes: 1\n  val_only: false\n  resume: null\n  must: ???\n  same: ${trainer.nnodes}\n"
        "  many: [a]\n"
    ),
    "engine/dp.yaml": "# @package _global_\nengine: dp\n",
    "engine/other.yaml": "# @package _global_\nengine: other\n",
    "actor/actor.yaml": "lr: 1\n",
    "actor/dp_actor.yaml": "defaults:\n  - ../optim@optim: dp\n  - actor\n  - _self_\nfsdp: 1\n",
    "actor/other_actor.yaml": "defaults:\n  - actor\n  - _self_\nother: 1\n",
    "optim/dp.yaml": "betas: 1\n",
}
TABLES = {"worker", "worker.actor", "trainer"}
BOTH = {
    "engine", "worker.actor.lr", "trainer.nnodes", "trainer.val_only", "trainer.resume", "trainer.must", "trainer.same",
    "trainer.many",
}  # fmt: skip
RUN = "python3 -m verl.trainer.main_ppo trainer.nnodes=1 "


@pytest.fixture
def copy(tmp_path):
    config = tmp_path / "verl" / "trainer" / "config"
    for name, text in CONFIG.items():
        path = config / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    main = "@hydra.main(config_path='config', config_name='ppo_trainer', version_base=None)\ndef main(config): ...\n"
    (tmp_path / "verl" / "trainer" / "main_ppo.py").write_text(main)
    return tmp_path


def said(folder, command):
    (folder / "run.sh").write_text(command + "\n")
    report = judge.lint([folder / "run.sh"], versions.collect({}, installed=False))
    return {
        f.code: " ".join(e.text for e in f.evidence) for f in report.findings if f.severity.word == "error"
    }


def test_a_config_is_composed_out_of_the_files_of_its_groups(copy):
    """What a file of a group names is looked for beside it; what says that it is global has no package."""
    config = copy / "verl" / "trainer" / "config"
    dp = {"worker.actor.fsdp", "worker.actor.optim.betas", "worker.actor.optim"}
    assert hydra.keys(config, "ppo_trainer") == BOTH | TABLES | dp
    assert set(hydra.values(config, "ppo_trainer", {"engine": "other"})) == BOTH | TABLES | {
        "worker.actor.other"
    }
    assert hydra.groups(config, "ppo_trainer") == {"engine", "actor@worker.actor"}


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ("worker.actor.fsdp=2", {}),
        ("worker.actor.other=2", {"CFG113": "worker.actor.other = 2"}),
        ("engine=other worker.actor.other=2", {}),
        ("engine=other worker.actor.fsdp=2", {"CFG113": "worker.actor.fsdp = 2"}),
        ("actor@worker.actor=other_actor worker.actor.other=2", {}),
        ("nowhere@worker.actor=other_actor worker.actor.other=2", {}),
        ("+trainer.val_only=true", {"CFG121": "trainer.val_only = true"}),
        ("+trainer.many=b", {"CFG121": "trainer.many = b"}),
        ("++trainer.val_only=true +trainer.mine=1 trainer.val_only=true", {}),
        ("+trainer.resume=auto +trainer.must=1 +trainer.same=2 +trainer.nnodes=[1]", {}),
    ],
)
def test_what_its_hydra_takes_and_refuses(copy, overrides, expected):
    """A key of the chosen part is taken, one of another is not; + only where nothing but null is there."""
    assert said(copy, RUN + overrides) == expected


@pytest.mark.parametrize(
    "trainer", ["verl.trainer.main worker.rollout.n=8", "verl.trainer.main_ppo actor_rollout_ref.rollout.n=8"]
)
def test_easyr1_gives_its_workers_no_expandable_segments(trainer):
    """Whatever the shell exports; verl hands the variable on."""
    found = codes(
        f"export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\npython3 -m {trainer}", vllm="0.10.2"
    )
    assert ("error CFG112" in found) == ("main_ppo" in trainer)


def test_a_trainer_of_somebodys_own_is_not_judged_as_trls(tmp_path):
    """By a script's name alone it would be: most of its options are in no release of TRL."""
    mine = "python x/grpo_fast.py --per_device_train_batch_size 1 "
    theirs = "--local_rollout_batch 4 --actor_gpus 8 --stop_words a --episodes 9"
    for options, expected in (("--use_vllm true --num_generations 8", 1), (theirs, 0)):
        (tmp_path / "run.sh").write_text(mine + options + "\n")
        report = judge.lint([tmp_path / "run.sh"], versions.collect({}, installed=False))
        assert len(report.subject["files"][0]["plans"]) == expected


def test_a_command_of_the_shell_may_be_all_that_a_cells_block_has():
    """What stands for it is Python, so that the cells after it are read."""
    cell = [
        "if 1:\n",
        "    !pip install x\n",
        "from trl import GRPOConfig\n",
        "GRPOConfig(num_generations=8)\n",
    ]
    text = json.dumps({"cells": [{"cell_type": "code", "source": cell}]}, indent=1)
    assert [
        made.items["num_generations"].data for made in reading.read_text(text, "a.ipynb", "", "notebook")
    ] == [8]


@pytest.mark.parametrize(
    ("trl", "file", "expected"),
    [
        ("0.18.0", "use_vllm: true\nvllm_device: auto\nnum_generations: 8\n", "warning CFG113"),
        ("0.19.0", "use_vllm: true\nvllm_device: auto\nnum_generations: 8\n", "error CFG113"),
        ("0.18.0", "trl grpo --use_vllm true --vllm_device auto --num_generations 8", "error CFG113"),
    ],
)
def test_trl_before_0_19_passes_over_unknown_keys_of_a_file(tmp_path, trl, file, expected):
    """Its parser was run with both, in 0.15.1, 0.16.1 and 0.19.1; an option of the command it refuses in each."""
    path = tmp_path / ("run.sh" if file.startswith("trl ") else "run.yaml")
    path.write_text(file)
    report = judge.lint([path], versions.collect({"trl": trl}, installed=False))
    assert expected in {f"{f.severity.word} {f.code}" for f in report.findings}


def test_an_option_that_a_script_does_not_declare_is_not_judged(tmp_path):
    """Of a script that was read, whose parser takes GRPOConfig's."""
    (tmp_path / "train.py").write_text(
        "from dataclasses import dataclass\nfrom trl import GRPOConfig, GRPOTrainer, TrlParser\n"
        "@dataclass\nclass Mine:\n    mine: int = 1\nTrlParser((Mine, GRPOConfig)).parse_args_and_config()\n"
    )
    (tmp_path / "run.sh").write_text("python train.py --mine 2 --eos_tokem x --num_generations 8\n")
    report = judge.lint([tmp_path / "run.sh"], versions.collect({}, installed=False))
    told = {each.what for check in report.checks for each in check.not_judged}
    assert "eos_tokem" in told
    assert "mine" not in told


def test_what_was_composed_beforehand_counts_only_where_its_parts_are_not_there(copy):
    """Somebody added a key to a part and made no new one of it: Hydra reads the parts."""
    config = copy / "verl" / "trainer" / "config"
    (config / "_generated_ppo_trainer.yaml").write_text("trainer:\n  nnodes: 1\n")
    assert "CFG113" not in said(copy, RUN + "trainer.val_only=true")
    (config / "engine" / "dp.yaml").unlink()
    assert set(hydra.values(config, "ppo_trainer")) == {"trainer", "trainer.nnodes"}


def test_a_changed_copy_may_allow_what_releases_refuse(tmp_path):
    """An option that no release has tells that it was changed; one that has none of its own is judged as a release."""
    part = tmp_path / "trl" / "trainer" / "grpo_trainer.py"
    part.parent.mkdir(parents=True)
    part.write_text("class GRPOTrainer: ...\n")
    run = tmp_path / "run.yaml"
    body = "model_name_or_path: a\nuse_vllm: true\nnum_generations: 1\nmax_completion_length: 8\n"
    told = {}
    for name, more in (("plain", ""), ("changed", "codes_of_mine: 1\n")):
        run.write_text(body + more)
        report = judge.lint([run], versions.collect({}, installed=False))
        told[name] = {each.code: each.severity.word for each in report.findings}
    assert told["plain"]["CFG110"] == "error"
    assert told["changed"]["CFG110"] == "warning"
