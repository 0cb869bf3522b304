"""`vllm serve` as the rollout server."""

BACKEND = "grpo_core"  # the name of our receiver in --weight-transfer-config
