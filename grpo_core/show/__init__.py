"""A run for people: terminal, page, loggers."""
