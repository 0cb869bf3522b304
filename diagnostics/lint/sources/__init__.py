"""Readers of syntax: YAML, JSON, TOML, Python and shell, each into values with their lines. Nothing is executed."""
