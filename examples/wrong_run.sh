#!/usr/bin/env bash
# An ms-swift run as people write it. Before it takes ten minutes to say no:
#   python -m diagnostics lint examples/wrong_run.sh --vllm 0.8.5

NPROC_PER_NODE=6 swift rlhf --rlhf_type grpo \
    --model Qwen/Qwen2.5-7B-Instruct \
    --dataset gsm8k \
    --use_vllm true \
    --vllm_mode colocate \
    --async_generate true \
    --num_generations 8 \
    --per_device_train_batch_size 2 \
    --gradient_accumulation_steps 1
