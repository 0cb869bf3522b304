"""Input of the golden command `lint train.py`, never run: 12 completions do not fit groups of 8 (CFG101)."""

from trl import GRPOConfig, GRPOTrainer

arguments = GRPOConfig(
    output_dir="out",
    use_vllm=True,
    vllm_mode="colocate",
    num_generations=8,
    generation_batch_size=12,
)
GRPOTrainer("Qwen/Qwen2.5-0.5B", reward_funcs=[len], args=arguments).train()
