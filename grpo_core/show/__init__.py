"""A run for people: terminal, loggers, and what notices that it stands still."""
