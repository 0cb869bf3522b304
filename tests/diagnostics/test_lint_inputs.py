"""`lint` turns scripts, configs, notebooks and folders into run plans, and follows the files that they name.

A run plan has the settings of one training or server. The config of a copied verl replaces those of known releases, and
a modified copy of TRL turns errors into warnings. Files outside of the project are not read. Hostile files take bounded
time and memory. Values of secrets are masked.
"""

import contextlib
import io
import json
import re
import sys
from pathlib import Path

import pytest

from diagnostics.findings import INCOMPLETE, Severity
from diagnostics.lint import project_requirements
from diagnostics.lint.readers import hydra
from diagnostics.lint.readers.structured import UnreadableError
from diagnostics.lint.settings_reader import read_file, read_text
from diagnostics.lint.versions import collect_versions, installed_version
from tests.case_files import each_case, read_cases
from tests.diagnostics.lint_reports import codes, findings, lint, plans
from tests.limits import cpu_and_memory_limits

CASES = read_cases(__file__, "lint_runs.yaml")
INPUT_FORMS = read_cases(__file__, "lint_forms.yaml")


@each_case(CASES["frameworks"])
def test_framework_is_recognised(text, syntax, framework):
    """Keys and commands identify the framework; other keys, programs and calls give no run plan."""
    assert [plan.framework for plan in plans(text, syntax)] == ([framework] if framework else [])


@pytest.mark.parametrize("form", INPUT_FORMS["found"], ids=lambda form: form["name"])
def test_fault_is_reported_on_its_line(form):
    reported = findings(form["text"], form["syntax"], **form.get("releases", {}))
    matching = [item for item in reported if f"{item.severity.word} {item.code}" == form["finds"]]
    assert f"run:{form['line']}" in {item.place for item in matching for item in item.evidence}


@pytest.mark.parametrize("form", INPUT_FORMS["accepted"], ids=lambda form: form["name"])
def test_accepted_form_gives_no_error(form):
    """Values that a branch, variable, argument or reference decides cause no error, nor does text about a command."""
    reported = codes(form["text"], form["syntax"], trl="1.9.0", verl="0.9.0", ms_swift="4.0.0")
    assert not any(item.startswith("error") for item in reported)


def test_forwarded_arguments_do_not_weaken_explicit_options():
    """Forwarded arguments (`"$@"`) hide no fault of explicit options, except in a wrapper without a model."""
    sizes = "data.train_batch_size=64 actor_rollout_ref.actor.ppo_mini_batch_size=256 "
    complete = "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=M " + sizes
    assert {"error CFG102", "error CFG111"} <= codes(complete + '"$@"', verl="0.7.1")
    assert codes(complete + '"$@"', verl="0.7.1") == codes(complete, verl="0.7.1")
    wrapper = "python3 -m verl.trainer.main_ppo " + sizes
    assert "error CFG111" not in codes(wrapper + '"$@"', verl="0.7.1")
    [plan] = plans(wrapper + '"$@"')
    assert plan.values["group.size"].outside
    assert "error CFG110" in codes('swift rlhf --rlhf_type grpo --num_generations 1 "$@"')
    assert "error CFG104" in codes('CUDA_VISIBLE_DEVICES=0,1 vllm serve M --tensor-parallel-size 4 "$@"')


@each_case(CASES["nested_options"])
def test_nested_json_options_and_negated_flags_are_read(text, syntax, name, expected):
    assert plans(text, syntax)[0].get(name) == expected


