accelerate launch --num_processes 4 grpo.py --use_vllm true --vllm_mode colocate --num_generations 8 \
  --per_device_train_batch_size 3
# Input of the golden `lint launch.sh`: 12 completions per generation do not fit groups of 8 (CFG101).
