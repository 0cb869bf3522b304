"""Our rollout server: `python -m grpo_core serve`."""