def test_files_named_together_are_one_run(tmp_path):
    """An accelerate config and a script that are named together are one run, with the script's DeepSpeed config.

    The accelerate config alone is no run.
    """
    (tmp_path / "accelerate.yaml").write_text("distributed_type: MULTI_GPU\nnum_processes: 4\n")
    (tmp_path / "ds.json").write_text('{"zero_optimization": {}, "gradient_accumulation_steps": 2}')
    (tmp_path / "train.py").write_text(
        "GRPOConfig(num_generations=8, per_device_train_batch_size=3, use_vllm=True, deepspeed='ds.json',\n"
        "    gradient_accumulation_steps=1)\n"
    )
    report = lint(tmp_path / "accelerate.yaml", tmp_path / "train.py", trl="1.9.0")
    details = {finding.code: finding.detail for finding in report.findings}
    assert details["CFG101"].startswith("One generation makes 12 completions")
    assert details["CFG102"].startswith("gradient_accumulation_steps is 2 in DeepSpeed's config and 1")
    alone = lint(tmp_path / "accelerate.yaml")
    assert [check.outcome for check in alone.checks if check.reads] == ["skipped"]


CONFIG_YAML = (
    "num_generations: 8\nper_device_train_batch_size: 3\ngradient_accumulation_steps: 1\nuse_vllm: true\n"
    "vllm_mode: colocate\n"
)
TRL_PARSER_SCRIPT = "from trl import GRPOConfig, GRPOTrainer, TrlParser\nparser = TrlParser((GRPOConfig,))\n"
ARGPARSE_SCRIPT = (
    "import argparse\nfrom trl import GRPOConfig, GRPOTrainer\np = argparse.ArgumentParser()\n"
    "p.add_argument('--group', type=int, default=8)\np.add_argument('--bs', type=int, default=8)\n"
    "a = p.parse_args()\ncfg = GRPOConfig(output_dir='x', num_generations=a.group, per_device_train_batch_size=a.bs,\n"
    "  gradient_accumulation_steps=1)\n"
)
PROJECT_FILES = {
    "c.yaml": CONFIG_YAML,
    "hf.py": TRL_PARSER_SCRIPT,
    "own.py": ARGPARSE_SCRIPT,
    "env.sh": "export NPROC_PER_NODE=4\n",
}


@pytest.fixture
def in_project(tmp_path):
    """Return a function that lints a file with this text next to PROJECT_FILES."""

    def run(text, name="run.sh", **known):
        for file, content in PROJECT_FILES.items():
            (tmp_path / file).write_text(content)
        (tmp_path / name).write_text(text)
        return lint(tmp_path / name, **known)

    return run


@each_case(CASES["two_files"])
def test_fault_across_two_files_is_found(in_project, name, text):
    """A batch of 3 x 4 completions with a group size of 8 is found, although two files define them."""
    reported = in_project(text, name, trl="1.9.0").findings
    assert [f.severity for f in reported if f.code == "CFG101"] == [Severity.ERROR]


def test_default_of_the_users_parser_gives_a_warning_only(in_project):
    report = in_project("accelerate launch --num_processes 3 own.py --bs 3", trl="1.9.0")
    assert [f.severity for f in report.findings if f.code == "CFG101"] == [Severity.WARNING]


@each_case(CASES["missing_files"])
def test_missing_file_makes_the_report_incomplete(in_project, text, name):
    report = in_project(text, trl="1.9.0", ms_swift="3.7.0", verl="0.6.1")
    assert name in {entry.what for check in report.checks for entry in check.not_judged}
    assert report.exit_code(Severity.ERROR) == INCOMPLETE


def test_release_is_read_from_the_projects_requirements(tmp_path):
    """A pin in requirements.txt gives the release, and an option of lint takes precedence over the pin.

    `installed_version` reads this environment, which `collect_versions` leaves out with `installed=False`.
    """
    (tmp_path / "requirements.txt").write_text("trl[vllm]==0.17.0\n# vllm==0.1\nverl>=0.4\n")
    script = tmp_path / "run.sh"
    script.write_text("trl grpo --use_vllm true --vllm_mode colocate --num_generations 8\n")
    report = lint(script)
    assert report.subject["packages"] == {"trl": "0.17.0"}
    assert "CFG113" in {finding.code for finding in report.findings}
    assert lint(script, trl="1.9.0").findings == []
    assert installed_version("pytest") is not None
    assert collect_versions({}, installed=False).known == {}


