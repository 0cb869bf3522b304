"""Diagnosis of GRPO runs on vLLM: environment, configuration, logs. Imports nothing heavy."""
