"""Mistakes that users make, in the forms in which runs are really started: each found, on its own line."""
# ruff: noqa: E501 - one case a line

import pytest

from tests.diagnostics.lint_helpers import findings

# name: syntax, text, releases, what is found, on which line
WRONG = {
    "env prefix": ("shell", "WANDB_MODE=offline CUDA_VISIBLE_DEVICES=0,1 NPROC_PER_NODE=2 swift rlhf --rlhf_type grpo --reward_funcs format --use_vllm true --vllm_mode colocate --async_generate true", {"ms_swift": "4.0.0"}, "error CFG001", 1),
    "env command": ("shell", "env NPROC_PER_NODE=2 swift rlhf --rlhf_type grpo --reward_funcs format --use_vllm true --vllm_mode colocate --num_generations 8 \\\n --per_device_train_batch_size 3 --gradient_accumulation_steps 1", {"ms_swift": "4.0.0"}, "error CFG101", 1),
    "nohup": ("shell", "nohup swift rlhf --rlhf_type grpo --reward_funcs format --use_vllm true --vllm_mode colocate \\\n --async_generate true > log 2>&1 &", {"ms_swift": "4.0.0"}, "error CFG001", 2),
    "and": ("shell", "cd /work && pip list && \\\nswift rlhf --rlhf_type grpo --reward_funcs format --use_vllm true --vllm_mode colocate --async_generate true", {}, "error CFG001", 2),
    "srun": ("shell", 'srun --nodes 2 --ntasks-per-node 1 bash -c "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=4 data.train_batch_size=64 actor_rollout_ref.actor.ppo_mini_batch_size=128 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1"', {"verl": "0.9.0"}, "error CFG102", 1),
    "srun container": ("shell", "srun --container-image=x --container-mounts=/a:/a \\\n  python3 -m verl.trainer.main_ppo actor_rollout_ref.rollout.n=4 data.train_batch_size=64 \\\n  actor_rollout_ref.actor.ppo_mini_batch_size=128", {"verl": "0.9.0"}, "error CFG102", 2),
    "docker run": ("shell", "docker run --gpus all -e CUDA_VISIBLE_DEVICES=0,1 --rm img:1 \\\n  swift rlhf --rlhf_type grpo --reward_funcs format --use_vllm true \\\n  --vllm_mode colocate --async_generate true", {}, "error CFG001", 3),
    "docker env": ("shell", "docker run -e NPROC_PER_NODE=4 -e CUDA_VISIBLE_DEVICES=0,1 img swift rlhf --rlhf_type grpo --reward_funcs format --use_vllm true --vllm_mode colocate", {}, "error CFG104", 1),
    "docker bash -c": ("shell", "docker exec -it c bash -lc 'swift rlhf --rlhf_type grpo --reward_funcs format --use_vllm true --vllm_mode colocate --async_generate true'", {}, "error CFG001", 1),
    "ray job submit": ("shell", 'ray job submit --address http://127.0.0.1:8265 --runtime-env-json \'{"working_dir": "."}\' -- python3 -m verl.trainer.main_ppo \\\n actor_rollout_ref.rollout.n=4 data.train_batch_size=64 \\\n actor_rollout_ref.actor.ppo_mini_batch_size=128', {"verl": "0.9.0"}, "error CFG102", 2),
    "ray job orl": ("shell", "ray job submit --address=http://127.0.0.1:8265 -- python3 -m openrlhf.cli.train_ppo_ray \\\n --actor.num_gpus_per_node 8 --vllm.num_engines 2 --vllm.tensor_parallel_size 2 \\\n --train.colocate_all --ref.num_gpus_per_node 8", {"openrlhf": "0.11.0"}, "error CFG104", 2),
    "torchrun": ("shell", "torchrun --nproc_per_node 4 --nnodes 1 src/open_r1/grpo.py --use_vllm --vllm_mode colocate --num_generations 8 \\\n --per_device_train_batch_size 3", {"trl": "1.9.0"}, "error CFG101", 1),
    "torchrun tp": ("shell", "torchrun --nproc-per-node=4 grpo.py --use_vllm true --vllm_mode colocate --num_generations 8 --per_device_train_batch_size 8 --vllm_tensor_parallel_size 3", {"trl": "1.9.0"}, "error CFG104", 1),
    "deepspeed": ("shell", "deepspeed --num_gpus 4 grpo.py --use_vllm true --vllm_mode colocate --num_generations 8 --per_device_train_batch_size 3", {"trl": "1.9.0"}, "error CFG101", 1),
    "python -m torch.distributed.run": ("shell", "python -m torch.distributed.run --nproc_per_node=4 grpo.py --use_vllm true --vllm_mode colocate --num_generations 8 --per_device_train_batch_size 3", {"trl": "1.9.0"}, "error CFG101", 1),
    "accelerate -m": ("shell", "accelerate launch --num_processes=4 -m recipes.grpo --use_vllm true --vllm_mode colocate --num_generations 8 --per_device_train_batch_size 3", {"trl": "1.9.0"}, "error CFG101", 1),
    "array": ("shell", 'ARGS=(\n  --rlhf_type grpo\n  --reward_funcs format\n  --use_vllm true\n  --vllm_mode colocate\n  --async_generate true\n)\nswift rlhf "${ARGS[@]}"', {}, "error CFG001", 6),
    "array +=": ("shell", "ARGS=(--rlhf_type grpo --reward_funcs format --use_vllm true)\nARGS+=(--vllm_mode colocate)\nARGS+=(--async_generate true)\nswift rlhf ${ARGS[*]}", {}, "error CFG001", 3),
    "variable of options": ("shell", 'COMMON="--use_vllm true --vllm_mode colocate"\nswift rlhf --rlhf_type grpo --reward_funcs format $COMMON --async_generate true', {}, "error CFG001", 2),
    "arithmetic": ("shell", "GPUS=4\nTP=$((GPUS - 1))\nexport NPROC_PER_NODE=$GPUS\nswift rlhf --rlhf_type grpo --reward_funcs format --use_vllm true --vllm_mode colocate --vllm_tensor_parallel_size $TP", {}, "error CFG104", 4),
    "args passed on verl": ("shell", "python3 -m verl.trainer.main_ppo data.train_batch_size=64 actor_rollout_ref.actor.use_dynamic_bsz=False actor_rollout_ref.actor.ppo_mini_batch_size=128 $@", {"verl": "0.9.0"}, "error CFG102", 1),
    "heredoc yaml": ("shell", "cat > config.yaml <<EOF\nrlhf_type: grpo\nreward_funcs: [format]\nuse_vllm: true\nvllm_mode: colocate\nasync_generate: true\nEOF\nswift rlhf --config config.yaml", {}, "error CFG001", 6),
    "function": ("shell", "run() {\n  swift rlhf --rlhf_type grpo --reward_funcs format --use_vllm true --vllm_mode colocate --async_generate true\n}\nrun", {}, "error CFG001", 2),
    "eval": ("shell", 'CMD="swift rlhf --rlhf_type grpo --reward_funcs format --use_vllm true --vllm_mode colocate --async_generate true"\neval $CMD', {}, "error CFG001", 2),
    "var cmd": ("shell", 'CMD="swift rlhf --rlhf_type grpo --reward_funcs format --use_vllm true --vllm_mode colocate --async_generate true"\n$CMD', {}, "error CFG001", 2),
    "timeout": ("shell", "timeout 3h swift rlhf --rlhf_type grpo --reward_funcs format --use_vllm true --vllm_mode colocate --async_generate true", {}, "error CFG001", 1),
    "exec tee": ("shell", "exec swift rlhf --rlhf_type grpo --reward_funcs format --use_vllm true --vllm_mode colocate --async_generate true 2>&1 | tee log", {}, "error CFG001", 1),
    "conda run": ("shell", "conda run -n x --no-capture-output swift rlhf --rlhf_type grpo --reward_funcs format --use_vllm true --vllm_mode colocate --async_generate true", {}, "error CFG001", 1),
    "uv run": ("shell", "uv run --with trl accelerate launch --num_processes 4 grpo.py --use_vllm true --vllm_mode colocate --num_generations 8 --per_device_train_batch_size 3", {"trl": "1.9.0"}, "error CFG101", 1),
    "subshell": ("shell", "(CUDA_VISIBLE_DEVICES=0 swift rollout --model m --vllm_tensor_parallel_size 2) &", {}, "error CFG104", 1),
    "plus key": ("shell", "python3 -m verl.trainer.main_ppo +actor_rollout_ref.rollout.pipeline_model_parallel_size=2 actor_rollout_ref.rollout.name=vllm", {"verl": "0.9.0"}, "error CFG111", 1),
    "tilde key": ("shell", "python3 -m verl.trainer.main_ppo data.train_batch_size=64 actor_rollout_ref.actor.ppo_mini_batch_size=128 ~trainer.logger", {"verl": "0.9.0"}, "error CFG102", 1),
    "hydra list": ("shell", 'python3 -m verl.trainer.main_ppo "actor_rollout_ref.rollout.n=4" \'data.train_batch_size=64\' "trainer.logger=[\'console\',\'wandb\']" \'actor_rollout_ref.actor.ppo_mini_batch_size=128\'', {"verl": "0.9.0"}, "error CFG102", 1),
    "crlf": ("shell", "swift rlhf \\\r\n --rlhf_type grpo --reward_funcs format \\\r\n --use_vllm true --vllm_mode colocate \\\r\n --async_generate true\r\n", {}, "error CFG001", 4),
    "equals": ("shell", "swift rlhf --rlhf_type=grpo --reward_funcs=format --use_vllm=true --vllm_mode=colocate --async_generate=true", {}, "error CFG001", 1),
    "dash": ("shell", "trl grpo --use-vllm --vllm-mode colocate --num-generations 1 --per-device-train-batch-size 8", {"trl": "1.9.0"}, "error CFG110", 1),
    "yaml anchors": ("yaml", "x: &r\n  n: 4\nactor_rollout_ref:\n  rollout:\n    <<: *r\n    name: vllm\n  actor:\n    use_dynamic_bsz: false\n    ppo_mini_batch_size: 128\ndata:\n  train_batch_size: 64\n", {"verl": "0.9.0"}, "error CFG102", 11),
    "omegaconf": ("yaml", "bs: 64\nactor_rollout_ref:\n  rollout: {n: 4}\n  actor:\n    use_dynamic_bsz: false\n    ppo_mini_batch_size: 128\ndata:\n  train_batch_size: ${bs}\n", {"verl": "0.9.0"}, "error CFG102", 8),
    "omegaconf nested": ("yaml", "actor_rollout_ref:\n  rollout: {n: 4}\n  actor:\n    use_dynamic_bsz: false\n    ppo_mini_batch_size: ${oc.env:MINI,128}\ndata:\n  train_batch_size: ${actor_rollout_ref.rollout.n}\n", {"verl": "0.9.0"}, "warning CFG102", 7),
    "hydra defaults": ("yaml", "defaults:\n  - ppo_trainer\n  - _self_\nactor_rollout_ref:\n  actor:\n    use_dynamic_bsz: false\n    ppo_mini_batch_size: 128\ndata:\n  train_batch_size: 64\n", {"verl": "0.9.0"}, "error CFG102", 9),
    "easyr1 yaml": ("yaml", "data:\n  rollout_batch_size: 500\nworker:\n  actor:\n    global_batch_size: 128\n  rollout:\n    n: 5\n", {}, "error CFG102", 2),
    "easyr1 offload": ("yaml", "data:\n  rollout_batch_size: 128\nworker:\n  actor:\n    global_batch_size: 128\n    micro_batch_size_per_device_for_update: 4\n    fsdp:\n      enable_cpu_offload: true\n  rollout:\n    n: 5\ntrainer:\n  n_gpus_per_node: 8\n", {}, "error CFG111", 8),
    "trl yaml": ("yaml", "use_vllm: true\nvllm_mode: colocate\nnum_generations: 8\ngeneration_batch_size: 12\n", {}, "error CFG101", 3),
    "trl yaml both": ("yaml", "use_vllm: true\nnum_generations: 8\ngeneration_batch_size: 16\nsteps_per_generation: 2\n", {}, "error CFG111", 3),
    "k8s yaml": ("yaml", "apiVersion: batch/v1\nkind: Job\nspec:\n  template:\n    spec:\n      containers:\n      - name: t\n        command: [bash, -c]\n        args:\n        - |\n          swift rlhf --rlhf_type grpo --reward_funcs format --use_vllm true \\\n            --vllm_mode colocate --async_generate true\n", {}, "error CFG001", 12),
    "py kwargs": ("python", "from trl import GRPOConfig\nkw = dict(use_vllm=True, num_generations=8)\nkw['generation_batch_size'] = 12\nargs = GRPOConfig(**kw)\n", {"trl": "1.9.0"}, "error CFG101", 2),
    "py dict kwargs": ("python", "from trl import GRPOConfig\nKW = {'use_vllm': True,\n      'num_generations': 8,\n      'generation_batch_size': 12}\nargs = GRPOConfig(output_dir='x', **KW)\n", {"trl": "1.9.0"}, "error CFG101", 3),
    "py module": ("python", "import trl\nargs = trl.GRPOConfig(\n  num_generations=8,\n  generation_batch_size=12)\n", {"trl": "1.9.0"}, "error CFG101", 3),
    "py alias": ("python", "from trl import GRPOConfig as C\nargs = C(\n  num_generations=8,\n  generation_batch_size=12)\n", {"trl": "1.9.0"}, "error CFG101", 3),
    "py annotated": ("python", "from trl import GRPOConfig\nN: int = 8\nargs: GRPOConfig = GRPOConfig(num_generations=N,\n  generation_batch_size=12)\nargs.top_p = 0.9\n", {"trl": "1.9.0"}, "error CFG101", 3),
    "py subprocess": ("python", "import subprocess\nsubprocess.run(['swift', 'rlhf', '--rlhf_type', 'grpo', '--reward_funcs', 'format', '--use_vllm', 'true', '--vllm_mode', 'colocate',\n '--async_generate', 'true'])\n", {}, "error CFG001", 2),
    "py setdefault": ("python", "import os\nos.environ.setdefault('PYTORCH_CUDA_ALLOC_CONF', 'expandable_segments:True')\nfrom trl import GRPOConfig\nGRPOConfig(use_vllm=True, vllm_mode='colocate', vllm_enable_sleep_mode=True)\n", {"vllm": "0.10.2", "trl": "0.29.1"}, "warning CFG112", 2),
    "json dump": ("json", '{\n "output_dir": "x",\n "use_vllm": true,\n "num_generations": 8,\n "generation_batch_size": 12\n}', {"trl": "1.9.0"}, "error CFG101", 4),
    "args.json": ("json", '{\n "rlhf_type": "grpo",\n "swift_version": "4.0.0",\n "use_vllm": true,\n "vllm_mode": "colocate",\n "async_generate": true, "reward_funcs": ["format"]\n}', {}, "error CFG001", 6),
    "own toml": ("toml", '[rollout]\nmode = "async"\nport = 70000\n', {}, "error CFG109", 3),
    "vllm serve": ("shell", "CUDA_VISIBLE_DEVICES=0,1 python -m vllm.entrypoints.openai.api_server --model m \\\n  -tp 4", {}, "error CFG104", 2),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_mistake_is_found_where_it_stands(name):
    """By code, severity and line, whatever stands before, around or between."""
    syntax, text, releases, expected, line = WRONG[name]
    found = [f for f in findings(text, syntax, **releases) if f"{f.severity.word} {f.code}" == expected]
    assert found
    assert f"run:{line}" in {item.place for finding in found for item in finding.evidence}


# name: syntax, text: nothing is wrong here, or nobody can know from here
UNKNOWN = {
    "passed on": ("shell", 'swift rlhf --rlhf_type grpo --use_vllm true --vllm_mode colocate "$@"'),
    "a dict that a branch changes": ("python", "from trl import GRPOConfig\nkw = dict(num_generations=8, use_vllm=True)\nif big:\n    kw['generation_batch_size'] = 12\nGRPOConfig(**kw)\n"),
    "a dict that is updated": ("python", "from trl import GRPOConfig\nkw = {'generation_batch_size': 12}\nkw.update(more)\nGRPOConfig(num_generations=8, **kw)\n"),
    "an interpolation of nothing": ("yaml", "actor_rollout_ref:\n  rollout: {n: 4}\n  actor:\n    use_dynamic_bsz: false\n    ppo_mini_batch_size: ${other.file}\ndata:\n  train_batch_size: 64\n"),
    "an interpolation of itself": ("yaml", "actor_rollout_ref:\n  rollout: {n: 4}\n  actor:\n    use_dynamic_bsz: false\n    ppo_mini_batch_size: ${data.train_batch_size}\ndata:\n  train_batch_size: ${actor_rollout_ref.actor.ppo_mini_batch_size}\n"),
    "a file written with a variable": ("shell", "cat > c.yaml <<EOF\nrlhf_type: grpo\nreward_funcs: [format]\nuse_vllm: true\nvllm_mode: $MODE\nasync_generate: true\nEOF\nswift rlhf --config c.yaml"),
    "a text about a command": ("yaml", "description: |\n  how to start a run: see the guide\nname: swift\n"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_nobody_can_know_is_not_accused(name):
    """No error where the value may be another one."""
    syntax, text = UNKNOWN[name]
    assert [
        f.code
        for f in findings(text, syntax, trl="1.9.0", verl="0.9.0", ms_swift="4.0.0")
        if f.severity.word == "error"
    ] == []
