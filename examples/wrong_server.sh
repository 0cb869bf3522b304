# the trainer, beside `CUDA_VISIBLE_DEVICES=0,1 swift rollout --model $MODEL --vllm_tensor_parallel_size 2`
MODEL=${MODEL:-Qwen/Qwen2.5-7B-Instruct}
CUDA_VISIBLE_DEVICES=0,1 swift rollout --model $MODEL --vllm_tensor_parallel_size 2 --port 8000 &

docker run --rm --gpus all -e CUDA_VISIBLE_DEVICES=1,2,3 -e NPROC_PER_NODE=3 ms-swift:4.5.2 \
swift rlhf --rlhf_type grpo --model $MODEL \
    --dataset AI-MO/NuminaMath-TIR \
    --reward_funcs accuracy format \
    --reward_weights 1.0 \
    --use_vllm true \
    --vllm_mode server \
    --vllm_server_host 127.0.0.1 \
    --vllm_max_model_len 8192 \
    --per_device_train_batch_size 2 \
    --gradient_accumulation_steps 1 --num_generations 8 \ 
    --max_completion_length 4096
