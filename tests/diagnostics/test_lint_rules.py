"""The rules: what they find, where they stay silent, and how releases decide."""
# ruff: noqa: E501 - one case a line

import ast
import re
from pathlib import Path

import pytest

from diagnostics import catalog
from diagnostics.__main__ import main
from diagnostics.lint import rules as checks
from diagnostics.lint.rules import registered
from diagnostics.lint.run_plan import VOCABULARY
from diagnostics.output.findings import Severity
from diagnostics.output.wording import text_of
from tests.diagnostics.lint_helpers import codes, findings

SWIFT = "swift rlhf --rlhf_type grpo --use_vllm true "
TRL = "accelerate launch --num_processes 4 grpo.py --use_vllm true --num_generations 8 "
VERL = "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=8 "
EASY = "python3 -m verl.trainer.main worker.rollout.n=5 "
ORL = "python3 -m openrlhf.cli.train_ppo_ray --actor.num_nodes 1 --actor.num_gpus_per_node 8 "

# what is wrong, for which releases, what comes out
WRONG = [
    # CFG001: ms-swift's modes
    (SWIFT + "--vllm_mode colocate --async_generate true", {}, "error CFG001"),
    (SWIFT + "--async_generate true", {"ms_swift": "3.8.0"}, "error CFG001"),
    (SWIFT + "--vllm_mode server", {"ms_swift": "4.0.0"}, "error CFG001"),
    (SWIFT + "--vllm_mode server", {}, "warning CFG001"),
    ("swift rlhf --rlhf_type grpo --vllm_mode colocate", {"ms_swift": "3.12.0"}, "error CFG001"),
    ("CUDA_VISIBLE_DEVICES=0,1,2,3 NPROC_PER_NODE=2 " + SWIFT + "--num_infer_workers 1", {"ms_swift": "3.4.1"}, "error CFG001"),
    ("CUDA_VISIBLE_DEVICES=0,1 NPROC_PER_NODE=1 " + SWIFT + "--num_infer_workers 2", {"ms_swift": "3.4.1"}, "error CFG001"),
    ("CUDA_VISIBLE_DEVICES=0,1 NPROC_PER_NODE=2 " + SWIFT + "--num_infer_workers 2 --async_generate true", {}, "warning CFG001"),
    # CFG101: whole groups
    (TRL + "--per_device_train_batch_size 3", {"trl": "1.9.0"}, "error CFG101"),
    (TRL + "--per_device_train_batch_size 1 --gradient_accumulation_steps 2", {"trl": "0.16.0"}, "error CFG101"),
    (TRL + "--generation_batch_size 12", {}, "error CFG101"),
    (TRL + "--per_device_train_batch_size 2 --per_device_eval_batch_size 1 --eval_strategy steps", {"trl": "1.0.0"}, "error CFG101"),
    ("NPROC_PER_NODE=2 " + SWIFT + "--vllm_mode colocate --num_generations 8 --per_device_train_batch_size 3 --gradient_accumulation_steps 1", {}, "error CFG101"),
    # CFG102: chains of batches
    (VERL + "data.train_batch_size=64 actor_rollout_ref.actor.ppo_mini_batch_size=128", {}, "error CFG102"),
    (VERL + "data.train_batch_size=3 actor_rollout_ref.actor.ppo_mini_batch_size=1 trainer.n_gpus_per_node=7", {}, "error CFG102"),
    (EASY + "data.rollout_batch_size=500 worker.actor.global_batch_size=128", {}, "error CFG102"),
    (ORL + "--rollout.batch_size 4 --rollout.n_samples_per_prompt 1 --rollout.micro_batch_size 2", {}, "error CFG102"),
    # The lengths of CFG103
    (VERL + "data.max_prompt_length=8192 data.max_response_length=8192", {"verl": "0.6.1"}, "error CFG103"),
    (VERL + "data.max_prompt_length=8192 data.max_response_length=8192", {}, "warning CFG103"),
    (EASY + "data.max_prompt_length=8192 data.max_response_length=2048", {}, "error CFG103"),
    (SWIFT + "--vllm_mode colocate --vllm_max_model_len 2048 --max_completion_length 4096", {}, "warning CFG103"),
    # The devices of CFG104
    (TRL + "--vllm_mode colocate --vllm_tensor_parallel_size 3", {}, "error CFG104"),
    ("CUDA_VISIBLE_DEVICES=0 swift rollout --model m --vllm_tensor_parallel_size 2", {}, "error CFG104"),
    ("CUDA_VISIBLE_DEVICES=0,1 trl vllm-serve --model m --tensor_parallel_size 2 --data_parallel_size 2", {}, "error CFG104"),
    ("CUDA_VISIBLE_DEVICES=0,1 NPROC_PER_NODE=4 " + SWIFT + "--vllm_mode colocate", {}, "error CFG104"),
    (ORL + "--vllm.num_engines 2 --vllm.tensor_parallel_size 2 --train.colocate_all", {}, "error CFG104"),
    # CFG105 to CFG107: memory, sleep, ignored options
    (SWIFT + "--vllm_mode colocate --vllm_gpu_memory_utilization 0.9", {}, "warning CFG105"),
    (SWIFT + "--vllm_mode colocate --vllm_gpu_memory_utilization 90", {}, "error CFG105"),
    (SWIFT + "--vllm_mode server --vllm_server_host 10.0.0.1 --sleep_level 1", {}, "info CFG106"),
    (ORL + "--vllm.num_engines 8 --train.colocate_all --train.async_enable --vllm.enable_sleep", {}, "error CFG106"),
    (SWIFT + "--vllm_mode server --vllm_server_host 10.0.0.1 --vllm_max_model_len 4096", {}, "warning CFG107"),
    # CFG108, CFG109: a server beside
    ("CUDA_VISIBLE_DEVICES=0,1 swift rollout --model m &\nCUDA_VISIBLE_DEVICES=1,2 " + SWIFT + "--vllm_mode server --vllm_server_host 127.0.0.1", {}, "error CFG108"),
    (TRL + "--vllm_mode server --vllm_server_port 8000 --vllm_server_host 127.0.0.1 --vllm_group_port 8000", {}, "error CFG109"),
    ("vllm serve m --port 80000", {}, "error CFG109"),
    ("swift rollout --model m --port 9000 &\n" + SWIFT + "--vllm_mode server --vllm_server_host 127.0.0.1 --vllm_server_port 8000", {}, "warning CFG109"),
    ("swift rollout --model m --vllm_max_model_len 2048 &\n" + SWIFT + "--vllm_mode server --vllm_server_host h --max_completion_length 4096", {}, "warning CFG103"),
    ("vllm serve m --weight-transfer-config '{\"backend\": \"nccl\"}'", {"vllm": "0.20.0"}, "warning NUM001"),
    # CFG110 to CFG115
    (TRL.replace("8", "1"), {}, "error CFG110"),
    (VERL.replace("n=8", "n=1"), {}, "warning CFG110"),
    (VERL.replace("n=8", "n=1").replace("adv_estimator=grpo", "adv_estimator=grpo_passk"), {}, "error CFG110"),
    (EASY.replace("n=5", "n=1"), {}, "error CFG110"),
    (TRL + "--generation_batch_size 16 --steps_per_generation 2", {}, "error CFG111"),
    (ORL + "--train.partial_rollout_enable", {}, "error CFG111"),
    (SWIFT + "--vllm_mode server --vllm_server_host h --async_generate true --multi_turn_scheduler gym", {}, "error CFG111"),
    ("export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n" + SWIFT + "--vllm_mode colocate --sleep_level 1", {"vllm": "0.10.2"}, "error CFG112"),
    ("export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n" + SWIFT + "--vllm_mode colocate --sleep_level 1", {}, "warning CFG112"),
    ("export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n" + VERL, {"vllm": "0.20.0"}, "error CFG112"),
    (TRL + "--vllm_device cuda:3", {"trl": "0.18.0"}, "error CFG113"),
    (VERL + "actor_rollout_ref.rollout.mode=sync", {"verl": "0.7.0"}, "error CFG113"),
    (ORL + "--vllm_num_engines 4", {"openrlhf": "0.11.0"}, "error CFG113"),
    (SWIFT + "--no_such_option 3 --ignore_args_error true", {"ms_swift": "4.6.0"}, "warning CFG113"),
    (SWIFT + "\\ \n --num_generations 8", {}, "error CFG114"),
    (SWIFT + "\\\n # a comment\n --num_generations 8", {}, "error CFG114"),
    (TRL + "--temperature 0", {}, "warning CFG115"),
    # What a framework refuses besides
    (TRL + "--auto_find_batch_size", {"trl": "1.9.0"}, "error CFG111"),
    (SWIFT + "--vllm_mode colocate --truncation_strategy delete", {"ms_swift": "3.6.4"}, "error CFG111"),
    (TRL + "--log_completions_hub_repo me/x", {"trl": "0.28.0"}, "error CFG111"),
    (TRL + "--sync_ref_model --beta 0.0", {"trl": "0.29.1"}, "error CFG111"),
    (SWIFT + "--vllm_mode colocate --reward_funcs accuracy soft_overlong", {"ms_swift": "4.0.0"}, "error CFG111"),
    (SWIFT + "--vllm_mode colocate --reward_funcs accuracy --cached_dataset d", {"ms_swift": "4.0.0"}, "error CFG111"),
    (SWIFT + "--vllm_mode colocate", {"ms_swift": "4.0.0"}, "error CFG111"),
    (SWIFT + "--vllm_mode colocate --reward_funcs accuracy format --reward_weights 1", {"ms_swift": "4.0.0"}, "error CFG111"),
    (SWIFT + "--vllm_mode colocate --reward_funcs accuracy --use_liger_kernel true --padding_free true", {"ms_swift": "4.0.0"}, "error CFG111"),
    (SWIFT + "--teacher_model a --teacher_model_server http://127.0.0.1", {"ms_swift": "4.5.2"}, "error CFG111"),
    (SWIFT + "--num_generations 8", {"ms_swift": "3.11.1"}, "error CFG001"),
    (VERL + "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1", {"verl": "0.9.0"}, "error CFG111"),
    (VERL + "actor_rollout_ref.actor.ppo_micro_batch_size=8 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1", {"verl": "0.9.0"}, "error CFG111"),
    (VERL + "actor_rollout_ref.actor.ulysses_sequence_parallel_size=2 actor_rollout_ref.model.use_remove_padding=False", {"verl": "0.9.0"}, "error CFG111"),
    (VERL + "actor_rollout_ref.rollout.expert_parallel_size=4", {"verl": "0.9.0"}, "error CFG111"),
    (ORL + "--rollout.batch_size 64 --rollout.vllm_generate_batch_size 128", {"openrlhf": "0.11.0"}, "error CFG111"),
    (ORL + "--algo.dynamic_filtering_enable --rollout.n_samples_per_prompt 8", {"openrlhf": "0.11.0"}, "error CFG111"),
    (ORL + "--train.colocate_all --vllm.num_engines 8 --ref.num_gpus_per_node 4", {"openrlhf": "0.11.0"}, "error CFG111"),
    (VERL + "\\\n actor_rollout_ref.rollout.temperature=1.0\\\n\\\n # why\n data.train_batch_size=64\n", {}, "error CFG114"),
    # The placeholders of CFG120
    (VERL + "trainer.nnodes=TO_BE_FILLED", {}, "error CFG120"),
    (TRL + "--model_name_or_path '<your model>'", {}, "error CFG120"),
    (SWIFT + "--model /path/to/model", {}, "warning CFG120"),
    (VERL + "trainer.project_name=TODO trainer.experiment_name=x", {}, "warning CFG120"),
    (ORL + "--pretrain your_org/your_model", {}, "warning CFG120"),
    (ORL + "--use_wandb {wandb_token}", {}, "warning CFG120"),
    # Issues of other families
    (SWIFT + "--num_infer_workers 1 --async_generate true --eval_strategy steps", {"ms_swift": "3.4.1"}, "warning SCH001"),
    (VERL + "actor_rollout_ref.rollout.enable_chunked_prefill=True data.filter_overlong_prompts=False", {"vllm": "0.7.3"}, "warning SCH002"),
    (TRL + "--top_p 0.9", {}, "warning NUM002"),
    (TRL + "--repetition_penalty 1.1", {}, "warning NUM003"),
    (TRL + "--vllm_mode colocate --temperature 0.7", {"trl": "0.23.0"}, "warning NUM001"),
    (TRL + "--vllm_mode server --temperature 0.7", {"trl": "0.27.0"}, "warning NUM001"),
    ("export RAY_ADDRESS=http://head:8265\n" + VERL, {}, "error ENV902"),
    ("export VERL_VLLM_DISTRIBUTED_BACKEND=ray\n" + VERL + "actor_rollout_ref.rollout.mode=async", {"verl": "0.5.0"}, "warning RAY001"),
]  # fmt: skip


