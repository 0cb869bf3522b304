"""From five frameworks' own words to one run plan."""

import pytest

from diagnostics.lint import judge, reading
from tests.diagnostics.lint_helpers import plans, versions

SAME = {
    "trl": (
        "accelerate launch --num_processes 4 train_grpo.py --num_generations 8 --per_device_train_batch_size 2 "
        "--use_vllm true --vllm_mode colocate --vllm_tensor_parallel_size 2 --vllm_gpu_memory_utilization 0.3 "
        "--temperature 0.7 --max_completion_length 512"
    ),
    "ms-swift": (
        "NPROC_PER_NODE=4 swift rlhf --rlhf_type grpo --num_generations 8 --per_device_train_batch_size 2 "
        "--use_vllm true --vllm_mode colocate --vllm_tensor_parallel_size 2 --vllm_gpu_memory_utilization 0.3 "
        "--temperature 0.7 --max_completion_length 512"
    ),
    "verl": (
        "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=8 "
        "actor_rollout_ref.rollout.tensor_model_parallel_size=2 actor_rollout_ref.rollout.temperature=0.7 "
        "actor_rollout_ref.rollout.gpu_memory_utilization=0.3 trainer.n_gpus_per_node=4 trainer.nnodes=1 "
        "data.max_response_length=512"
    ),
    "easyr1": (
        "python3 -m verl.trainer.main worker.rollout.n=8 worker.rollout.tensor_parallel_size=2 "
        "worker.rollout.temperature=0.7 worker.rollout.gpu_memory_utilization=0.3 trainer.n_gpus_per_node=4 "
        "data.max_response_length=512"
    ),
    "openrlhf": (
        "python3 -m openrlhf.cli.train_ppo_ray --rollout.n_samples_per_prompt 8 --vllm.num_engines 2 "
        "--vllm.tensor_parallel_size 2 --vllm.gpu_memory_utilization 0.3 --train.colocate_all "
        "--actor.num_nodes 1 --actor.num_gpus_per_node 4 --rollout.temperature 0.7 --rollout.max_new_tokens 512"
    ),
}


@pytest.mark.parametrize("framework", SAME)
def test_one_run_in_five_languages_is_one_plan(framework):
    """The same run, said in each framework's words."""
    [plan] = plans(SAME[framework])
    assert plan.framework == framework
    expected = {
        "rollout.mode": "colocate", "group.size": 8, "engine.tensor_parallel": 2, "engine.memory_share": 0.3,
        "devices.train": 4, "sampling.temperature": 0.7, "data.max_completion": 512,
    }  # fmt: skip
    assert {name: plan.get(name) for name in expected} == expected


@pytest.mark.parametrize(
    ("text", "syntax", "framework"),
    [
        ("num_generations: 8\nuse_vllm: true", "yaml", "trl"),
        ("rlhf_type: grpo\nnum_generations: 8", "yaml", "ms-swift"),
        ('{"rlhf_type": "grpo", "swift_version": "3.5.0", "num_generations": 8}', "json", "ms-swift"),
        ("actor_rollout_ref:\n  rollout:\n    n: 8", "yaml", "verl"),
        ("worker:\n  rollout:\n    n: 8", "yaml", "easyr1"),
        ("tensor-parallel-size: 2\nmax-model-len: 4096", "yaml", "vllm"),
        ('[rollout]\nmode = "async"\nmax_staleness = 1', "toml", "own"),
        ("GRPOConfig(num_generations=8)", "python", "trl"),
        ("vllm serve model --tensor-parallel-size 2", "shell", "vllm"),
        ("trl vllm-serve --model m", "shell", "trl"),
        ("python -m openrlhf.cli.train_ppo_ray --n_samples_per_prompt 8", "shell", "openrlhf"),
        ("bash -c 'swift rlhf --rlhf_type grpo'", "shell", "ms-swift"),
    ],
)
def test_the_framework_shows(text, syntax, framework):
    """By keys, commands and calls."""
    assert [plan.framework for plan in plans(text, syntax)] == [framework]


@pytest.mark.parametrize(
    ("text", "syntax"),
    [
        ("swift rlhf --rlhf_type dpo --model m", "shell"),
        ("rlhf_type: dpo\ntuner_type: lora", "yaml"),
        ("learning_rate: 0.1", "yaml"),
        ("pip install vllm", "shell"),
        ("SFTConfig(packing=True)", "python"),
        ("python -m verl.trainer.sft data.x=1", "shell"),
    ],
)
def test_what_is_no_grpo_run_makes_no_plan(text, syntax):
    """Another method, another program, nothing at all."""
    assert plans(text, syntax) == []


def test_a_config_that_a_command_names_is_read(tmp_path):
    """Under what the command itself sets, looked for in the folders above the script."""
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "config.yaml").write_text("worker:\n  rollout:\n    n: 5\n    top_p: 0.9\n")
    script = tmp_path / "examples" / "run.sh"
    script.write_text("python3 -m verl.trainer.main config=examples/config.yaml worker.rollout.n=16\n")
    [made] = reading.read_file(script)
    assert made.items["worker.rollout.n"].data == 16
    value = made.items["worker.rollout.top_p"]
    assert (value.data, value.place.line) == (0.9, 4)
    assert value.place.file.endswith("config.yaml")


def test_defaults_wait_where_more_may_be_set():
    """With "$@" or a **kwargs nobody knows whether a default holds."""
    closed, opened = (
        plans(f"python3 -m verl.trainer.main_ppo data.train_files=x {end}")[0] for end in ("", '"$@"')
    )
    assert closed.get("group.size") == 1
    assert closed.values["group.size"].soft
    assert opened.values["group.size"].outside


def test_a_default_that_changed_is_taken_only_for_a_known_release():
    """TRL's vllm_mode: server until 1.0, colocate from then on."""
    script = "trl grpo --use_vllm true --num_generations 8"
    assert plans(script)[0].get("rollout.mode") is None
    assert plans(script, trl="0.29.1")[0].get("rollout.mode") == "server"
    assert plans(script, trl="1.0.0")[0].get("rollout.mode") == "colocate"


def test_a_value_from_outside_is_not_known():
    """And stays so in what is computed from it."""
    [plan] = plans("swift rlhf --rlhf_type grpo --num_generations $N --temperature 1.0")
    assert plan.get("group.size") is None
    assert not plan.values["group.size"].known
    assert plan.get("sampling.temperature") == 1.0


def test_files_beside_each_other_make_one_run(tmp_path):
    """The processes of accelerate's file, the batch of DeepSpeed's, the rest in Python."""
    (tmp_path / "accelerate.yaml").write_text("distributed_type: MULTI_GPU\nnum_processes: 4\n")
    (tmp_path / "ds.json").write_text('{"zero_optimization": {}, "gradient_accumulation_steps": 2}')
    (tmp_path / "train.py").write_text(
        "GRPOConfig(num_generations=8, per_device_train_batch_size=3, use_vllm=True, deepspeed='ds.json',\n"
        "    gradient_accumulation_steps=1)\n"
    )
    report = judge.lint(sorted(tmp_path.glob("*[!s].*[ly]")), versions(trl="1.9.0"))
    details = {finding.code: finding.detail for finding in report.findings}
    assert details["CFG101"].startswith("One generation makes 12 completions")
    assert details["CFG102"] == "DeepSpeed's file says 2, and the run has 1."
