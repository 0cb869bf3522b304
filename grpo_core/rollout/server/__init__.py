"""Our rollout server, started by `python -m grpo_core serve`."""