@pytest.mark.parametrize(("script", "releases", "expected"), WRONG)
def test_what_is_wrong_is_found(script, releases, expected):
    """Each rule, with the release where it takes one."""
    assert expected in codes(script, **releases)


# the nearest thing to it that is right
RIGHT = [
    (SWIFT + "--vllm_mode server --vllm_server_host h --async_generate true", {"ms_swift": "4.0.0"}, "CFG001"),
    (SWIFT + "--vllm_mode server", {"ms_swift": "3.8.0"}, "CFG001"),
    (SWIFT + "--vllm_mode colocate --async_generate $ASYNC", {"ms_swift": "4.0.0"}, "CFG001"),
    ("CUDA_VISIBLE_DEVICES=0,1,2,3 NPROC_PER_NODE=3 " + SWIFT + "--num_infer_workers 1", {"ms_swift": "3.4.1"}, "CFG001"),
    ("CUDA_VISIBLE_DEVICES=0,1 NPROC_PER_NODE=2 " + SWIFT + "--num_infer_workers 2", {"ms_swift": "3.4.1"}, "CFG001"),
    (TRL + "--per_device_train_batch_size 1 --gradient_accumulation_steps 2", {"trl": "0.17.0"}, "CFG101"),
    (TRL + "--per_device_train_batch_size $B", {"trl": "0.17.0"}, "CFG101"),
    ("trl grpo --num_generations 8 --per_device_train_batch_size 3", {"trl": "1.0.0"}, "CFG101"),
    (VERL + "data.train_batch_size=64 actor_rollout_ref.actor.ppo_mini_batch_size=128 actor_rollout_ref.actor.use_dynamic_bsz=True", {}, "CFG102"),
    (VERL + "data.train_batch_size=64 actor_rollout_ref.actor.ppo_mini_batch_size=$M", {}, "CFG102"),
    (EASY + "data.rollout_batch_size=512 worker.actor.global_batch_size=128 worker.actor.micro_batch_size_per_device_for_update=1", {}, "CFG102"),
    (VERL + "data.max_prompt_length=8192 data.max_response_length=8192", {"verl": "0.7.0"}, "CFG103"),
    (VERL + "data.max_prompt_length=8192 data.max_response_length=8192 actor_rollout_ref.rollout.enable_chunked_prefill=False", {}, "CFG103"),
    (SWIFT + "--vllm_mode server --vllm_server_host h --vllm_max_model_len 2048 --max_completion_length 4096", {}, "CFG103"),
    (TRL + "--vllm_mode colocate --vllm_tensor_parallel_size 2", {}, "CFG104"),
    ("CUDA_VISIBLE_DEVICES=$D swift rollout --model m --vllm_tensor_parallel_size 2", {}, "CFG104"),
    (ORL + "--vllm.num_engines 2 --vllm.tensor_parallel_size 2", {}, "CFG104"),
    (SWIFT + "--vllm_mode colocate --vllm_gpu_memory_utilization 0.9 --sleep_level 1", {}, "CFG105"),
    (SWIFT + "--vllm_mode colocate --vllm_gpu_memory_utilization 0.9 --sleep_level $SLEEP", {}, "CFG105"),
    (SWIFT + "--vllm_mode colocate --sleep_level 1", {}, "CFG106"),
    ("python3 -m openrlhf.cli.train_ppo_ray --vllm_num_engines 8 --colocate_all_models --async_train --vllm_enable_sleep", {"openrlhf": "0.6.0"}, "CFG106"),
    (SWIFT + "--vllm_mode colocate --vllm_max_model_len 4096", {}, "CFG107"),
    ("CUDA_VISIBLE_DEVICES=0 swift rollout --model m &\nCUDA_VISIBLE_DEVICES=1 " + SWIFT + "--vllm_mode server --vllm_server_host 127.0.0.1", {}, "CFG108"),
    ("CUDA_VISIBLE_DEVICES=0 swift rollout --model m &\nCUDA_VISIBLE_DEVICES=0 " + SWIFT + "--vllm_mode server --vllm_server_host 10.0.0.7", {}, "CFG108"),
    (TRL + "--vllm_mode server --vllm_server_port 8000 --vllm_server_host 127.0.0.1", {}, "CFG109"),
    ("swift rollout --model m --port 9000 &\n" + SWIFT + "--vllm_mode server --vllm_server_host 10.0.0.7 --vllm_server_port 8000", {}, "CFG109"),
    ("vllm serve m --weight-transfer-config '{}' --logprobs-mode processed_logprobs", {"vllm": "0.20.0"}, "NUM001"),
    ("vllm serve m", {"vllm": "0.20.0"}, "NUM001"),
    (SWIFT + "--num_generations 1 --teacher_model t", {}, "CFG110"),
    (VERL.replace("n=8", "n=1").replace("=grpo", "=gae"), {}, "CFG110"),
    (VERL.replace("n=8", "n=1") + "distillation.enabled=True", {}, "CFG110"),
    (VERL + "data.max_prompt_length=8192 data.max_response_length=8192 actor_rollout_ref.rollout.mode=async", {"verl": "0.6.1"}, "CFG103"),
    ("export NNODES=2 NPROC_PER_NODE=3 CUDA_VISIBLE_DEVICES=0,1,2,3\n" + SWIFT + "--num_infer_workers 1", {"ms_swift": "3.4.1"}, "CFG001"),
    ("python3 -m verl.experimental.vla.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.actor.use_dynamic_bsz=False data.train_batch_size=8 actor_rollout_ref.actor.ppo_mini_batch_size=128", {}, "CFG102"),
    (ORL + "--train.partial_rollout_enable --train.async_enable", {}, "CFG111"),
    ("export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n" + SWIFT + "--vllm_mode colocate --sleep_level 1", {"vllm": "0.20.1"}, "CFG112"),
    ("export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n" + SWIFT + "--vllm_mode colocate", {"vllm": "0.10.2"}, "CFG112"),
    ("export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n" + VERL + "actor_rollout_ref.rollout.enable_sleep_mode=False", {"vllm": "0.10.2"}, "CFG112"),
    (TRL + "--vllm_device cuda:3", {"trl": "0.15.2"}, "CFG113"),
    (TRL + "--vllm_device cuda:3", {}, "CFG113"),
    ("python3 -m openrlhf.cli.train_ppo_ray --vllm_num_engines 4", {"openrlhf": "0.10.1"}, "CFG113"),
    (SWIFT + "\\\n --num_generations 8", {}, "CFG114"),
    ("CUDA_VISIBLE_DEVICES=0,1 vllm serve m --tensor-parallel-size 2 --pipeline-parallel-size 2 --nnodes 2", {}, "CFG104"),
    ("CUDA_VISIBLE_DEVICES=0,1 vllm serve m --tensor-parallel-size 4 --distributed-executor-backend ray", {}, "CFG104"),
    (TRL + "--vllm_mode server --vllm_gpu_memory_utilization 90", {"trl": "1.16.0"}, "CFG105"),
    ("export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\nunset PYTORCH_CUDA_ALLOC_CONF\n" + SWIFT + "--vllm_mode colocate --sleep_level 1", {"vllm": "0.10.2"}, "CFG112"),
    (TRL + "--temperature 1.0", {}, "CFG115"),
    (SWIFT + "--stop_words '<think>' '<|im_end|>' --system 'your answer' --model /data/path/model", {}, "CFG120"),
    (VERL + "trainer.default_local_dir=/data/todo-list actor_rollout_ref.model.path=$MODEL", {}, "CFG120"),
    (SWIFT + "--num_infer_workers 1 --async_generate true --eval_strategy steps", {"ms_swift": "3.5.0"}, "SCH001"),
    (VERL + "actor_rollout_ref.rollout.enable_chunked_prefill=True data.filter_overlong_prompts=False", {"vllm": "0.8.5"}, "SCH002"),
    (VERL + "actor_rollout_ref.rollout.enable_chunked_prefill=True data.filter_overlong_prompts=True", {"vllm": "0.7.3"}, "SCH002"),
    (TRL + "--top_p 1.0 --top_k 0", {}, "NUM002"),
    (TRL + "--vllm_mode colocate --temperature 0.7", {"trl": "0.24.0"}, "NUM001"),
    (TRL + "--vllm_mode server --temperature 0.7", {"trl": "0.27.1"}, "NUM001"),
    ("export RAY_ADDRESS=10.0.0.1:6379\n" + VERL, {}, "ENV902"),
    # An engine that nobody uses, a trainer of the time when nothing had to divide, a group made elsewhere.
    ("CUDA_VISIBLE_DEVICES=0,1,2,3 NPROC_PER_NODE=4 swift rlhf --rlhf_type grpo --num_infer_workers 2", {"ms_swift": "3.4.1"}, "CFG001"),
    ("torchrun --nproc_per_node 4 grpo.py --num_generations 8 --per_device_train_batch_size 1", {}, "error CFG101"),
    (VERL.replace("n=8", "n_agent=5"), {}, "CFG110"),
    ("python3 -m verl.trainer.main_ppo data.train_batch_size=8 actor_rollout_ref.actor.ppo_mini_batch_size=32 actor_rollout_ref.actor.ppo_micro_batch_size=4", {}, "error CFG102"),
    (SWIFT + "--vllm_mode colocate --reward_model m", {"ms_swift": "4.0.0"}, "CFG111"),
    (SWIFT + "--vllm_mode colocate --truncation_strategy delete --reward_model m", {"ms_swift": "3.7.0"}, "CFG111"),
    (SWIFT + "--num_infer_workers 1 --truncation_strategy right --reward_model m", {"ms_swift": "3.2.2"}, "CFG111"),
    (SWIFT + "--vllm_mode colocate --config c.yaml", {"ms_swift": "4.0.0"}, "CFG111"),
    (VERL + 'actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1 "$@"', {"verl": "0.9.0"}, "CFG111"),
    (ORL + "--train.colocate_all --vllm.num_engines 8 --ref.num_gpus_per_node 4 --algo.kl.init_coef 0", {"openrlhf": "0.11.0"}, "CFG111"),
    ("export VERL_VLLM_DISTRIBUTED_BACKEND=ray\n" + VERL + "actor_rollout_ref.rollout.mode=async", {"verl": "0.7.0"}, "RAY001"),
]  # fmt: skip