def test_release_is_read_from_the_tag_of_a_repository(tmp_path):
    """A tag gives the release, with or without a name; a commit or a comment gives none."""
    lines = [
        "slime @ git+https://host/THUDM/slime.git@v0.2.1",
        "git+https://host/volcengine/verl@v0.5.0#egg=verl",
    ]
    lines += ["skyrl-train @ git+https://host/S/SkyRL.git@skyrl_train-v0.3.0#subdirectory=skyrl-train"]
    lines += ["trl @ git+https://host/huggingface/trl@0c1f8e2", "# vllm @ git+https://host/v/vllm@v0.8.0"]
    (tmp_path / "requirements.txt").write_text("\n".join(lines))
    pins = project_requirements.read_project(tmp_path).pins
    assert {name: str(release) for name, (release, _) in pins.items()} == {
        "slime": "0.2.1",
        "verl": "0.5.0",
        "skyrl": "0.3.0",
    }


def test_requirements_outside_of_the_project_are_not_read(tmp_path, monkeypatch):
    """A link out of the project is not followed; a script outside of the working folder does not get its pins."""
    (tmp_path / "private.txt").write_text("trl==0.17.0\n")
    (tmp_path / "repo" / ".git").mkdir(parents=True)
    (tmp_path / "repo" / "requirements.txt").symlink_to(tmp_path / "private.txt")
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "requirements.txt").write_text("trl==0.17.0\n")
    for folder in (tmp_path, tmp_path / "repo"):
        (folder / "run.sh").write_text("trl grpo --num_generations 8\n")
    assert lint(tmp_path / "repo" / "run.sh").subject["packages"] == {}
    monkeypatch.chdir(tmp_path / "work")
    assert lint(Path("../run.sh")).subject["packages"] == {}


def test_hydra_config_files_are_read(tmp_path):
    """Hydra's files are found by `--config-path`, `--config-name` and the defaults list; `a=b` wins, `~a` removes."""
    (tmp_path / "conf/actor").mkdir(parents=True)
    (tmp_path / "conf/mine.yaml").write_text(
        "defaults:\n- actor@actor_rollout_ref.actor: a\ndata: {train_batch_size: 64, gone: {a: 1}}\n"
    )
    (tmp_path / "conf/actor/a.yaml").write_text("ppo_mini_batch_size: 128\n")
    options = "--config-path=$PWD/conf --config-name=mine data.train_batch_size=32 ~data.gone"
    text = f"python3 -m verl.trainer.main_ppo {options}\n"
    [settings] = read_text(text, str(tmp_path / "run.sh"))
    assert settings.options["data.train_batch_size"].data == 32
    assert not [key for key in settings.options if "gone" in key]
    assert settings.options["actor_rollout_ref.actor.ppo_mini_batch_size"].data == 128


def test_defaults_list_of_a_config_is_read(tmp_path):
    """A config without its command takes values of the files in its defaults list; a missing one is not checked."""
    text = (
        "defaults: [base, gone, own@actor_rollout_ref.actor, _self_]\nactor_rollout_ref: {rollout: {n: 8}}\n"
    )
    (tmp_path / "mine.yaml").write_text(text)
    (tmp_path / "base.yaml").write_text(
        "data: {train_batch_size: 64}\nactor_rollout_ref: {rollout: {n: 4}}\n"
    )
    (tmp_path / "own.yaml").write_text("ppo_mini_batch_size: 128\n")
    [settings] = read_text(text, str(tmp_path / "mine.yaml"), syntax="yaml")
    names = (
        "data.train_batch_size",
        "actor_rollout_ref.actor.ppo_mini_batch_size",
        "actor_rollout_ref.rollout.n",
    )
    assert [settings.options[name].data for name in names] == [64, 128, 8]
    assert [entry.what for entry in settings.not_checked] == ["gone.yaml"]


