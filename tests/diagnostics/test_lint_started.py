"""Runs that something else starts: make, just, Python; and where a script's values come from."""

import pytest

from diagnostics import __main__ as command
from diagnostics.lint import judge, reading, versions


def items(text, name):
    from pathlib import Path

    (made,) = reading.read_text(text, name, syntax=reading.syntax_of(Path(name), text))
    return {key: (value.data if value.known else None, value.soft) for key, value in made.items.items()}


def test_a_makefile_hands_its_variables_to_its_recipes():
    text = (
        "GROUP ?= 6\nBATCH := 4\nNOW := $(shell date)\n\n.PHONY: train\ntrain: data\n"
        "\t@accelerate launch --num_processes 1 trl grpo --num_generations $(GROUP) \\\n"
        "\t  --per_device_train_batch_size $(BATCH) --run_name $(NOW) --seed $$SEED\n"
    )
    found = items(text.replace("accelerate launch --num_processes 1 ", ""), "Makefile")

    assert found["num_generations"] == (6, True)
    assert found["per_device_train_batch_size"] == (4, False)
    assert found["run_name"][0] is None
    assert found["seed"][0] is None


def test_a_justfile_too():
    text = 'batch := "4"\nwhen := `date`\n\ntrain group="6":\n    trl grpo --num_generations {{group}} \\\n'
    text += "      --per_device_train_batch_size {{ batch }} --run_name {{when}}\n"
    found = items(text, "justfile")

    assert found["num_generations"] == (6, True)
    assert found["per_device_train_batch_size"] == (4, False)
    assert found["run_name"][0] is None


def test_a_list_with_a_name_is_the_command_that_python_starts():
    text = (
        "import subprocess, sys\n"
        "def main(args):\n"
        "    cmd = ['trl', 'grpo', '--num_generations', '6', '--run_name', f'{args.name}-x']\n"
        "    if args.more:\n        cmd += ['--seed', '1']\n"
        "    subprocess.run(cmd, check=True)\n"
    )
    (made,) = reading.read_text(text, "launch.py", syntax="python")

    assert made.items["num_generations"].data == 6
    assert not made.items["run_name"].known
    assert made.open  # what the branch adds may be anything


def test_a_list_that_is_made_twice_is_not_read():
    text = (
        "import subprocess\ncmd = ['trl', 'grpo', '--seed', '1']\ncmd = ['trl', 'sft']\nsubprocess.run(cmd)\n"
    )
    assert reading.read_text(text, "launch.py", syntax="python") == []


def test_a_script_of_another_machine_is_the_one_of_its_name_in_the_project(tmp_path):
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "src" / "own").mkdir(parents=True)
    (tmp_path / "runs").mkdir()
    code = "from trl import GRPOConfig, GRPOTrainer\nconfig = GRPOConfig(num_generations=6)\n"
    (tmp_path / "src" / "own" / "train.py").write_text(code)
    run = tmp_path / "runs" / "go.sh"
    run.write_text("python /home/me/checkout/own/train.py\n")
    (made,) = reading.read_file(run)
    assert made.items["num_generations"].data == 6

    (tmp_path / "old" / "own").mkdir(parents=True)
    (tmp_path / "old" / "own" / "train.py").write_text(code)
    from diagnostics.lint import nearby

    nearby._files.cache_clear()
    assert reading.read_file(run) == []  # two: which of them nobody knows


def test_a_script_without_values_says_what_starts_it(tmp_path):
    (tmp_path / "setup.py").touch()
    (tmp_path / "train.py").write_text("from trl import GRPOTrainer, TrlParser\n")
    (tmp_path / "go.sh").write_text("accelerate launch train.py --num_generations 8\n")
    (tmp_path / "other.sh").write_text("python my_train.py\n")
    report = judge.lint([tmp_path / "train.py"], versions.collect({}, installed=False))
    (check,) = [each for each in report.checks if each.reads]

    assert check.reason.endswith("lint what starts it: go.sh")


def test_options_lost_to_a_script_that_is_fetched_later_are_named(tmp_path):
    run = tmp_path / "job.sh"
    run.write_text(
        "git clone https://example.org/x && cd x\naccelerate launch --num_processes 8 src/x/grpo.py \\\n"
        "  --config recipes/a.yaml \\\n  --hub_model_id me/x\n  --wandb_project p \\\n  --use_vllm false\n"
    )
    report = judge.lint([run], versions.collect({}, installed=False))

    assert "CFG114" in {finding.code for finding in report.findings}
    assert any(gap.what == "src/x/grpo.py" for check in report.checks for gap in check.not_judged)


def test_options_of_a_config_that_is_imported_from_the_projects_root_are_the_scripts_own(tmp_path):
    (tmp_path / "src" / "scripts").mkdir(parents=True)
    (tmp_path / "src" / "trainer").mkdir()
    (tmp_path / "src" / "trainer" / "__init__.py").write_text("from .own import Own\n")
    (tmp_path / "src" / "trainer" / "own.py").write_text("class Own(GRPOConfig):\n    own_size: int = 2\n")
    (tmp_path / "src" / "scripts" / "train.py").write_text(
        "from trl import GRPOTrainer, TrlParser\nfrom src.trainer import Own\nparser = TrlParser((Own,))\n"
    )
    run = tmp_path / "go.sh"
    run.write_text(
        "accelerate launch --num_processes 8 src/scripts/train.py --num_generations 8 --own_size 3\n"
    )
    (made,) = reading.read_file(run)

    assert "own_size" in made.own


def test_the_screen_says_why_nothing_was_judged(tmp_path, capsys):
    (tmp_path / "setup.py").touch()
    (tmp_path / "go.sh").write_text("python train.py\n")
    (tmp_path / "train.py").write_text("from trl import GRPOTrainer\n")
    (tmp_path / "empty.sh").touch()

    assert command.main(["lint", str(tmp_path / "train.py")]) == 3
    assert "lint what starts it: go.sh" in " ".join(capsys.readouterr().out.split())
    assert command.main(["lint", str(tmp_path / "empty.sh")]) == 3
    assert "it is empty" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (
            "export NNODES=2\nexport MASTER_ADDR=127.0.0.1\nexport NPROC_PER_NODE=4\nswift rlhf --rlhf_type grpo\n",
            True,
        ),
        ("NNODES=1 MASTER_ADDR=127.0.0.1 NPROC_PER_NODE=4 swift rlhf --rlhf_type grpo\n", False),
        ("NNODES=2 MASTER_ADDR=10.0.0.1 NPROC_PER_NODE=4 swift rlhf --rlhf_type grpo\n", False),
        ("NNODES=2 MASTER_ADDR=${MASTER_ADDR:-127.0.0.1} swift rlhf --rlhf_type grpo\n", False),
        ("torchrun --nnodes 2 --nproc_per_node 8 --master_addr localhost g.py --num_generations 8\n", True),
        (
            "export MASTER_ADDR=127.0.0.1\ntorchrun --nnodes 2 --nproc_per_node 8 --rdzv-backend c10d "
            "--rdzv-endpoint 10.0.0.1:29500 g.py --num_generations 8\n",
            False,
        ),
    ],
)
def test_nodes_that_look_for_the_first_on_themselves_are_warned_of(text, named, tmp_path):
    run = tmp_path / "run.sh"
    run.write_text(text)
    report = judge.lint([run], versions.collect({}, installed=False))

    assert ("HNG015" in {finding.code for finding in report.findings}) == named