@pytest.mark.parametrize(("script", "releases", "code"), RIGHT)
def test_what_is_right_is_left_alone(script, releases, code):
    """The nearest right thing, an unknown value, or a release that is not concerned."""
    assert not any(found.endswith(code) for found in codes(script, **releases))


@pytest.mark.parametrize(("script", "releases", "expected"), WRONG)
def test_a_finding_says_where_why_and_what_to_do(script, releases, expected):
    """File and line, key and value, a remedy; none at error that rests on something unknown."""
    for found in findings(script, **releases):
        assert found.evidence[0].place.startswith(("run:", "default of"))
        assert " = " in found.evidence[0].text
        assert found.detail.endswith((".", ":", "given"))
        assert text_of(found.remedy)
        if found.severity >= Severity.ERROR:
            assert "not known" not in found.evidence[0].text
            assert found.certainty != "hypothesis"


def test_a_default_of_the_script_is_no_certain_failure():
    """`${N:-3}` may be another number in a real run: a warning at the most."""
    script = TRL + "--per_device_train_batch_size ${N:-3}"
    [found] = [f for f in findings(script, trl="1.9.0") if f.code == "CFG101"]
    assert (found.severity, found.certainty) == (Severity.WARNING, "supported")


@pytest.mark.parametrize(
    ("script", "wanted"),
    [
        ("--per_device_train_batch_size 3 --generation_batch_size 12", "Make it a multiple of 24, or take a group of 4 or 6 or 12."),
        ("--generation_batch_size 12", "a multiple of 8 and of per_device_train_batch_size x processes, or"),
        ("--per_device_train_batch_size 1 --gradient_accumulation_steps 1", "Make it a multiple of 8."),
    ],
)  # fmt: skip
def test_what_makes_whole_groups_is_not_refused_next(script, wanted):
    """A size that is set has to hold whole passes, too; and into one completion no group fits."""
    [found] = [
        f for f in findings("NPROC_PER_NODE=1 " + SWIFT + "--num_generations 8 " + script, ms_swift="4.6.0")
        if f.code == "CFG101" and "group of" in f.detail
    ]  # fmt: skip
    assert wanted in text_of(found.remedy)