def test_folder_and_standard_input_are_linted(in_project, tmp_path, monkeypatch):
    """A file of a folder that another file starts is not linted twice, and `-` reads standard input as a script."""
    in_project("accelerate launch --num_processes 4 hf.py --config c.yaml")
    report = lint(tmp_path, trl="1.9.0")
    assert {Path(source["file"]).name for source in report.subject["files"]} == {"run.sh", "own.py"}
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"trl grpo --num_generations 1\n")))
    assert "CFG110" in {finding.code for finding in lint(Path("-"), trl="1.9.0").findings}


SERVER = "CUDA_VISIBLE_DEVICES={} swift rollout --model M --port 8000 {}&\n"
TRAINER = (
    "CUDA_VISIBLE_DEVICES={} NPROC_PER_NODE=2 swift rlhf --rlhf_type grpo --model M --reward_funcs a --use_vllm true "
    "--vllm_mode server --vllm_server_host {} --vllm_server_port 8000 --per_device_train_batch_size 4 "
    "--num_generations 8\n"
)


def shared_gpu_severities(*paths):
    """Return the severities of the findings that trainer and server share a GPU (CFG108)."""
    return [item.severity for item in lint(*paths, ms_swift="4.6.0").findings if item.code == "CFG108"]


@pytest.mark.parametrize(
    ("name", "text", "code"),
    [
        ("b.sh", "a@" * 20_000, 3), ("b.py", "GRPOConfig()#" + "a" * 400_000, 3),
        ("b.yaml", "a: " + "[" * 100 + "]" * 100, 3),
        ("b.json", "[" * 100 + "]" * 100, 0), ("b.yaml", "a: {{ b }}\n- c", 0), ("b.py", "print 1", 0),
    ],
    ids=["operators", "length", "depth", "deep JSON", "a template", "Python 2"],
)  # fmt: skip
def test_unreadable_file_of_a_folder_is_unchecked_if_it_may_be_a_run(tmp_path, run_command, name, text, code):
    """A file of another syntax than its name's, and deep JSON, are no runs; another unreadable file may be one."""
    (tmp_path / "a.sh").write_text("trl grpo --num_generations 8 --per_device_train_batch_size 8\n")
    (tmp_path / name).write_text(text)
    result = run_command("lint", tmp_path)
    assert (result.code, f"unread  reading {tmp_path / name}" in result.out) == (code, code == 3)


def test_folder_with_more_files_than_the_limit_is_incomplete(tmp_path, monkeypatch, run_command):
    monkeypatch.setattr("diagnostics.lint.project_files._MAX_LINTED", 1)
    for name in "ab":
        (tmp_path / f"{name}.sh").write_text("trl grpo --per_device_train_batch_size 8\n")
    result = run_command("lint", tmp_path)
    assert result.code == 3
    assert "more than 1 files; name a smaller folder" in result.out


@pytest.mark.parametrize(
    ("text", "mode"),
    [("#" * 500_000, 0o600), ("#" * 500_000, 0), ("x = (", 0o600), ("x = " + "(" * 300 + ")" * 300, 0o600)],
    ids=["length", "permission", "syntax", "depth"],
)
def test_unreadable_script_of_a_command_is_not_checked(tmp_path, run_command, text, mode):
    """For root, who reads each file, the file without permission is also too long."""
    (tmp_path / "train.py").write_text(text)
    (tmp_path / "train.py").chmod(mode)
    (tmp_path / "run.sh").write_text(
        "python train.py --num_generations 8 # trl\naccelerate launch train.py\n"
    )
    result = run_command("lint", "--framework", "trl", tmp_path / "run.sh")
    assert result.code == 3
    assert "so its options were not checked" in result.out


def test_trainer_and_server_are_paired_within_a_script(tmp_path):
    """A trainer is paired with the server of its own script, not with that of another script in the folder."""
    for name, server, trainer in (("a.sh", "2", "0,1"), ("b.sh", "0", "2,3")):
        (tmp_path / name).write_text(SERVER.format(server, "") + TRAINER.format(trainer, "127.0.0.1"))
    assert (
        shared_gpu_severities(tmp_path) == shared_gpu_severities(tmp_path / "a.sh", tmp_path / "b.sh") == []
    )
    (tmp_path / "b.sh").write_text(SERVER.format("2", "") + TRAINER.format("2,3", "127.0.0.1"))
    assert shared_gpu_severities(tmp_path) == [Severity.ERROR]


