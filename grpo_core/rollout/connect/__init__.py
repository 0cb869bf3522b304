"""Connectors to servers of others and other ways for weights: extras, which `grpo_core.extras` finds by name."""