@pytest.mark.parametrize("value", ["1", "50"])
def test_a_cut_is_named(value):
    """One token that is left is a cut as well."""
    [found] = [f for f in findings(SWIFT + f"--top_k {value}") if f.code == "NUM002"]
    assert f"top_k = {value}" in found.detail


def test_a_remedy_speaks_the_language_of_the_config():
    """The same fault, in verl's words and in ms-swift's."""
    script = "actor_rollout_ref.rollout.temperature=0"
    [verl] = [f for f in findings(VERL + script) if f.code == "CFG115"]
    [swift] = [f for f in findings(SWIFT + "--temperature 0") if f.code == "CFG115"]
    assert "actor_rollout_ref.rollout.temperature=1.0" in text_of(verl.remedy)
    assert "--temperature 1.0" in text_of(swift.remedy)


def test_a_config_alone_may_leave_to_the_command_what_a_command_that_is_read_must_give(
    tmp_path, monkeypatch, capsys
):
    """OmegaConf's `???` is made for that."""
    monkeypatch.chdir(tmp_path)
    config = tmp_path / "c.yaml"
    config.write_text("actor_rollout_ref: {rollout: {name: vllm, n: 8}}\ndata:\n  train_files: ???\n")
    command = tmp_path / "run.sh"
    command.write_text("python3 -m verl.trainer.main_ppo --config-path=. --config-name=c\n")
    for path, said in ((config, "warning CFG120"), (command, "error   CFG120")):
        main(["lint", str(path)])
        assert said in capsys.readouterr().out