def test_trainer_and_server_in_two_files_are_paired_if_named_together(tmp_path):
    """In a folder, they are paired only by an explicit address."""
    serve, train = tmp_path / "serve.sh", tmp_path / "train.sh"
    serve.write_text(SERVER.format("0", "--vllm_max_model_len 128 "))
    train.write_text(TRAINER.format("0,1", "127.0.0.1"))
    assert shared_gpu_severities(tmp_path) == []
    assert shared_gpu_severities(serve, train) == [Severity.ERROR]
    # An explicit address pairs them across a folder.
    train.write_text(TRAINER.format("0,1", "10.0.0.7").rstrip() + " --max_completion_length 4096\n")
    for host, pairs in (("10.0.0.7", True), ("10.0.0.8", False)):
        serve.write_text(SERVER.format("0", f"--host {host} --vllm_max_model_len 128 "))
        reported = {finding.code for finding in lint(tmp_path, ms_swift="4.6.0").findings}
        assert ("CFG103" in reported) is pairs


def test_second_training_in_a_script_has_its_own_server(tmp_path):
    """Two trainings in sequence, with servers on the same port, are each compared with their own server."""
    phases = SERVER.format("0", "") + TRAINER.format("1,2", "127.0.0.1") + "kill %1\n"
    phases += SERVER.format("1", "") + TRAINER.format("2,3", "127.0.0.1")
    (tmp_path / "run.sh").write_text(phases)
    reported = {finding.code for finding in lint(tmp_path / "run.sh", ms_swift="4.6.0").findings}
    assert not reported & {"CFG108", "CFG109"}


def test_options_of_an_imported_config_class_are_known(tmp_path):
    (tmp_path / "requirements.txt").touch()
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
    [settings] = read_file(run)
    assert "own_size" in settings.script_options


CONFIG = {
    "ppo_trainer.yaml": (
        "defaults:\n  - engine: dp\n  - actor@worker.actor: ${engine}_actor\n  - _self_\n"
        "trainer:\n  nnodes: 1\n  val_only: false\n  resume: null\n  must: ???\n  same: ${trainer.nnodes}\n"
        "  many: [a]\n"
    ),
    "engine/dp.yaml": "# @package _global_\nengine: dp\n",
    "actor/actor.yaml": "lr: 1\n",
    "actor/dp_actor.yaml": "defaults:\n  - ../optim@optim: dp\n  - actor\n  - _self_\nfsdp: 1\n",
    "optim/dp.yaml": "betas: 1\n",
    "../../version/version": "0.5.0\n",
}
COMPOSED_OPTIONS = {
    "engine", "worker", "worker.actor", "worker.actor.lr", "trainer", "trainer.nnodes", "trainer.val_only",
    "trainer.resume", "trainer.must", "trainer.same", "trainer.many", "worker.actor.fsdp", "worker.actor.optim",
    "worker.actor.optim.betas",
}  # fmt: skip


@pytest.fixture
def verl_checkout(tmp_path):
    """Write a small copy of verl with its Hydra config; return the folder."""
    config = tmp_path / "verl" / "trainer" / "config"
    for name, text in CONFIG.items():
        path = config / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    main = "@hydra.main(config_path='config', config_name='ppo_trainer', version_base=None)\ndef main(config): ...\n"
    (tmp_path / "verl" / "trainer" / "main_ppo.py").write_text(main)
    return tmp_path


