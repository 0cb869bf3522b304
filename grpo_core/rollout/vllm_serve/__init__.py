"""`vllm serve` as the rollout server."""

BACKEND = "grpo_core"  # what our receiver is called in --weight-transfer-config