@pytest.mark.parametrize("flag", ["--train.async_enable", "--async_train"])
def test_a_remedy_spells_flags_as_the_command_does(flag):
    """Dotted from OpenRLHF 0.10.2 on, flat before: the other kind is refused."""
    rest = "--vllm.num_engines 8 --train.partial_rollout_enable"
    if "." not in flag:
        rest = "--vllm_num_engines 8 --partial_rollout"
    (found,) = [one for one in findings(ORL.split(" --", maxsplit=1)[0] + f" {rest}") if one.code == "CFG111"]
    assert flag in text_of(found.remedy)


def test_evidence_is_that_of_the_framework():
    """What was run on TRL is no run on ms-swift."""
    sizes = "--per_device_train_batch_size 3 --gradient_accumulation_steps 1 --num_generations 8"
    [trl] = [f for f in findings(TRL + sizes, trl="1.16.0") if f.code == "CFG101"]
    [swift] = [f for f in findings("NPROC_PER_NODE=4 " + SWIFT + sizes) if f.code == "CFG101"]
    assert (trl.known_by, swift.known_by) == ("executed", "static")


def test_several_steps_on_one_generation_shrink_dapo():
    """NUM004, in a release that has it: only with a loss that divides by the generation, only with several steps."""
    sizes = "--num_generations 4 --per_device_train_batch_size 4 --gradient_accumulation_steps 1 "
    for more, found in (
        ("--steps_per_generation 4 --loss_type dapo", True),
        ("--steps_per_generation 4 --loss_type grpo", False),
        ("--steps_per_generation 1 --loss_type dapo", False),
    ):
        codes = {item.code for item in findings(TRL + sizes + more, trl="1.6.0")}
        assert ("NUM004" in codes) is found
    codes = {
        item.code for item in findings(TRL + sizes + "--steps_per_generation 4 --loss_type dapo", trl="1.9.1")
    }
    assert "NUM004" not in codes


