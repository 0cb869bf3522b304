"""`vllm serve` as the rollout server."""