def test_hydra_config_is_composed_of_its_group_files(verl_checkout):
    """The options are those of the config and its groups; without one group's file there are no options."""
    config = verl_checkout / "verl" / "trainer" / "config"
    script = str(verl_checkout / "run.sh")
    assert set(hydra.ComposedConfig(config, "ppo_trainer", script).options) == COMPOSED_OPTIONS
    (config / "engine" / "dp.yaml").unlink()
    assert hydra.ComposedConfig(config, "ppo_trainer", script).options == {}


def test_submodule_belongs_to_its_project_and_a_nested_clone_does_not(tmp_path):
    for name in ("clone/.git", ".git", "submodule"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "submodule" / ".git").write_text("gitdir: ../.git/modules/submodule\n")
    script = str(tmp_path / "run.sh")
    read = [
        project_requirements.is_in_project(tmp_path / name / "a", script) for name in ("submodule", "clone")
    ]
    assert read == [True, False]


def test_copied_verl_is_not_checked(tmp_path):
    (tmp_path / "verl/trainer").mkdir(parents=True)
    (tmp_path / "verl/trainer/main_ppo.py").write_text('@hydra.main(config_name="ppo_trainer")\n')
    (tmp_path / "run.sh").write_text(
        "python3 -m verl.trainer.main_ppo data.train_batch_size=64 trainer.mine=1\n"
    )
    assert lint(tmp_path / "run.sh").exit_code(Severity.ERROR) == INCOMPLETE


def test_modified_copy_of_trl_turns_errors_into_warnings(tmp_path):
    """With an option that no release has, the copy of TRL counts as modified, and errors become warnings."""
    part = tmp_path / "trl" / "trainer" / "grpo_trainer.py"
    part.parent.mkdir(parents=True)
    part.write_text("class GRPOTrainer: ...\n")
    run = tmp_path / "run.yaml"
    body = "model_name_or_path: a\nuse_vllm: true\nnum_generations: 1\nmax_completion_length: 8\n"
    for more, expected in (("", Severity.ERROR), ("codes_of_mine: 1\n", Severity.WARNING)):
        run.write_text(body + more)
        assert [f.severity for f in lint(run).findings if f.code == "CFG110"] == [expected]


def test_trainer_of_another_project_is_not_taken_for_trl(tmp_path):
    """A script whose options are mostly in no release of TRL gives no run plan."""
    run = tmp_path / "run.sh"
    of_another = "--local_rollout_batch 4 --actor_gpus 8 --stop_words a --episodes 9"
    for options, number in (("--use_vllm true --num_generations 8", 1), (of_another, 0)):
        run.write_text(f"python x/grpo_fast.py --per_device_train_batch_size 1 {options}\n")
        assert len(lint(run).subject["files"][0]["plans"]) == number


@pytest.mark.parametrize(
    "source", [["if 1:\n", "    !pip install x\n"], ["!pip install \\\n", "  x\n"], ["%pip x\n"]]
)
def test_notebook_commands_do_not_shift_or_break_python_lines(source):
    cell = {"cell_type": "code", "source": [*source, "GRPOConfig(num_generations=8)\n"]}
    text = json.dumps({"cells": [cell]}, indent=1)
    [settings] = read_text(text, "a.ipynb", "", "notebook")
    value = settings.options["num_generations"]
    assert (value.data, "GRPOConfig" in text.splitlines()[value.place.line - 1]) == (8, True)


@each_case(CASES["unknown_keys"])
def test_trl_before_0_19_skips_unknown_keys_of_a_file(tmp_path, trl, text, expected):
    """Unknown keys of a file are a warning before TRL 0.19; unknown options of a command line are an error."""
    path = tmp_path / ("run.sh" if text.startswith("trl ") else "run.yaml")
    path.write_text(text)
    assert expected in {f"{f.severity.word} {f.code}" for f in lint(path, trl=trl).findings}