def test_the_catalogue_speaks_the_vocabulary_of_the_plan():
    """Each [[config]] asks for names that a plan can have; else it would never be found."""
    asked = {name for entry in catalog.load().values() for rule in entry.config for name, _ in rule.when}
    assert asked <= set(VOCABULARY)


def test_every_rule_is_registered_under_the_codes_it_finds():
    """What looks like a rule is one; its file names no code that none of its rules is registered for."""
    every = [rule for rules in checks.RULES.values() for rule in rules]
    assert checks.problems(set(catalog.load()) | set(catalog.load_checks())) == []
    for path in sorted(Path(checks.__file__).parent.glob("[a-z]*.py")):
        here = [rule for rule in every if Path(rule.place[0]) == path]
        if path.stem in {"base", "registered"}:
            assert here == []
            continue
        found = {
            node.name
            for node in ast.parse(path.read_text()).body
            if isinstance(node, ast.FunctionDef)
            and [each.arg for each in node.args.args] in (["plan", "versions"], ["plans", "versions"])
            and not node.name.startswith("_")
        }
        assert {rule.judge.__name__ for rule in here} == found != set(), path
        codes = {code for rule in here for code in rule.codes}
        assert set(re.findall(r'"([A-Z]{3}\d{3})"', path.read_text())) == codes, path


def test_a_rule_without_an_entry_is_told_with_its_place(monkeypatch):
    """`catalogue --check` says so; a check of another name is refused as well."""
    monkeypatch.setattr(registered, "_registered", [])

    @registered.rule("CFG999", check="options")
    def unexplained(plan, versions):
        return []

    @registered.rule("CFG001", check="optoins")
    def misplaced(plan, versions):
        return []

    first, second = registered.problems({"CFG001"})
    line = unexplained.__code__.co_firstlineno
    assert first == f"{__file__}:{line}: the code CFG999 has no entry"
    assert "there is no check 'optoins': expected one of mode and resources" in second
