"""Losses, masks and advantages that few runs ask for; read where `grpo_core.wide` has one of them set."""