def test_values_of_a_file_alone_are_checked(tmp_path):
    """TRL's parser converts the texts of a YAML file, and Python converts none; a misspelt key is a warning."""
    texts = {
        "run.yaml": "num_generation: 8\nmax_completion_length: 9\nlearning_rate: fast\nweight_decay: 1e-6\noptim: adam",
        "train.py": "from trl import GRPOConfig, GRPOTrainer\n"
        'GRPOConfig(max_steps="200", learning_rate=1e-6, loss_type="drgpo", bf16="yes")\n',
    }
    results = {}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
        reported = lint(tmp_path / name, trl="0.23.1").findings
        results[name] = {f"{item.severity.word} {item.evidence[0].text.split(' ')[0]}" for item in reported}
    assert results == {
        "run.yaml": {"warning num_generation", "error learning_rate", "error optim"},
        "train.py": {"error max_steps", "error loss_type"},
    }


def test_batch_of_a_script_that_was_not_read_is_no_warning():
    """With an unknown release, the trainer of a script that was not found may form its groups in another way."""
    options = "--num_generations 8 --per_device_train_batch_size 1"
    assert "warning CFG101" not in codes(f"torchrun --nproc_per_node 4 mine/train.py {options}")
    assert "warning CFG101" in codes(f"accelerate launch --num_processes 4 -m trl.scripts.grpo {options}")


VERL_RUN = "python -m verl.trainer.main_ppo --config-path=. --config-name=job algorithm.adv_estimator=grpo\n"


@pytest.mark.parametrize(
    ("config", "count"),
    [
        ("defaults:\n" + "".join(f"  - a{i}: 'x${{a{i + 1}}}${{a{i + 1}}}'\n" for i in range(60)), 1),
        ("defaults:\n" + "".join(f"  - a{i}: b\n" for i in range(20_000)), 1),
        ("defaults:\n" + "  - job\n" * 200 + "".join(f"k{i}: 1\n" for i in range(8_000)), 1),
        (f"? {'a.' * 40_000}a\n: 1\n", 1),
        ("".join(f"k{i}: 1\n" for i in range(10_000)), 60),
    ],
    ids=["choices that name each other", "many defaults", "itself", "long key", "many runs"],
)
def test_hostile_hydra_config_takes_bounded_time_and_memory(tmp_path, monkeypatch, config, count):
    """Endless defaults lists, a long key, and many runs with one large config take at most 8 s and 300 MiB."""
    (tmp_path / "job.yaml").write_text(config)
    (tmp_path / "run.sh").write_text(VERL_RUN * count)
    monkeypatch.chdir(tmp_path)
    with cpu_and_memory_limits(seconds=8, mebibytes=300), contextlib.suppress(UnreadableError):
        read_file(tmp_path / "run.sh")


@pytest.mark.parametrize("config", ["num_generations: 8\n", "use_vllm: [\n"], ids=["readable", "invalid"])
def test_config_that_many_runs_name_takes_bounded_time_and_memory(tmp_path, config):
    """A config of 15,000 keys that 400 runs name takes at most 8 s and 300 MiB."""
    (tmp_path / "c.yaml").write_text("".join(f"k{i}: 1\n" for i in range(15_000)) + config)
    (tmp_path / "run.sh").write_text("trl grpo --config c.yaml\n" * 400)
    with cpu_and_memory_limits(seconds=8, mebibytes=300), contextlib.suppress(UnreadableError):
        read_file(tmp_path / "run.sh")


@pytest.mark.parametrize(
    "statement",
    [
        "import " + ".".join(["a"] * 100_000),
        "x = " + "GRPOConfig(**" * 85 + f"f({'1, ' * 40_000})" + ")" * 85,
    ],
    ids=["long name", "nested configs"],
)
def test_hostile_python_takes_bounded_time_and_memory(tmp_path, statement):
    path = tmp_path / "train.py"
    path.write_text(f"from trl import GRPOConfig\n{statement}\n")
    with cpu_and_memory_limits(seconds=8, mebibytes=200), contextlib.suppress(UnreadableError):
        read_file(path)


