"""The known issues: one TOML file each."""