@pytest.mark.parametrize(
    "named",
    [
        "link",
        "absolute",
        "../",
        "../ without .git",
        "working",
        "working by ..",
        "in home",
        "nested",
        "marked by a file",
    ],
)
@pytest.mark.parametrize(
    "script",
    [
        "source {}.sh\ntrl grpo --num_generations 8 --x_$PHRASE 3\n",
        "trl grpo --config {}.yaml --output_dir x\n",
        "python {}.py --num_generations 8\n",
        VERL_RUN.replace("job", "{}").strip() + " trainer.nnodes='${{note}}'\n",
        VERL_RUN.replace("job", "list").strip() + " trainer.nnodes='${{note}}'\n",
    ],
)
def test_script_reads_no_file_outside_of_its_project(tmp_path, monkeypatch, run_command, named, script):
    """Texts of a sourced file, of configs and of a Python script are not printed, and the report is incomplete.

    A script outside of the working folder's project finds no file there, however the script's path is written.
    """
    repository = tmp_path / "repo"
    (repository / (".git" if named not in ("../ without .git", "marked by a file") else "src")).mkdir(
        parents=True
    )
    if named == "marked by a file":
        (repository / "pyproject.toml").touch()
    monkeypatch.chdir(repository)
    for suffix, text in (
        ("sh", "PHRASE=correct-horse"),
        ("yaml", "note: correct-horse"),
        ("py", "from trl import GRPOConfig\nGRPOConfig(note='correct-horse')"),
    ):
        (tmp_path / f"secrets.{suffix}").write_text(f"{text}\n")
        (repository / f"env.{suffix}").symlink_to(tmp_path / f"secrets.{suffix}")
        (repository / f"own.{suffix}").write_text(f"{text}\n")
    names = {"link": "env", "absolute": tmp_path / "secrets", "../": "../secrets", "working": "own"}
    name = names.get(named.split()[0], "repo/own")
    folders = {"link": "repo", "absolute": "repo", "../": "repo", "../ without .git": "repo", "in home": "."}
    folder = Path("../dl" if named == "working by .." else tmp_path / folders.get(named, "dl"))
    folder.mkdir(exist_ok=True)
    if name == "repo/own":
        monkeypatch.setenv("HOME", str(tmp_path if named == "in home" else repository))
        monkeypatch.chdir(tmp_path)
    (folder / "list.yaml").write_text(f"defaults:\n  - {name}\n")
    (folder / "run.sh").write_text(script.format(name))
    result = run_command("lint", folder / "run.sh", "--trl", "1.16.0", "--format", "json")
    assert result.code == INCOMPLETE
    assert "correct" not in result.out


def test_script_reads_sourced_files_of_its_project(tmp_path):
    (tmp_path / ".git").mkdir()
    (tmp_path / "env.sh").write_text("COUNT=8\n")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "run.sh").write_text("source ../env.sh\ntrl grpo --num_generations $COUNT\n")
    [settings] = read_file(tmp_path / "runs" / "run.sh")
    assert settings.options["num_generations"].data == 8


@pytest.mark.parametrize(("name", "text"), read_cases(__file__, "secret_settings.yaml"))
def test_value_of_a_secret_is_masked_in_other_settings(tmp_path, run_command, name, text):
    """The value of a variable, key or anchor with a secret's name is masked; a later command does not mask it."""
    for file, content in (
        (".env", "DB_PASSWORD=Tulip9Kestrel\n"), ("db.yaml", "db: {password: Tulip9Kestrel}\n"), (name, text),
        ("next.sh", "trl grpo --num_generations 8 --vllm_mode Tulip9Kestrel\n"),
    ):  # fmt: skip
        (tmp_path / file).write_text(content)
    document = run_command("lint", tmp_path / name, "--trl", "1.16.0", "--format", "json").out
    assert "<secret>" in document
    screen = run_command("lint", tmp_path / name, "--trl", "1.16.0").out
    assert not re.search("Tulip9|Kestrel|20240917", document + screen)
    assert "Tulip9Kestrel" in run_command("lint", tmp_path / "next.sh", "--trl", "1.16.0").out
